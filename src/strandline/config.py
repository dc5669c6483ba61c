"""Configuration files: YAML, checked whole before anything starts, every fault named with its place in the file."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import yaml
from yaml.constructor import SafeConstructor

from strandline.errors import ConfigError, OptionError, did_you_mean

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
PLACE = re.compile(r"^(?P<problem>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?$", re.DOTALL)
STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.+)`")
MISSING_FIELD = re.compile(r"Object missing required field `(.+)`")
UNKNOWN_WORD = re.compile(r"Invalid enum value '(.+)'")
QUOTE_IT = "or put it in quotes if it is text"
MERGE = "tag:yaml.org,2002:merge"
# What a plain word of YAML can be taken for, and yet not be.
KINDS = {
    "tag:yaml.org,2002:int": "a whole number",
    "tag:yaml.org,2002:float": "a number",
    "tag:yaml.org,2002:timestamp": "a date",
}

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
    """The base of every configuration type: a key that it does not name is refused.

    Only that is inherited; each type says `frozen=True, kw_only=True` itself.
    """


def only_key(section: Section) -> str:
    """The one key that is given, for a type whose keys exclude each other; a ValueError if it is not one."""
    given = [name for name in section.__struct_fields__ if getattr(section, name) is not None]
    if len(given) != 1:
        raise ValueError(f"expected one of {', '.join(section.__struct_fields__)}, got {' and '.join(given) or 'none'}")
    return given[0]


@contextmanager
def about(path: Path) -> Iterator[None]:
    """What is found wrong later with what a file says is told with the file, too."""
    try:
        yield
    except OptionError as error:
        raise ConfigError(path, None, str(error)) from error


def parse_address(text: str, option: str) -> tuple[str, int]:
    """HOST:PORT, an IPv6 address in brackets."""
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isdecimal() or int(port) > 65535:
        raise OptionError(f"{option} takes HOST:PORT, not '{without_user(text)}'")
    return host, int(port)


def without_user(address: str) -> str:
    """An address for an error message: without the user and the password that somebody may have written before it."""
    _, at, place = address.rpartition("@")
    return f"***@{place}" if at else address


def load(path: Path, type_: type[T]) -> T:
    """Read a configuration file as the given type, or say what is wrong with it and where."""
    return parse(path, read_bounded(path), type_)


def parse(path: Path, text: bytes, type_: type[T]) -> T:
    """Read what a configuration file held as the given type."""
    root = _compose(path, text)
    content = SafeConstructor().construct_document(root)
    try:
        return msgspec.convert(content, type_, dec_hook=_decode)
    except msgspec.ValidationError as error:
        fault = _fault(error, content, type_)
    raise ConfigError(path, _line(root, fault.path), fault.told())


def read_bounded(path: Path) -> bytes:
    """A file's content, where it can be read and is not too large."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(path, None, f"cannot be read: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise ConfigError(path, None, f"is larger than {MAX_BYTES:,} bytes")
    return content


def _compose(path: Path, text: bytes) -> yaml.Node:
    """The file as a tree that still knows its line numbers."""
    try:
        _refuse_tricks(path, text)
        root: yaml.Node | None = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise ConfigError(path, line, f"is not YAML: {_without_names(error.problem)}") from None
    except yaml.YAMLError as error:
        raise ConfigError(path, None, f"is not YAML: {str(error).splitlines()[0]}") from None
    if root is None:
        raise ConfigError(path, None, "is empty")
    _check(path, root, [], SafeConstructor())
    return root


def _without_names(problem: str | None) -> str:
    """A problem without the tag or alias that the YAML library quotes: an unquoted password may look like one."""
    return re.sub(r"(undefined (?:tag handle|alias)) .*", r"\1", problem or "")


