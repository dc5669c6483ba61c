"""Configuration files: YAML, checked whole before anything starts, every fault named with its place in the file."""

import re
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec
import yaml

from strandline.errors import ConfigError, did_you_mean

MAX_BYTES = 1 << 20
PLACE = re.compile(r"^(?P<problem>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?$", re.DOTALL)
STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.+)`")
MISSING_FIELD = re.compile(r"Object missing required field `(.+)`")

T = TypeVar("T", bound=msgspec.Struct)


class Secret:
    """A string that does not show itself in logs, errors or reprs."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The string, for the one place that needs it."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of every configuration type: a key that it does not name is refused."""


def load(path: Path, type_: type[T]) -> T:
    """Read a configuration file as the given type, or say what is wrong with it and where."""
    root = _compose(path)
    try:
        return msgspec.convert(yaml.SafeLoader("").construct_document(root), type_, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise _explained(error, path, root, type_) from None
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(path, None, str(error).replace("\n", " ")) from None


def _compose(path: Path) -> yaml.Node:
    """The file as a tree that still knows its line numbers."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(path, None, f"cannot be read: {error.strerror}") from error
    if len(text) > MAX_BYTES:
        raise ConfigError(path, None, f"is larger than {MAX_BYTES:,} bytes")
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            # A few nested aliases can stand for gigabytes.
            if isinstance(event, yaml.AliasEvent) and event.start_mark is not None:
                raise ConfigError(
                    path, event.start_mark.line + 1, f"alias '*{event.anchor}' is not supported; write it out"
                )
        root: yaml.Node | None = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise ConfigError(path, line, f"is not YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(path, None, f"is not YAML: {str(error).splitlines()[0]}") from None
    if root is None:
        raise ConfigError(path, None, "is empty")
    _refuse_repeated_keys(path, root)
    return root


def _refuse_repeated_keys(path: Path, node: yaml.Node) -> None:
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeated_keys(path, item)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.value in seen:
                raise ConfigError(path, key.start_mark.line + 1, f"key '{key.value}' is given twice")
            seen.add(key.value)
            _refuse_repeated_keys(path, value)


def _decode(type_: type[Any], value: object) -> object:
    if type_ is Secret and isinstance(value, str):
        return Secret(value)
    raise ValueError(f"expected `str`, got `{type(value).__name__}`" if type_ is Secret else f"no way to read {type_}")


def _explained(error: msgspec.ValidationError, file: Path, root: yaml.Node, type_: type[msgspec.Struct]) -> ConfigError:
    match = PLACE.match(str(error))
    problem, steps = (match["problem"], STEP.findall(match["path"] or "")) if match else (str(error), [])
    path = [name or index for name, index in steps]
    if unknown := UNKNOWN_FIELD.search(problem):
        name = unknown[1]
        problem = f"key '{'.'.join([*path, name])}' is unknown; {did_you_mean(name, _fields(type_, path))}"
        path.append(name)
    elif missing := MISSING_FIELD.search(problem):
        problem = f"key '{'.'.join([*path, missing[1]])}' is missing"
    else:
        problem = f"'{'.'.join(path)}': {problem[:1].lower()}{problem[1:]}" if path else problem
    return ConfigError(file, _line(root, path), problem)


def _fields(type_: Any, path: list[str]) -> list[str]:
    """The keys that are valid at a path below a type."""
    for step in path:
        choices = [type_, *getattr(type_, "__args__", ())]
        structs = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, msgspec.Struct)]
        hints = [get_type_hints(struct)[step] for struct in structs if step in get_type_hints(struct)]
        # An index, or a key of a mapping: what holds is the type of the elements.
        type_ = hints[0] if hints else getattr(type_, "__args__", (type_,))[-1]
    choices = [type_, *getattr(type_, "__args__", ())]
    structs = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, msgspec.Struct)]
    return [name for struct in structs for name in struct.__struct_encode_fields__]


def _line(node: yaml.Node, path: list[str]) -> int:
    """The line of the deepest part of a path that the file has."""
    for step in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == step), None)
            if found is None:
                break
            node = found[1]
        elif isinstance(node, yaml.SequenceNode) and step.isdigit() and int(step) < len(node.value):
            node = node.value[int(step)]
        else:
            break
    return int(node.start_mark.line) + 1
