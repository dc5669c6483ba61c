"""What a process is told once that is to send requests on time."""

import gc
import resource
import sys
from contextlib import suppress

SWITCH_EVERY = 0.0005
"""How long another thread may keep a request waiting that is due."""


def prepare_process() -> None:
    """Make room for many connections, and let nothing hold up what is due."""
    allow_many_connections()
    # A collection takes as long as what it looks at, and requests fall due meanwhile. So each looks at little, and what
    # has lived through two of them is left alone: it waits to be sent, and there are no cycles in it.
    gc.freeze()
    gc.set_threshold(10_000, 2, 1_000_000)
    sys.setswitchinterval(SWITCH_EVERY)


def allow_many_connections() -> None:
    """Each source connection that is open is one to the target: take as many files as this process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems name a limit here that they do not take.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
