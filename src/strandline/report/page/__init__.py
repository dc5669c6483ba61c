"""A summary as one HTML page that needs no network: the data as JSON, and scripts that draw what they are fed."""

import base64
import hashlib
import re
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

from strandline.report.page.plain import tables
from strandline.report.page.view import view

if TYPE_CHECKING:
    from strandline.report.page.view import View
    from strandline.report.summary import Summary

__all__ = ["render", "view"]

_STYLES = ("base.css", "charts.css", "tables.css", "example.css", "narrow.css")
_SCRIPTS = (
    "dom.js",
    "units.js",
    "axes.js",
    "charts.js",
    "diff.js",
    "tables.js",
    "example.js",
    "overview.js",
    "lists.js",
    "page.js",
)


def render(summary: "Summary") -> str:
    """The page. Whatever the summary's texts hold is shown and does nothing."""
    shown = view(summary)
    style = "\n".join(_asset(name) for name in _STYLES)
    script = '"use strict";\n' + "\n".join(_asset(name) for name in _SCRIPTS)
    parts = {
        "policy": _policy(style, script),
        "title": escape(f"{shown.headline} - {shown.summary.title}"),
        "style": style,
        "script": script,
        "view": _json(shown),
        "plain": tables(shown),
    }
    # One pass: what is put in is not searched again, so data cannot name a part.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def _json(shown: "View") -> str:
    """Without `<`, no text can end the script element around it or open a comment."""
    text = msgspec.json.encode(shown).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(style: str, script: str) -> str:
    """Nothing is loaded and nothing runs but our own style and script; the DOM takes no markup from strings."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files(__name__).joinpath("assets", name).read_text(encoding="utf-8")
