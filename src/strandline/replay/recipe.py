"""A replay in plain values, which can go to another machine. A plan is made of it there."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strandline.errors import OptionError
from strandline.replay.changes import TransformConfig
from strandline.replay.plan import Plan
from strandline.replay.retries import DefaultRetry, load_policy
from strandline.replay.target import Target
from strandline.replay.transforms import Transform


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to replay, and how. Its secrets (of Kafka, of the target) go where it goes, and show themselves nowhere."""

    target: str
    authorities: str | None = None
    """Certificates that the target's may come from, as text."""
    config: TransformConfig | None = None
    retry: str | None = None
    """A policy of the user's, `module:name`."""
    rest: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What else a plan takes, by its names there."""

    def plan(self, **changes: Any) -> Plan:
        """The plan, here; with some things changed. Raises OptionError for what cannot be had here."""
        target = Target(self.target, tls=_tls(self.authorities))
        return Plan(
            target=target,
            transform=Transform(target.authority, self.config),
            policy=DefaultRetry() if self.retry is None else load_policy(self.retry),
            **{**self.rest, **changes},
        )


def read_authorities(file: Path) -> str:
    """The certificates in a file."""
    try:
        text = file.read_text(encoding="ascii")
        ssl.create_default_context(cadata=text)
    except (OSError, ValueError) as error:
        raise OptionError(f"--target-ca {file}: {getattr(error, 'strerror', None) or error}") from None
    return text


def _tls(authorities: str | None) -> ssl.SSLContext | None:
    return None if authorities is None else ssl.create_default_context(cadata=authorities)
