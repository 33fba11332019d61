"""The text that quality is measured on, as windows of token ids; never the text errors were compensated on.

Weir's own is prose, letters, reports and a scene of a play, written for this: another kind of text than the
calibration text's conversations, snippets and small facts. Figures are of the model on this text; a
deployment that cares gives a text of its own.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from quantize.errors import QuantizeError
from runtime.tokenizer import Tokenizer, TokenizerError

LENGTH = 512
LEAST_POSITIONS = 4096
SEED = 0
# Eight words in a row are rarely written twice by chance; a few of them may be a proverb or a letter's end.
_SHINGLE = 8
_MOST_SHARED = 0.02
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of text: token ids, and for each of them the one that follows."""

    inputs: Sequence[int]
    targets: Sequence[int]


def read_text(path: Path | None = None) -> str:
    """The text at `path`, or the one that comes with Weir. Raises QuantizeError."""
    if path is None:
        return resources.files("quantize").joinpath("evaluation_text.txt").read_text("utf-8")
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QuantizeError(f"the evaluation text {path} cannot be read: {error}") from error


def digest(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def demand_apart(evaluation: str, calibration: str) -> None:
    """Raises QuantizeError where the weights were made on the very text they are to be measured on."""
    if digest(evaluation) == digest(calibration):
        raise QuantizeError("the evaluation text is the calibration text: figures on it would flatter; give another")
    mine, other = _shingles(evaluation), _shingles(calibration)
    share = len(mine & other) / max(len(mine), 1)
    if share > _MOST_SHARED:
        raise QuantizeError(
            f"{share:.0%} of the evaluation text also stands in the calibration text: figures on it would flatter; "
            "give a text of another kind"
        )


def windows(
    text: str, folder: Path, *, context: int, least: int = LEAST_POSITIONS, seed: int = SEED
) -> tuple[Window, ...]:
    """Windows of `text` in the tokens of the model in `folder`, `least` positions or a little more in all.

    Every window begins with what the tokenizer puts before a text. Where the text holds more windows than are
    needed, `seed` draws them. Raises QuantizeError where it holds fewer.
    """
    try:
        tokenizer = Tokenizer.load(folder)
    except TokenizerError as error:
        raise QuantizeError(str(error)) from error
    lead = tokenizer.encode("")
    tokens = tokenizer.encode(text, special_tokens=False)
    length = min(LENGTH, context) - len(lead)
    starts = range(0, len(tokens) - length, length)
    needed = -(-least // (length + len(lead)))
    if len(starts) < needed:
        raise QuantizeError(
            f"the evaluation text has {len(tokens)} tokens for this model; {needed * length + 1} are needed"
        )
    chosen = sorted(random.Random(seed).sample(starts, needed))
    return tuple(_window(lead, tokens[start : start + length + 1]) for start in chosen)


def _window(lead: Sequence[int], tokens: Sequence[int]) -> Window:
    every = [*lead, *tokens]
    return Window(every[:-1], every[1:])


def _shingles(text: str) -> frozenset[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return frozenset(tuple(words[at : at + _SHINGLE]) for at in range(len(words) - _SHINGLE + 1))
