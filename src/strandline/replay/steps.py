"""The steps of a transform: what each does to a request.

In a configuration file each step of the list has one key, and they run in the order of the list:

    transforms:
      - set_header: {X-Replayed: "yes"}      # in place of all its lines, or one more
      - remove_header: [Cookie]
      - rewrite_path: {match: "^/old/(.*)", replace: '/new/\\1'}    # path and query; the syntax of RE2
      - host: "search.internal:9200"
      - json: {set: {"a.b[0].c": 1}, remove: ["x.y"]}
      - python: "my_module:my_function"      # takes a Request; changes it and returns nothing, or returns another

JSON: `set` makes missing objects but no lists, `remove` ignores what is not there. A body is JSON if it says so or
looks so; all others, and sequences of documents such as `_bulk`, pass as they are.
"""

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from strandline.config import Secret, Section, only_key
from strandline.core import json_path
from strandline.json_decode import MalformedJson, decode
from strandline.replay.named import load_named
from strandline.wire.head import Head

MAX_PATTERN = 1000
# Bounds what they take in memory: 8 MiB, with what they are rewritten to.
KNOWN_PATHS, LONGEST_KNOWN = 4096, 1024
# What says where a body ends and how it is packed follows from the body, and is not for a step to say.
FRAMING = ("Content-Length", "Transfer-Encoding", "Content-Encoding")
HOST = re.compile(r"[A-Za-z0-9._~%:\[\]-]+")
SEQUENCES = ("/_bulk", "/_msearch")

# Numbers keep their digits, however long.
DECODER = msgspec.json.Decoder(float_hook=Decimal)
ENCODER = msgspec.json.Encoder(decimal_format="number")


@dataclass(slots=True)
class Request:
    """A request that a step may change: also what a Python function of the user's gets.

    The body is without chunks and unpacked; it is framed and packed again if it changes.
    """

    method: str
    target: str
    headers: Head
    body: bytes


class Step(Protocol):
    """Something that is done to a request."""

    @property
    def needs_body(self) -> bool:
        """Whether it must see the body."""
        ...

    def describe(self) -> str:
        """What it does, without secrets."""
        ...

    def __call__(self, request: Request) -> Request | None:
        """Change the request, or return another one."""
        ...


@dataclass(frozen=True, slots=True)
class SetHeaders:
    """Gives headers one value each."""

    values: dict[str, Secret]
    needs_body: bool = False

    def describe(self) -> str:
        return f"set header {', '.join(self.values)}"

    def __call__(self, request: Request) -> None:
        for name, value in self.values.items():
            request.headers.set(name, value.reveal())


@dataclass(frozen=True, slots=True)
class RemoveHeaders:
    """Takes headers out."""

    names: list[str]
    needs_body: bool = False

    def describe(self) -> str:
        return f"remove header {', '.join(self.names)}"

    def __call__(self, request: Request) -> None:
        for name in self.names:
            request.headers.remove(name)


