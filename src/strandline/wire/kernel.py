"""Compiled functions over bytes, and where they are kept once they are compiled.

Numba keeps them beside their source, or in the user's cache. A service's user may be let write to neither; then they
are kept in a private directory among the temporary files, and where that cannot be had either, they are compiled anew
in each process, which takes a few seconds.
"""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config

Function = TypeVar("Function", bound=Callable[..., Any])

# Its names are made when it is loaded.
settings: Any = config


def kernel(signature: str, **options: Any) -> Callable[[Function], Function]:
    """Compile a function for one signature; it runs without the interpreter's lock."""

    def compiled(function: Function) -> Function:
        with nullcontext() if _has_place(function) else _kept_apart():
            return cast("Function", numba.njit(signature, cache=_has_place(function), nogil=True, **options)(function))

    return compiled


def _has_place(function: Function) -> bool:
    """Whether numba finds a place for it. Without a signature nothing is compiled yet."""
    try:
        numba.njit(cache=True)(function)
    except RuntimeError:
        return False
    return True


@contextmanager
def _kept_apart() -> Iterator[None]:
    """Have numba keep what is compiled in a directory of ours, where there can be one."""
    before = settings.CACHE_DIR
    try:
        settings.CACHE_DIR = _private_directory() or before
        yield
    finally:
        settings.CACHE_DIR = before


def _private_directory() -> str | None:
    try:
        path = Path(tempfile.gettempdir(), f"strandline-kernels-{os.getuid()}")
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    # What is in it is run: nobody else may have made it, or write to it.
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return str(path) if is_ours else None
