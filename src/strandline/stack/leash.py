"""Runs a server that cannot outlive the process that started it: `leash.py PARENT SIGNAL UID:GID|- COMMAND ...`.

A script of its own, started without the package, because it must be fast and must ask the kernel after the fork and
before the server runs: to send SIGNAL to this process when its parent dies, however it dies. Then it becomes COMMAND,
as another user where one is given (Postgres refuses to run as root).
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie the leash and become the server."""
    parent, signal, owner, *command = sys.argv[1:]
    if owner != "-":
        uid, gid = map(int, owner.split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    # After setuid, which would undo it.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refused the parent-death signal")
    # A parent that died before the line above would never be noticed by it.
    if os.getppid() != int(parent):
        sys.exit("the parent is gone")
    os.execv(command[0], command)  # noqa: S606  (becoming the server is the purpose)


if __name__ == "__main__":
    main()
