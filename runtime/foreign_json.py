"""JSON that others wrote: callers, models, upstreams. Its numbers are bounded before they are built.

An integer of n digits costs n² to build, and Python refuses 4,300 of them in words of its own. What no double holds
(1e999) and what JSON does not have (NaN, Infinity) breaks whoever computes with it or writes it again.

Must not know: what the JSON is for, nor how many values its reader can bear.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

MOST_DIGITS = 100
_MOST_SHOWN = 80
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG = b"0" * MOST_DIGITS
_Built = TypeVar("_Built")


class NotJson(ValueError):
    """It is no JSON, or none that can be read; the message says where or why."""


class TooDeep(NotJson):
    """It is nested more deeply than can be read."""


class BadNumber(NotJson):
    """A number is too large or too long. `path` says which, where that is known: `messages[0].content`."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


def read(data: str | bytes) -> Any:
    """The document, all of its numbers finite; bytes are UTF-8. Raises NotJson, TooDeep, BadNumber."""
    numbers = _Numbers()
    document = _told(
        lambda: json.loads(
            _text(data), parse_int=numbers.whole, parse_float=numbers.decimal, parse_constant=numbers.no_constant
        )
    )
    numbers.demand_good(document)
    return document


def read_at(text: str, at: int) -> tuple[Any, int]:
    """The document that begins at `at`, and where it ends. Raises NotJson, TooDeep, BadNumber."""
    numbers = _Numbers()
    decoder = json.JSONDecoder(parse_int=numbers.whole, parse_float=numbers.decimal, parse_constant=numbers.no_constant)
    document, end = _told(lambda: decoder.raw_decode(text, at))
    numbers.demand_good(document)
    return document, end


def read_with_infinities(data: bytes) -> Any:
    """The same with NaN, and what is too large as infinite: log-probs of some servers are. Raises NotJson, TooDeep."""
    # A call for each of 100,000 integers takes 20 ms.
    whole = _Numbers().whole if _LONG in data.translate(_ZEROS) else None
    return _told(lambda: json.loads(_text(data), parse_int=whole))


class _Numbers:
    """Builds a document's numbers. One that is too large becomes infinite, and is remembered."""

    def __init__(self) -> None:
        self._fault = ""

    def whole(self, digits: str) -> int | float:
        length = len(digits) - digits.startswith("-")
        if length <= MOST_DIGITS:
            return int(digits)
        self._fault = self._fault or f"a number of {length} digits is too long; at most {MOST_DIGITS}"
        return -math.inf if digits.startswith("-") else math.inf

    def decimal(self, digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            self._fault = self._fault or f"the number {digits:.40} is too large; give a finite number"
        return value

    def no_constant(self, name: str) -> NoReturn:
        raise NotJson(f"{name} is not JSON; give a finite number")

    def demand_good(self, document: Any) -> None:
        if self._fault:
            raise BadNumber(self._fault, next(_infinite(document), ""))


def _text(data: str | bytes) -> str:
    # Else the library guesses at UTF-16 and UTF-32, in which digits are not where they are looked for.
    return data if isinstance(data, str) else data.decode("utf-8-sig")


def _infinite(document: Any) -> Iterator[str]:
    """The paths of its infinite numbers, in the order in which they were written. Bounded, whatever the names are."""
    waiting: list[tuple[str, Any]] = [("", document)]
    while waiting:
        path, value = waiting.pop()
        path = path[:_MOST_SHOWN]
        if isinstance(value, dict):
            lead = f"{path}." if path else ""
            waiting.extend((lead + name[:_MOST_SHOWN], part) for name, part in reversed(value.items()))
        elif isinstance(value, list):
            waiting.extend((f"{path}[{at}]", value[at]) for at in reversed(range(len(value))))
        elif isinstance(value, float) and math.isinf(value):
            yield "".join(char if char.isprintable() else "?" for char in path)


def _told(build: Callable[[], _Built]) -> _Built:
    try:
        return build()
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg} at character {error.pos}") from error
    except UnicodeDecodeError as error:
        raise NotJson(f"byte {error.start} is no {error.encoding}") from error
    except RecursionError as error:
        raise TooDeep("it is nested too deeply") from error
