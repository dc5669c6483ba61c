"""What a configuration file says about the requests to send."""

from typing import Annotated

import msgspec

from strandline.config import Section
from strandline.replay import steps
from strandline.replay.auth import AuthChoice

MAX_BODY = 10 << 20


class TransformConfig(Section, frozen=True, kw_only=True):
    """What a configuration file says about the requests to send."""

    transforms: list[steps.StepConfig] = msgspec.field(default_factory=list)
    auth: AuthChoice = "pass"
    max_body: Annotated[int, msgspec.Meta(ge=1)] = MAX_BODY
    """Of the body that a step must see, in bytes, packed and unpacked."""
