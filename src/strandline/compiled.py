"""Modules that were compiled for speed, used in the place of their sources while these are what was compiled.

`tools/compile.py` puts them, where there is a compiler, into `strandline_compiled` among the environment's packages,
with a manifest: a hash of the sources, then a line for each module. The hash covers all packages that compiled modules
are from or call. When any source was edited since, or comes from another place, it is another one, and then nothing but
sources runs: what was compiled together is used together. So it is with `STRANDLINE_PURE` in the environment.
"""

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import source_hash, spec_from_file_location

DIRECTORY, MANIFEST = "strandline_compiled", "manifest"
PURE = "STRANDLINE_PURE"
ROOT = os.path.dirname(__file__)  # noqa: PTH120  (pathlib takes longer to load than all that is done here)
WATCHED = ("", "core", "kafka", "replay", "wire")
"""The packages that compiled modules are from or call."""


def hash_of_sources(root: str = ROOT) -> str:
    """What the sources are, in a word."""
    found = []
    for package in WATCHED:
        with os.scandir(os.path.join(root, package)) as entries:  # noqa: PTH118
            names = sorted(entry.name for entry in entries if entry.name.endswith(".py"))
        for name in names:
            with open(os.path.join(root, package, name), "rb") as file:  # noqa: PTH118, PTH123
                content = file.read()
            found.append(b"%s/%s %d\n%s" % (package.encode(), name.encode(), len(content), content))
    return source_hash(b"".join(found)).hex()


class Finder:
    """Finds modules where they were compiled to."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Where a module is, if it was compiled."""
        place = self._places.get(name)
        return None if place is None else spec_from_file_location(name, place)


def find(root: str = ROOT) -> Finder | None:
    """What finds the compiled modules; None where there are none, or none of these sources."""
    if os.environ.get(PURE):
        return None
    for entry in sys.path:
        directory = os.path.join(entry, DIRECTORY)  # noqa: PTH118
        try:
            with open(os.path.join(directory, MANIFEST), encoding="utf-8") as file:  # noqa: PTH118, PTH123
                hashed, *lines = file.read().splitlines()
            if hashed != hash_of_sources(root):
                return None
        except (OSError, ValueError):
            continue
        pairs = (line.split(" ", 1) for line in lines)
        return Finder({name: os.path.join(directory, place) for name, place in pairs})  # noqa: PTH118
    return None


def use() -> None:
    """Have compiled modules imported from now on."""
    finder = find()
    if finder is not None:
        sys.meta_path.insert(0, finder)


def is_used() -> bool:
    """Whether compiled modules run."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)
