"""What a process that serves clients asks of its machine, and of Python."""

import gc
import logging
import resource

# A client's connection, and its broker's.
FILES_EACH = 2
# Ports, the pool, the log, and what Python has open.
FILES_BESIDE = 500

log = logging.getLogger(__name__)


def allow_files(connections: int) -> None:
    """Have as many files open at a time as so many clients need, or as many as may be."""
    needed = connections * FILES_EACH + FILES_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < needed:
        log.warning(
            "%d connections need %d open files, and %d are allowed: raise that (ulimit -n), or set connections lower",
            connections, needed, most,
        )  # fmt: skip


def leave_alone_what_stays() -> None:
    """Tell a process that serves not to look for garbage among all that was made for it, which holds clients up."""
    gc.collect()
    gc.freeze()
