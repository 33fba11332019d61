"""How a classifier does on labelled texts, and how far it lies from the one it was made from.

    accuracy   the share of texts that get the label they carry
    kl         KL(reference ‖ subject) over the labels, in nats, its mean over texts
    top-1      the share of texts to which both give the same label

A CSV of labelled texts has a header with the columns `text` and `label`.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantize.errors import QuantizeError
from quantize.subjects import Classifier
from release.planes import Floats


@dataclass(frozen=True, slots=True)
class LabelledText:
    """One text and the label it should get."""

    text: str
    label: str


@dataclass(slots=True)
class Verdicts:
    """One classifier over all texts, in their order."""

    chosen: list[int] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        return float(np.mean(self.right))

    @property
    def kl_by_position(self) -> Floats:
        return np.asarray(self.divergences, np.float32)

    @property
    def tops(self) -> NDArray[np.int64]:
        return np.asarray(self.chosen, np.int64)


def read_csv(path: Path) -> tuple[LabelledText, ...]:
    """The labelled texts of a file. Raises QuantizeError naming the line."""
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            reader = csv.DictReader(handle)
            if not {"text", "label"} <= set(reader.fieldnames or ()):
                raise QuantizeError(f"{path} must begin with a line that names the columns text and label")
            found = []
            for row in reader:
                if not row["text"] or not row["label"]:
                    raise QuantizeError(f"{path}, line {reader.line_num}: text or label is empty")
                found.append(LabelledText(row["text"], row["label"]))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise QuantizeError(f"{path} cannot be read: {error}") from error
    if not found:
        raise QuantizeError(f"{path} holds no labelled text")
    return tuple(found)


def digest(items: Iterable[LabelledText]) -> str:
    """SHA-256 over texts and labels, in their order."""
    content = "".join(f"{item.label}\0{item.text}\0" for item in items)
    return hashlib.sha256(content.encode()).hexdigest()


def judge(
    reference: Classifier,
    subjects: Mapping[str, Classifier],
    items: Sequence[LabelledText],
    *,
    told: Callable[[int], None],
) -> tuple[Verdicts, dict[str, Verdicts]]:
    """Gives every text to every classifier. `told` hears of texts done. Raises QuantizeError.

    A label that no classifier knows counts as never met, not as an error: it is what a user would see.
    """
    labels = list(reference.labels)
    for name, subject in subjects.items():
        if list(subject.labels) != labels:
            raise QuantizeError(f"the labels of {name} are not those of its source, or stand in another order")
    first, verdicts = Verdicts(), {name: Verdicts() for name in subjects}
    for item in items:
        expected = _log_probs(reference.logits(item.text), "the source")
        _note(first, expected, labels, item)
        for name, subject in subjects.items():
            found = _log_probs(subject.logits(item.text), name)
            _note(verdicts[name], found, labels, item)
            gap = float((np.exp(expected) * (expected - found)).sum())
            verdicts[name].divergences.append(max(gap, 0.0))
        told(1)
    return first, verdicts


def _note(verdicts: Verdicts, log_probs: NDArray[np.float64], labels: Sequence[str], item: LabelledText) -> None:
    chosen = int(log_probs.argmax())
    verdicts.chosen.append(chosen)
    verdicts.right.append(labels[chosen] == item.label)


def _log_probs(logits: Floats, name: str) -> NDArray[np.float64]:
    values = np.asarray(logits, np.float64)
    shifted = values - values.max()
    found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    if not np.isfinite(found).all():
        raise QuantizeError(f"{name} gives logits that are no numbers: the build is broken")
    return found
