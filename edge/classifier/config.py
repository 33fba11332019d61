"""What one engine process of a classifier is told at its start: a JSON object, its only argument."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from edge.engine.config import ProcessConfig


class ClassifierConfig(ProcessConfig):
    """A batch holds at most `batch_rows` texts and `batch_tokens` tokens, padding included.

    `max_padding` of them may be padding. A text that comes while nothing runs is run at once; `linger_ms` above 0
    has it wait that long for company.
    """

    batch_rows: Annotated[int, Field(ge=1, le=1024)] = 32
    batch_tokens: Annotated[int, Field(ge=16, le=1 << 20)] = 256
    max_padding: Annotated[float, Field(ge=0, le=1)] = 0.2
    linger_ms: Annotated[float, Field(ge=0, le=1000)] = 0.0