def _refuse_tricks(path: Path, text: bytes) -> None:
    """A few nested aliases can stand for gigabytes, deep nesting takes time by its square, a tag can name any type."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        line = 0 if event.start_mark is None else event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(path, line, f"an alias (*) is not supported; write it out, {QUOTE_IT}")
        if getattr(event, "tag", None) is not None:
            raise ConfigError(path, line, f"a tag (!) is not supported; write the plain value, {QUOTE_IT}")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ConfigError(path, line, f"is nested deeper than {MAX_DEPTH} levels")


def _check(file: Path, node: yaml.Node, path: list[str], constructor: SafeConstructor) -> None:
    """Refuse what the YAML library would take silently, or refuse without saying where it is."""
    if isinstance(node, yaml.ScalarNode):
        try:
            value = constructor.construct_object(node)
        except (ValueError, ArithmeticError, yaml.YAMLError):
            # Without the value, which may be a secret.
            kind = KINDS.get(node.tag, "a sign of YAML")
            problem = f"looks like {kind} and cannot be read as one; put it in quotes if it is text"
            raise ConfigError(file, node.start_mark.line + 1, _at(path, problem)) from None
        if isinstance(value, float) and not math.isfinite(value):
            problem = "is no finite number; put it in quotes if it is text"
            raise ConfigError(file, node.start_mark.line + 1, _at(path, problem))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _check(file, item, [*path, str(index)], constructor)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(file, line, "a key must be a plain word")
            if key.tag == MERGE:
                raise ConfigError(file, line, f"merge '{key.value}' is not supported; write it out")
            if key.value in seen:
                raise ConfigError(file, line, f"key '{key.value}' is given twice")
            seen.add(key.value)
            for part in (key, value):
                _check(file, part, [*path, key.value], constructor)


def _at(path: list[str], problem: str) -> str:
    return f"'{'.'.join(path)}': {problem}" if path else problem


def _decode(type_: type[Any], value: object) -> object:
    if type_ is Secret and isinstance(value, str):
        return Secret(value)
    raise ValueError(f"expected `str`, got `{type(value).__name__}`" if type_ is Secret else f"no way to read {type_}")


@dataclass(frozen=True, slots=True)
class _Fault:
    """What msgspec found, with the whole path to it."""

    path: list[str]
    problem: str
    type_: Any

    def told(self) -> str:
        if unknown := UNKNOWN_FIELD.search(self.problem):
            return f"key '{'.'.join(self.path)}' is unknown; {did_you_mean(unknown[1], _keys(self.type_))}"
        if missing := MISSING_FIELD.search(self.problem):
            return f"key '{'.'.join([*self.path, missing[1]])}' is missing"
        if word := UNKNOWN_WORD.search(self.problem):
            keys = _keys(self.type_)
            if word[1] in keys:
                return _at(self.path, f"'{word[1]}' is a key and no word; write '{word[1]}:' and its settings below it")
            choices = [*_words(self.type_), *(f"{key}: ..." for key in keys)]
            return _at(self.path, f"'{word[1]}' is unknown; {did_you_mean(word[1], choices)}")
        return _at(self.path, f"{self.problem[:1].lower()}{self.problem[1:]}")


def _fault(error: msgspec.ValidationError, content: Any, type_: Any) -> _Fault:
    match = PLACE.match(str(error))
    problem, place = (match["problem"], match["path"] or "") if match else (str(error), "")
    path: list[str] = []
    for name, index in STEP.findall(place):
        if index == "...":
            # msgspec does not tell which key of a mapping it was: find the first whose value it refuses.
            return _fault_in_mapping(content, _element(type_), path, problem)
        content = content[name] if name else content[int(index)]
        type_ = _field(type_, name) if name else _element(type_)
        path.append(name or index)
    if unknown := UNKNOWN_FIELD.search(problem):
        path.append(unknown[1])
    return _Fault(path, problem, type_)


def _fault_in_mapping(content: dict[Any, Any], type_: Any, path: list[str], problem: str) -> _Fault:
    for key, value in content.items():
        try:
            msgspec.convert(value, type_, dec_hook=_decode)
        except msgspec.ValidationError as error:
            inner = _fault(error, value, type_)
            return _Fault([*path, str(key), *inner.path], inner.problem, inner.type_)
    return _Fault(path, problem, type_)


def _structs(type_: Any) -> list[type[msgspec.Struct]]:
    """The configuration types among a type's alternatives."""
    choices = [type_, *getattr(type_, "__args__", ())]
    return [choice for choice in choices if isinstance(choice, type) and issubclass(choice, msgspec.Struct)]


def _words(type_: Any) -> list[str]:
    """The plain words that may stand for a value."""
    literals = [choice for choice in (type_, *get_args(type_)) if get_origin(choice) is Literal]
    return [word for literal in literals for word in get_args(literal)]


def _keys(type_: Any) -> list[str]:
    return [name for struct in _structs(type_) for name in struct.__struct_encode_fields__]


def _field(type_: Any, name: str) -> Any:
    return next(hints[name] for hints in map(get_type_hints, _structs(type_)) if name in hints)


def _element(type_: Any) -> Any:
    """What a list or a mapping holds, also where it may be missing."""
    containers = [choice for choice in (type_, *getattr(type_, "__args__", ())) if get_origin(choice) in {list, dict}]
    return get_args(containers[0])[-1]


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
