"""Where Spark is to run, by the name of its master: seen to be one before anything is started for it."""

import re

from strandline.errors import OptionError

FORMS = re.compile(
    r"local(\[(\d+|\*)(,\s*\d+)?\])?"
    r"|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|spark://[^\s/:]+:\d+(,[^\s/:]+:\d+)*"
    r"|spark://\[[0-9a-fA-F:.]+\]:\d+"
    r"|yarn"
    r"|k8s://\S+"
)


def check_master(master: str) -> str:
    """The name as it is; raises OptionError where it is none that Spark knows."""
    if FORMS.fullmatch(master) is None:
        raise OptionError(
            f"'{master}' is no master of Spark; it is local, local[4], local[*], local[4,3], local-cluster[2,1,1024], "
            "spark://HOST:7077, yarn or k8s://https://HOST:443"
        )
    return master


def is_local(master: str) -> bool:
    """Whether all of Spark runs on this machine."""
    return master.startswith("local")
