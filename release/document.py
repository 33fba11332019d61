"""JSON documents into frozen dataclasses and back, by the dataclass's own type hints.

A field without a default must be there; a value of another type is refused, with the path to it in
the message. Fields that are not known are passed over, so that a reader of version N-1 can read what
version N writes. Knows no particular document.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class DocumentError(ValueError):
    """A value is missing or of the wrong type; the message begins with the path to it."""


def parse(kind: type[T], value: object, path: str = "") -> T:
    """`value` as `kind`, a frozen dataclass. Raises DocumentError; the class may refuse with ValueError."""
    if not isinstance(value, Mapping):
        raise DocumentError(f"{path or 'the document'} must be an object, not {_name(value)}")
    hints = typing.get_type_hints(kind)
    given: dict[str, Any] = {}
    for spec in dataclasses.fields(kind):  # type: ignore[arg-type]
        where = f"{path}.{spec.name}" if path else spec.name
        if spec.name in value:
            given[spec.name] = _read(hints[spec.name], value[spec.name], where)
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise DocumentError(f"{where} is missing")
    try:
        return kind(**given)
    except DocumentError:
        raise
    except ValueError as error:
        raise DocumentError(f"{path or 'the document'}: {error}") from error


def plain(value: Any) -> Any:
    """A dataclass, or what is in it, as JSON's own types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {spec.name: plain(getattr(value, spec.name)) for spec in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [plain(entry) for entry in value]
    return value


def _read(hint: Any, value: object, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _read(next(entry for entry in arguments if entry is not type(None)), value, path)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise DocumentError(f"{path} must be a list, not {_name(value)}")
        return tuple(_read(arguments[0], entry, f"{path}[{index}]") for index, entry in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise DocumentError(f"{path} must be an object, not {_name(value)}")
        return {str(key): _read(arguments[1], entry, f"{path}.{key}") for key, entry in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return parse(hint, value, path)
    return _scalar(hint, value, path)


def _scalar(hint: Any, value: object, path: str) -> Any:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise DocumentError(f"{path} must be a finite number, not {number}")
        return number
    if hint is bool or isinstance(value, bool):
        fits = hint is bool and isinstance(value, bool)
    else:
        fits = isinstance(value, hint)
    if not fits:
        raise DocumentError(f"{path} must be {_KINDS.get(hint, hint)}, not {_name(value)}")
    return value


_KINDS: Mapping[Any, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _name(value: object) -> str:
    if value is None:
        return "null"
    return {dict: "an object", list: "a list", bool: "true or false", str: "text"}.get(type(value), repr(value))
