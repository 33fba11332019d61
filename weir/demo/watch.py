"""Reads the edge node's event log while the node writes it: which precision, which thresholds, why.

The node writes one JSON object a line to its log; lines that are none belong to somebody else and
are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge.rehearsal import REHEARSAL


@dataclass(frozen=True, slots=True)
class Switch:
    """Another precision was put in force, with the planner's words for it."""

    precision: int
    before: int
    weight_digest: str
    load_ms: float
    why: str


@dataclass(slots=True)
class EventLog:
    """Follows one log; `look` reads what has come since."""

    path: Path
    switches: list[Switch] = field(default_factory=list)
    thresholds: dict[int, float] = field(default_factory=dict)
    plan: str = ""  # the planner's last words
    rehearsed: int = 0  # activations that only measured
    _offset: int = 0
    _precision: int = 0

    def look(self) -> None:
        """Takes in every whole line written since the last look."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for event in _events(whole.decode("utf-8", "replace")):
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        match event.get("event"):
            case "PrecisionChanged" | "PrecisionWeighed":
                plan = event["plan"]
                self.plan = f"{plan['reason']}: {plan['text']}"
            case "ThresholdsChanged":
                self.thresholds[int(event["precision"])] = float(event["threshold_end"])
            case "EngineChanged" if event["available"]:
                self._precision = int(event["precision"])
            case "Activated":
                self._activated(event)

    def _activated(self, event: dict[str, Any]) -> None:
        precision = int(event["precision"])
        if event["why"] == REHEARSAL:
            self.rehearsed += 1
        elif self._precision and precision != self._precision:
            self.switches.append(
                Switch(precision, self._precision, event["weight_digest"], float(event["load_ms"]), event["why"])
            )
        self._precision = precision


def _events(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        start = line.find('{"event":')
        if start < 0:
            continue
        try:
            event = json.loads(line[start:])
        except ValueError:
            continue
        # A log line may itself be JSON that carries the event as its message.
        if isinstance(event, dict):
            yield event