@dataclass(frozen=True, slots=True)
class RewritePath:
    """Replaces each match in path and query. By RE2, whose time grows with the length of the path and no faster."""

    match: str
    replace: str
    needs_body: bool = False
    rewrite: Callable[[str], str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        import pyarrow as pa  # noqa: PLC0415  (takes a while to load, for what few ask for)
        import pyarrow.compute as pc  # noqa: PLC0415

        options = pc.ReplaceSubstringOptions(pattern=self.match, replacement=self.replace)

        def rewrite(target: str) -> str:
            found: str = pc.call_function("replace_substring_regex", [pa.scalar(target)], options).as_py()
            return found

        # Arrow takes a tenth of a millisecond to call, and most paths come again and again.
        known = lru_cache(KNOWN_PATHS)(rewrite)
        object.__setattr__(self, "rewrite", lambda target: (known if len(target) <= LONGEST_KNOWN else rewrite)(target))

    def describe(self) -> str:
        return f"rewrite path {self.match} to {self.replace}"

    def __call__(self, request: Request) -> None:
        request.target = self.rewrite(request.target)


@dataclass(frozen=True, slots=True)
class SetHost:
    """Names another host than the target's."""

    host: str
    needs_body: bool = False

    def describe(self) -> str:
        return f"set host {self.host}"

    def __call__(self, request: Request) -> None:
        request.headers.set("Host", self.host)


@dataclass(frozen=True, slots=True)
class EditJson:
    """Sets and removes values in a JSON body."""

    puts: dict[str, Any]
    drops: list[str]
    needs_body: bool = True

    def describe(self) -> str:
        edits = [f"{verb} {', '.join(paths)}" for verb, paths in (("set", self.puts), ("remove", self.drops)) if paths]
        return f"edit JSON: {'; '.join(edits)}"

    def __call__(self, request: Request) -> None:
        said, looks = _json(request)
        if not said and not looks:
            return
        try:
            document = decode(request.body, DECODER)
        except MalformedJson as error:
            if said:
                raise ValueError(f"the body is no JSON: {error}") from None
            return
        before = ENCODER.encode(document)
        for path, value in self.puts.items():
            json_path.put(document, json_path.parse(path), deepcopy(value))
        for path in self.drops:
            json_path.drop(document, json_path.parse(path))
        after = ENCODER.encode(document)
        if after != before:
            request.body = after


@dataclass(frozen=True, slots=True)
class CallPython:
    """Has a function of the user's do it."""

    name: str
    function: Callable[[Request], Request | None]
    needs_body: bool = True

    def describe(self) -> str:
        return f"call {self.name}"

    def __call__(self, request: Request) -> Request | None:
        return self.function(request)


def _json(request: Request) -> tuple[bool, bool]:
    """Whether the body says that it is one JSON document, and whether it looks so."""
    kind = (request.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    path = request.target.partition("?")[0].rstrip("/")
    if not request.body or "ndjson" in kind or path.endswith(SEQUENCES):
        return False, False
    return kind.endswith(("/json", "+json")), request.body.lstrip()[:1] in {b"{", b"["}


class PathConfig(Section, frozen=True, kw_only=True):
    """What `rewrite_path` takes."""

    match: str
    replace: str

    def __post_init__(self) -> None:
        if len(self.match) > MAX_PATTERN:
            raise ValueError(f"the pattern is longer than {MAX_PATTERN} signs")


class JsonConfig(Section, frozen=True, kw_only=True):
    """What `json` takes."""

    set: dict[str, Any] = msgspec.field(default_factory=dict)
    remove: list[str] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        for path in (*self.set, *self.remove):
            json_path.parse(path)


class StepConfig(Section, frozen=True, kw_only=True):
    """One step; it has exactly one of these keys."""

    set_header: dict[str, Secret] | None = None
    remove_header: list[str] | None = None
    rewrite_path: PathConfig | None = None
    host: str | None = None
    json: JsonConfig | None = None
    python: str | None = None

    def __post_init__(self) -> None:
        only_key(self)
        if self.host is not None and not HOST.fullmatch(self.host):
            raise ValueError(f"'{self.host}' is no host; write it like name or name:port")
        for name in (*(self.set_header or ()), *(self.remove_header or ())):
            if name.lower() in map(str.lower, FRAMING):
                raise ValueError(f"header {name} follows from the body and cannot be set or removed")
        if self.python is not None:
            if not callable(load_named(self.python)):
                raise ValueError(f"'{self.python}' is no function")
        else:
            # Tried on a request of nobody's, so that a wrong name or value is found at the start.
            build_step(self)(Request("GET", "/", Head(b"GET / HTTP/1.1\r\n\r\n"), b""))


def build_step(config: StepConfig) -> Step:
    """The step that a configuration asks for."""
    if config.set_header is not None:
        return SetHeaders(config.set_header)
    if config.remove_header is not None:
        return RemoveHeaders(config.remove_header)
    if config.rewrite_path is not None:
        return RewritePath(config.rewrite_path.match, config.rewrite_path.replace)
    if config.host is not None:
        return SetHost(config.host)
    if config.json is not None:
        return EditJson(config.json.set, config.json.remove)
    name = config.python or ""
    return CallPython(name, load_named(name))
