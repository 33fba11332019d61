"""What the demo asks, and the other items its calibrator is fitted on.

Both are of the same kinds and written for this demo. No text that is asked is ever fitted on:
`apart` checks it by hash every time, and the demo refuses to run otherwise. Equal seeds give equal
calibration items on every machine.

Must not know: models, releases, processes.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

SEED = 20_26


@dataclass(frozen=True, slots=True)
class Item:
    """One request: a short conversation that ends with the customer's `text`.

    A closed item has one right answer, compared as text; an open one is compared by likelihood.
    """

    task: str
    kind: Literal["closed", "open"]
    text: str
    messages: tuple[Mapping[str, str], ...]
    max_tokens: int
    stop: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Of the conversation, ignoring case and space: what makes two items the same question."""
        said = " ".join(f"{turn['role']}: {turn['content']}" for turn in self.messages)
        return hashlib.sha256(" ".join(said.lower().split()).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The demo's items: `asked`, and `fitted` for the calibrator."""

    asked: tuple[Item, ...]
    fitted: tuple[Item, ...]

    def apart(self) -> None:
        """Raises ValueError when an item that is asked is also fitted on, or when one appears twice."""
        asked, fitted = _digests(self.asked), _digests(self.fitted)
        if both := asked & fitted:
            raise ValueError(f"{len(both)} of the demo's questions are among its calibration items")


def _digests(items: Sequence[Item]) -> set[str]:
    digests = {item.digest for item in items}
    if len(digests) != len(items):
        raise ValueError(f"{len(items) - len(digests)} items appear twice")
    return digests


def load(seed: int = SEED) -> Catalogue:
    """The questions of questions.json and items made from the patterns of calibration.json."""
    asked, patterns = _read("questions.json"), _read("calibration.json")
    tasks = asked["tasks"]
    fitted = [
        _item(name, tasks[name], text)
        for name, task in patterns["tasks"].items()
        for text in _fill(task["patterns"], patterns["values"], task["items"], random.Random(f"{seed}/{name}"))
    ]
    return Catalogue(
        asked=tuple(_item(name, tasks[name], text) for name, text in asked["questions"]),
        fitted=tuple(fitted),
    )


def _read(name: str) -> Any:
    return json.loads(resources.files("weir.demo").joinpath(name).read_text("utf-8"))


def _item(name: str, task: Mapping[str, Any], text: str) -> Item:
    turns = [{"role": "system", "content": task["instruction"]}]
    for question, answer in task["shots"]:
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    turns.append({"role": "user", "content": text})
    return Item(name, task["kind"], text, tuple(turns), task["max_tokens"], tuple(task["stop"]))


def _fill(
    patterns: Sequence[str], values: Mapping[str, Sequence[str]], wanted: int, generator: random.Random
) -> list[str]:
    """`wanted` different texts, the patterns taken in turn."""
    texts: dict[str, None] = {}
    for attempt in range(wanted * 20):
        pattern = patterns[attempt % len(patterns)]
        chosen = {name: generator.choice(values[name]) for name in re.findall(r"{(\w+)}", pattern)}
        texts.setdefault(pattern.format(**chosen))
        if len(texts) == wanted:
            return list(texts)
    raise ValueError(f"the patterns yield only {len(texts)} of {wanted} different texts")


def as_records(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Items as plain JSON objects, as `weir quantize --items FILE` reads them, one a line."""
    return [
        {
            "task": item.task,
            "kind": item.kind,
            "messages": [dict(turn) for turn in item.messages],
            "max_tokens": item.max_tokens,
            "stop": list(item.stop),
        }
        for item in items
    ]
