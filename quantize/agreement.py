"""Agreement: would the cloud have answered the same?

Closed answers agree when they are equal after normalization. Open answers have no such test, so a
proxy stands in, and is named so wherever it is shown: the mean log-prob per token of the edge's
answer under the cloud, given the same prompt, must reach a bar. The bar is the median of the scores
of answers the cloud itself wrote for the open items, sampled at temperature 1: the edge's answer must
be at least as likely to the cloud as the middle one of its own. A greedy answer would be the wrong
yardstick, because its likelihood is far above that of any text chosen otherwise. What the proxy
cannot see is a likely text that says the opposite.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

BAR_QUANTILE = 0.5
_ARTICLES = frozenset({"a", "an", "the"})


def normalize(answer: str) -> str:
    """A closed answer reduced to its words and digits: case, punctuation, articles and spaces do not count."""
    folded = unicodedata.normalize("NFKC", answer).casefold()
    kept = "".join(char if char.isalnum() else "" if char in ",.'" else " " for char in folded)
    return " ".join(word for word in kept.split() if word not in _ARTICLES)


def same_answer(edge: str, cloud: str) -> bool:
    """Whether two closed answers agree. An empty answer agrees with nothing."""
    left = normalize(edge)
    return bool(left) and left == normalize(cloud)


def open_bar(own_scores: Sequence[float]) -> float:
    """The bar for open answers, from scores of the cloud's own sampled answers; infinite without any."""
    return float(np.quantile(own_scores, BAR_QUANTILE)) if len(own_scores) else float("inf")


def clears(score: float | None, bar: float) -> bool:
    """Whether an open answer agrees by the proxy. An empty answer has no score and agrees with nothing."""
    return score is not None and score >= bar
