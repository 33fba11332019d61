"""What a calibrator is fitted on: short conversations, closed or open, each with a digest of its text.

The digest ignores case and white space, so that a question asked later can be recognized as one that
was fitted on. Items come from code or from a file of JSON lines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from quantize.errors import QuantizeError

Kind = Literal["closed", "open"]
Message = tuple[str, str]  # role, content


@dataclass(frozen=True, slots=True)
class CalibrationItem:
    """One request. A closed item has one right answer; an open one is compared by likelihood.

    `task` groups items that share instructions; `stop` ends an answer, as in a request.
    """

    messages: tuple[Message, ...]
    kind: Kind
    max_tokens: int
    stop: tuple[str, ...] = ()
    task: str = ""

    def __post_init__(self) -> None:
        if not self.messages:
            raise ValueError("a calibration item needs at least one message")
        if self.kind not in ("closed", "open"):
            raise ValueError(f"kind must be 'closed' or 'open', not {self.kind!r}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")

    @property
    def digest(self) -> str:
        """SHA-256 of the conversation, ignoring case and white space."""
        said = " ".join(f"{role}: {content}" for role, content in self.messages)
        return hashlib.sha256(" ".join(said.lower().split()).encode()).hexdigest()


def items_digest(items: Iterable[CalibrationItem]) -> str:
    """SHA-256 over the items' digests, in no particular order."""
    return hashlib.sha256("\n".join(sorted(item.digest for item in items)).encode()).hexdigest()


def from_records(records: Iterable[Mapping[str, Any]]) -> tuple[CalibrationItem, ...]:
    """Items from plain objects {task, kind, messages: [{role, content}], max_tokens, stop}."""
    items = []
    for number, record in enumerate(records, 1):
        try:
            items.append(
                CalibrationItem(
                    messages=tuple((str(turn["role"]), str(turn["content"])) for turn in record["messages"]),
                    kind=record["kind"],
                    max_tokens=int(record["max_tokens"]),
                    stop=tuple(map(str, record.get("stop", ()))),
                    task=str(record.get("task", "")),
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise QuantizeError(f"calibration item {number} is wrong: {error}") from error
    return tuple(items)


def read_items(path: Path) -> tuple[CalibrationItem, ...]:
    """Items from a file of JSON lines. Raises QuantizeError naming the line."""
    try:
        lines: Sequence[str] = path.read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines if line.strip()]
    except OSError as error:
        raise QuantizeError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise QuantizeError(f"{path} is not a file of JSON lines: {error}") from error
    return from_records(records)
