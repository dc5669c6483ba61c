"""A Python object of the user's by its name, `module:name`: loaded at the start, where a wrong name does no harm."""

from importlib import import_module
from typing import Any


def load_named(name: str) -> Any:
    """The object. A ValueError says in one line why there is none."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise ValueError(f"'{name}' is not module:name")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"'{name}': no module '{error.name}'; is it on PYTHONPATH?") from error
    except Exception as error:
        raise ValueError(f"'{name}': the module fails with {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"'{name}': module '{module}' has no '{attribute}'")
        found = getattr(found, part)
    return found
