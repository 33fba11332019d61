"""How far two models' predictions lie apart, position by position; and how well each predicts.

    perplexity   exp of the mean surprise (negative log-likelihood, nats) of the token that really follows
    kl           KL(reference ‖ subject) of the distributions over the vocabulary, in nats, its mean over positions
    top-1        the share of positions where both find the same token likeliest

Kept are three numbers a position, never logits. Ties go to the lower token id on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quantize.errors import QuantizeError
from quantize.evaluation_text import Window
from quantize.subjects import LanguageModel
from release.planes import Floats

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 128


@dataclass(slots=True)
class Track:
    """One model over all positions, in their order: surprise, likeliest id, and distance to the reference."""

    surprises: list[Floats] = field(default_factory=list)
    likeliest: list[NDArray[np.int64]] = field(default_factory=list)
    divergences: list[Floats] = field(default_factory=list)

    @property
    def perplexity(self) -> float:
        return math.exp(float(np.concatenate(self.surprises).mean(dtype=np.float64)))

    @property
    def kl(self) -> float:
        return float(self.kl_by_position.mean(dtype=np.float64))

    @property
    def kl_by_position(self) -> Floats:
        return np.concatenate(self.divergences)

    @property
    def tops(self) -> NDArray[np.int64]:
        return np.concatenate(self.likeliest)


def agreement(left: Track, right: Track) -> float:
    """Top-1 agreement of two tracks over the same positions."""
    return float((left.tops == right.tops).mean())


def walk(
    reference: LanguageModel,
    subjects: Mapping[str, LanguageModel],
    windows: Sequence[Window],
    *,
    told: Callable[[int], None],
) -> tuple[Track, dict[str, Track]]:
    """Takes all models over the same windows, chunk by chunk. `told` hears of positions done.

    Raises QuantizeError where a model gives something that is no number: no figure is better than a wrong one.
    """
    import torch

    first, tracks = Track(), {name: Track() for name in subjects}
    with torch.inference_mode():
        for inputs, targets, start in _chunks(windows):
            expected = _log_probs(reference.logits(inputs, start), "the source")
            following = torch.tensor(targets)[:, None]
            _note(first, expected, following)
            weights = expected.exp()
            for name, subject in subjects.items():
                found = _log_probs(subject.logits(inputs, start), name)
                _note(tracks[name], found, following)
                gap = (weights * (expected - found)).sum(-1)
                tracks[name].divergences.append(gap.clamp_(min=0).numpy().copy())
            told(len(inputs))
    return first, tracks


def _chunks(windows: Sequence[Window]) -> Iterator[tuple[Sequence[int], Sequence[int], int]]:
    for window in windows:
        for start in range(0, len(window.inputs), CHUNK):
            yield window.inputs[start : start + CHUNK], window.targets[start : start + CHUNK], start


def _log_probs(logits: Floats, name: str) -> Tensor:
    import torch

    found = torch.from_numpy(logits).log_softmax(-1)
    if not bool(found.isfinite().all()):
        raise QuantizeError(f"{name} gives logits that are no numbers: the build is broken")
    return found


def _note(track: Track, log_probs: Tensor, following: Tensor) -> None:
    track.surprises.append((-log_probs.gather(1, following)[:, 0]).numpy().copy())
    track.likeliest.append(log_probs.argmax(-1).numpy().copy())
