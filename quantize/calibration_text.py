"""The text that a compensating method sees a model's inputs with, as sequences of token ids.

A file of passages with a line of four dashes between them. A passage that begins with a role and a
colon is a conversation, a turn a role: it is written the way the model's chat template writes it,
because the tokens around turns are where a chat model's inputs are most unlike plain text. The text
that comes with Weir was written for this and shares no request with the demo.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from quantize.errors import QuantizeError
from runtime.tokenizer import TemplateError, Tokenizer, TokenizerError

LENGTH = 256
_MOST_SEQUENCES = 48
_BETWEEN = re.compile(r"^----\n", re.MULTILINE)
_TURN = re.compile(r"^(system|user|assistant): ", re.MULTILINE)


def read_text(path: Path | None = None) -> str:
    """The text at `path`, or the one that comes with Weir. Raises QuantizeError."""
    if path is None:
        return resources.files("quantize").joinpath("calibration_text.txt").read_text("utf-8")
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QuantizeError(f"the calibration text {path} cannot be read: {error}") from error


def text_digest(text: str) -> str:
    """SHA-256 of a calibration text."""
    return hashlib.sha256(text.encode()).hexdigest()


def sequences(text: str, folder: Path, length: int = LENGTH) -> list[list[int]]:
    """`text` in the tokens of the model in `folder`, cut into pieces of `length`; what is left over is dropped.

    Raises QuantizeError where the text does not fill one piece or the folder's tokenizer cannot be used.
    """
    try:
        tokenizer = Tokenizer.load(folder)
        tokens = [token for passage in _passages(text, tokenizer) for token in passage]
    except (TokenizerError, TemplateError) as error:
        raise QuantizeError(str(error)) from error
    pieces = [tokens[start : start + length] for start in range(0, len(tokens) - length + 1, length)]
    if not pieces:
        raise QuantizeError(f"the calibration text has {len(tokens)} tokens, at least {length} are needed")
    return pieces[:_MOST_SEQUENCES]


def _passages(text: str, tokenizer: Tokenizer) -> Iterator[list[int]]:
    for passage in _BETWEEN.split(text):
        if tokenizer.has_chat_template and _TURN.match(passage):
            yield _conversation(passage, tokenizer)
        else:
            yield tokenizer.encode(f"{passage.rstrip()}\n\n", special_tokens=False)


def _conversation(passage: str, tokenizer: Tokenizer) -> list[int]:
    _, *parts = _TURN.split(passage)
    turns = [(role, content.strip()) for role, content in zip(parts[::2], parts[1::2], strict=True)]
    answer = turns.pop()[1] if turns[-1][0] == "assistant" and len(turns) > 1 else ""
    return tokenizer.encode_chat(turns) + tokenizer.encode(answer, special_tokens=False)
