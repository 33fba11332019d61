"""How a classifier does on labelled texts, and how far it lies from the one it was made from.

    accuracy   the share of texts that get the label they carry
    kl         KL(reference ‖ subject) over the labels, in nats, its mean over texts
    top-1      the share of texts to which both give the same label

Where labels do not exclude each other, a text's label is the whole set of those that hold, and the KL is summed over
the labels, each a yes or no.

A CSV of labelled texts has a header with the columns `text` and `label`; or `text` and `labels`, with `|` between
labels that do not exclude each other (none may hold).
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
from release.manifest import Labelling
from release.planes import Floats

SEPARATOR = "|"  # between labels that do not exclude each other


@dataclass(frozen=True, slots=True)
class LabelledText:
    """One text and the label it should get; `labels` where they do not exclude each other, `label` is all of them."""

    text: str
    label: str
    labels: tuple[str, ...] | None = None


@dataclass(slots=True)
class Verdicts:
    """One classifier over all texts, in their order. `chosen` numbers the answers: equal ones have one number."""

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
            columns = set(reader.fieldnames or ())
            if not ({"text", "label"} <= columns or {"text", "labels"} <= columns):
                raise QuantizeError(
                    f"{path} must begin with a line that names the columns text and label (or labels, for several)"
                )
            several = "label" not in columns
            found = [_item(path, reader.line_num, row, several=several) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise QuantizeError(f"{path} cannot be read: {error}") from error
    if not found:
        raise QuantizeError(f"{path} holds no labelled text")
    return tuple(found)


def _item(path: Path, line: int, row: Mapping[str, str | None], *, several: bool) -> LabelledText:
    text, label = row["text"], row["labels" if several else "label"]
    if not text or label is None or not (label or several):
        raise QuantizeError(f"{path}, line {line}: text or label is empty")
    return of_many(text, label.split(SEPARATOR)) if several else LabelledText(text, label)


def of_many(text: str, labels: Iterable[str]) -> LabelledText:
    """A text with labels that do not exclude each other."""
    held = tuple(sorted({label.strip() for label in labels} - {""}))
    return LabelledText(text, SEPARATOR.join(held), held)


def several(items: Sequence[LabelledText]) -> bool:
    """Whether the texts' labels do not exclude each other."""
    return bool(items) and items[0].labels is not None


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
    labelling: Labelling | None = None,
) -> tuple[Verdicts, dict[str, Verdicts]]:
    """Gives every text to every classifier. `told` hears of texts done. Raises QuantizeError.

    A label that no classifier knows counts as never met, not as an error: it is what a user would see.
    """
    labels = list(reference.labels)
    for name, subject in subjects.items():
        if list(subject.labels) != labels:
            raise QuantizeError(f"the labels of {name} are not those of its source, or stand in another order")
    rule = Answers(labels, labelling or Labelling())
    if rule.labelling.multi_label is not several(items):
        raise QuantizeError(
            "labels that do not exclude each other are measured on texts with a labels column, others on a label column"
        )
    first, verdicts, numbers = Verdicts(), {name: Verdicts() for name in subjects}, dict[str, int]()

    def note(verdict: Verdicts, logits: Floats, item: LabelledText) -> None:
        answer = rule.answer(logits)
        verdict.chosen.append(numbers.setdefault(answer, len(numbers)))
        verdict.right.append(answer == item.label)

    for item in items:
        given = reference.logits(item.text)
        expected = rule.log_probs(given, "the source")
        note(first, given, item)
        for name, subject in subjects.items():
            logits = subject.logits(item.text)
            found = rule.log_probs(logits, name)
            note(verdicts[name], logits, item)
            gap = float((np.exp(expected) * (expected - found)).sum())
            verdicts[name].divergences.append(max(gap, 0.0))
        told(1)
    return first, verdicts


@dataclass(frozen=True, slots=True)
class Answers:
    """What a classifier answers: its likeliest label, or all that hold, with `|` between them, sorted."""

    labels: Sequence[str]
    labelling: Labelling

    def answer(self, logits: Floats) -> str:
        if not self.labelling.multi_label:
            return self.labels[int(np.argmax(logits))]
        own = 1 / (1 + np.exp(-np.clip(np.asarray(logits, np.float64), -500, 500)))
        held = [label for index, label in enumerate(self.labels) if own[index] >= self.labelling.threshold(index)]
        return SEPARATOR.join(sorted(held))

    def log_probs(self, logits: Floats, name: str) -> NDArray[np.float64]:
        """Of every outcome: the labels, or of each label that it holds and that it does not. Raises QuantizeError."""
        values = np.asarray(logits, np.float64)
        if self.labelling.multi_label:
            found: NDArray[np.float64] = -np.logaddexp(0, np.stack([-values, values]))
        else:
            shifted = values - values.max()
            found = shifted - np.log(np.exp(shifted).sum())
        if not np.isfinite(found).all():
            raise QuantizeError(f"{name} gives logits that are no numbers: the build is broken")
        return found
