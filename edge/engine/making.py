"""What weights need of a model and of what runs requests on it: the parts by which an engine is made.

Shared by the decoder's engine and the classifier's, each with a model and a batcher of its own. Must not know: how
either is loaded, or when.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from edge.engine.candidate import Candidate
from runtime.tokenizer import Tokenizer
from wire.description import ModelInfo
from wire.engine import EngineStatus


class Loaded(Protocol):
    """One release at one precision in memory; `weights` is the object whose end gives that memory back."""

    @property
    def directory(self) -> Path: ...
    @property
    def info(self) -> ModelInfo: ...
    @property
    def load_ms(self) -> float: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def here(self) -> Callable[[], tuple[int, ...]] | None:
        """The precisions that lie in the folder now."""
        ...

    @property
    def weights(self) -> object: ...


class Running(Protocol):
    """What runs requests on models: a thread, a queue before it."""

    @property
    def active(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def decode_steps(self) -> int: ...
    @property
    def left_s(self) -> float:
        """Seconds until what is here has ended: rarely too few."""
        ...

    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...


M = TypeVar("M", bound=Loaded)
R = TypeVar("R", bound=Running)


class Needs(Protocol):
    """Of an engine's configuration, what weights are loaded by."""

    @property
    def release_dir(self) -> Path: ...
    @property
    def precision(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def memory_budget_bytes(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Making(Generic[M, R]):
    """How a release becomes something that answers.

    `open` verifies one (directory, precision, the tokenizer that serves meanwhile); `begin` runs a model (told when
    it broke, told when a model was let go); `switch` has new requests run on another, running ones finish; `shed`
    gives back memory that is only nice to have, and may block; `promised` tells what requests may still come to take
    beside what is taken; `settle` is called when weights that were replaced have given their memory back; `told` adds
    to a status what is known of running requests.
    """

    open: Callable[[Path, int, Tokenizer | None], Candidate[M]]
    begin: Callable[[M, Callable[[str], None], Callable[[], None]], R]
    switch: Callable[[R, M], None]
    shed: Callable[[R], None] | None = None
    promised: Callable[[R], int] = lambda _: 0
    settle: Callable[[R, M], None] = lambda _, __: None
    told: Callable[[R, EngineStatus], EngineStatus] = lambda _, status: status
