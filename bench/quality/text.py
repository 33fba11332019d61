"""What quality is compared on: questions people really asked, or Weir's own text where no data set is given.

From the data sets: arithmetic problems (GSM8K), turns of service dialogues (SGD) and yes-no questions
(BoolQ), mixed, so that every window of text holds some of each. None of it is in the calibration text.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from bench.quality.errors import MeasurementError
from quantize.evaluation_text import digest, read_text

OWN = "weir's own evaluation text"
_QUESTIONS = 400  # of each set; several windows of 512 tokens more than are drawn


@dataclass(frozen=True, slots=True)
class EvaluationText:
    """A text and where it is from."""

    text: str
    name: str

    @property
    def digest(self) -> str:
        return digest(self.text)


def evaluation_text(data: Path | None, seed: int) -> EvaluationText:
    """The text to compare on; `seed` draws the questions. Raises MeasurementError where `data` lacks a set."""
    if data is None:
        return EvaluationText(read_text(), OWN)
    drawn = [_drawn(data / place, said, seed) for place, said in _SETS.items()]
    mixed = chain.from_iterable(zip(*drawn, strict=True))
    return EvaluationText("\n\n".join(mixed) + "\n", "gsm8k + sgd + boolq questions")


def _drawn(path: Path, said: Callable[[Mapping[str, Any]], str], seed: int) -> list[str]:
    texts = [said(record) for record in _records(path)]
    if len(texts) < _QUESTIONS:
        raise MeasurementError(f"{path} holds {len(texts)} questions; {_QUESTIONS} are needed")
    return random.Random(seed).sample(texts, _QUESTIONS)


def _records(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as handle:
            yield from map(json.loads, handle)
    except FileNotFoundError as error:
        raise MeasurementError(f"{path} is not there: give the data sets' folder with --data or WEIR_DATA") from error
    except (OSError, EOFError, ValueError) as error:
        raise MeasurementError(f"{path} is not a compressed file of JSON lines: {error}") from error


def _question(record: Mapping[str, Any]) -> str:
    return str(record["question"])


def _dialogue(record: Mapping[str, Any]) -> str:
    return f"{record['prev_system']}\n{record['text']}".strip()


_SETS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "qa/gsm8k_test.jsonl.gz": _question,
    "slots/sgd_test_3000.jsonl.gz": _dialogue,
    "qa/boolq_dev_nopassage.jsonl.gz": _question,
}
