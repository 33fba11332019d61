"""Which weights are in force, and how others take their place without a failed request.

Two ways, told by how much room there is (edge.engine.room):

    beside    the new session is loaded and tried out while the old one serves; running answers finish
              on the old one, which is let go after the last of them
    instead   the gate closes, running answers finish, the old session is let go and its memory given
              back, the new one is loaded and tried out, the gate opens. Requests that come meanwhile
              wait. If the new one fails, the old one is loaded again, and the failure is told

Files are verified before anybody waits. One change at a time; a caller of `put` that leaves does not
stop it half-way. What a model is and what runs it comes in as a Making: a decoder and its batcher, or a
classifier and its own. Must not know: gRPC, prompts, routing.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Generic

from edge.engine.aside import Aside
from edge.engine.candidate import Candidate
from edge.engine.gate import Gate
from edge.engine.leaving import Leaving
from edge.engine.looking import Looking
from edge.engine.making import Loaded, M, Making, Needs, R
from edge.engine.room import Memory, Room, Verdict, room_for
from runtime import memory
from wire.deadline import Deadline
from wire.description import ModelInfo
from wire.engine import Activation, EngineStatus
from wire.errors import Overloaded, PreconditionFailed, Unavailable, WeirError

# How long running answers may keep the gate closed before a change in their place is given up.
_DRAIN_S = 30.0
# Of what a load is expected to take: the box may be busier than the last time.
_CAUTION = 1.5
_GIVE_BACK_TRIES, _GIVE_BACK_S = 10, 0.02

_log = logging.getLogger("weir.edge.engine")


class Weights(Generic[M, R]):
    """The model in force, its batcher, and the gate before them. Lives in one event loop."""

    def __init__(
        self,
        config: Needs,
        broken: Callable[[str], None],
        making: Making[M, R],
        look: Callable[[], Memory] | None = None,
    ) -> None:
        """`broken` is told when nothing can be served any more and the process must be replaced.

        `look` tells how much memory there is; None: the process and its system are asked.
        """
        self._config, self._tell_broken, self._making = config, broken, making
        self.gate = Gate()
        self._model: M | None = None
        self._batcher: R | None = None
        self._info: tuple[ModelInfo, Callable[[], tuple[int, ...]] | None] | None = None
        self._detail = ""
        self._broken = self._closed = False
        self._steps_before = 0
        self._seconds_per_byte = 0.0
        self._opens_at = 0.0
        self._look = look or Looking(config.memory_budget_bytes)
        self._turn = asyncio.Lock()
        self._leaving = Leaving(self._settle)  # weights that were replaced beside others
        self._aside = Aside(config.threads)

    @property
    def state(self) -> str:
        """starting, ready or down."""
        if self._broken or (self._batcher is not None and self._batcher.closed):
            return "down"
        return "starting" if self._info is None else "ready"

    @property
    def detail(self) -> str:
        """What is going on beside serving."""
        return self._detail

    @property
    def info(self) -> ModelInfo | None:
        """What is in force, or was until it is replaced; None before anything was."""
        if self._info is None:
            return None
        info, here = self._info
        return info if here is None else replace(info, precisions_available=here())

    @property
    def active(self) -> int:
        return self._batcher.active if self._batcher else 0

    @property
    def queued(self) -> int:
        """Requests that wait for a slot or at the gate."""
        return self.gate.waiting + (self._batcher.queued if self._batcher else 0)

    @property
    def decode_steps(self) -> int:
        return self._steps_before + (self._batcher.decode_steps if self._batcher else 0)

    def told(self, status: EngineStatus) -> EngineStatus:
        """`status` with what the batcher adds to it; as it is while there are no weights."""
        return status if self._batcher is None else self._making.told(self._batcher, status)

    def serving(self) -> tuple[M, R]:
        """What answers now; ask inside the gate. Raises Unavailable."""
        if self._broken:
            raise Unavailable("the engine lost its weights and is being restarted; try again")
        if self._model is None or self._batcher is None:
            raise Unavailable("the engine is still loading its model; try again in a moment")
        return self._model, self._batcher

    async def load(self) -> None:
        """Loads what the configuration names. Raises NotFound, PreconditionFailed, Overloaded (no memory)."""
        candidate = await self._check(self._config.release_dir, self._config.precision)
        verdict = room_for(candidate.needed_bytes, self._look())
        if verdict.room is not Room.BESIDE:
            _log.warning("loading weights although there may be too little memory: %s", verdict.text)
        self._begin(await self._aside.load(candidate.load), candidate)

    def close(self) -> None:
        """Fails what runs as Unavailable and ends the threads."""
        self._closed = True
        if self._batcher is not None:
            self._batcher.close()
        self._aside.close()

    async def put(self, directory: Path | None, precision: int, deadline: Deadline) -> Activation:
        """Puts a release (None: the one in force) at a precision in force.

        Raises NotFound, PreconditionFailed, Unavailable, Overloaded (too little memory now); then what was in
        force still is, or is again.
        """
        # A change that was begun is finished, whether or not its caller waits for it.
        change = asyncio.create_task(self._put(directory, precision, deadline))
        change.add_done_callback(_hear)
        return await asyncio.shield(change)

    async def _put(self, directory: Path | None, precision: int, deadline: Deadline) -> Activation:
        async with self._turn:
            model = self.serving()[0]
            directory = directory or model.directory
            if (directory, precision) == (model.directory, model.info.precision):
                return Activation(model.info.release, precision, model.info.weight_digest, 0.0)
            deadline.check()
            candidate = await self._check(directory, precision, model)
            verdict = self._room_for(candidate)
            if verdict.room is not Room.BESIDE and self._making.shed is not None:
                # What is only nice to have is worth less than a change that nobody notices.
                await self._aside.load(partial(self._making.shed, self.serving()[1]))
                verdict = self._room_for(candidate)
            if verdict.room is Room.NONE:
                raise Overloaded(
                    f"there is no room for {precision}-bit weights even without the running ones: {verdict.text}; "
                    "allow or free more memory"
                )
            del model  # from here on this frame must not keep the old session alive
            if verdict.room is Room.BESIDE:
                return await self._beside(candidate)
            return await self._instead(candidate, verdict.text, deadline)

    async def _beside(self, candidate: Candidate[M]) -> Activation:
        fresh = await self._aside.load(candidate.load)
        model, batcher = self.serving()
        self._leaving.watch(model.weights)
        self._making.switch(batcher, fresh)
        self._now(fresh, candidate)
        return _activation(fresh)

    def _room_for(self, candidate: Candidate[M]) -> Verdict:
        return room_for(candidate.needed_bytes, self._look(), self._making.promised(self.serving()[1]))

    async def _settle(self) -> None:
        """Replaced weights have gone: the others may take more."""
        async with self._turn:  # what a load takes for a while must not count
            if self._closed or self._model is None or self._batcher is None:
                return
            await self._aside.load(memory.trim)
            self._making.settle(self._batcher, self._model)

    async def _instead(self, candidate: Candidate[M], short: str, deadline: Deadline) -> Activation:
        load_s, began = self._load_s(candidate), time.monotonic()
        drain_s = min(_DRAIN_S, deadline.remaining_s() - load_s)
        self._opens_at = began + min(self.serving()[1].left_s, _DRAIN_S) + load_s
        self._detail = "the weights are being changed with a short queue"
        self.gate.close(lambda: max(self._opens_at - time.monotonic(), 0.0))
        _log.info("%s: requests wait for the weights to change, as memory does not hold both", short)
        try:
            if not await self.gate.emptied(drain_s):
                raise Overloaded(
                    f"memory does not hold both weights ({short}), and the running answers did not end within "
                    f"{max(drain_s, 0.0):.0f} s; nothing was changed, try again later"
                )
            self._opens_at = time.monotonic() + load_s
            fresh = await self._exchange(candidate)
        finally:
            self._detail = ""
            self.gate.open()
        pause_ms = (time.monotonic() - began) * 1e3
        return _activation(fresh, pause_ms, f"switched with a short queue, as memory does not hold both: {short}")

    async def _exchange(self, candidate: Candidate[M]) -> M:
        """Lets the old weights go and loads the new ones, or the old ones again."""
        directory, precision = await self._let_go()
        failure, short = "", False
        try:
            fresh = await self._aside.load(candidate.load)
        except Exception as error:  # noqa: BLE001 - whatever it was, this node must have weights again
            # Not the error itself: its frames hold the new weights.
            failure, short = _text(error), isinstance(error, Overloaded)
        if not failure:
            self._begin(fresh, candidate)
            return fresh
        _log.warning("the new weights could not be loaded: %s; loading the old ones again", failure)
        await self._aside.load(_give_back)
        await self._restore(directory, precision)
        kind = Overloaded if short else PreconditionFailed
        raise kind(f"the new weights could not be loaded, and the old ones serve again: {failure}")

    async def _restore(self, directory: Path, precision: int) -> None:
        try:
            candidate = await self._check(directory, precision)
            self._begin(await self._aside.load(candidate.load), candidate)
        except Exception as error:
            self._broken = True
            self._tell_broken(f"neither the new weights nor the old ones could be loaded: {_text(error)}")
            raise

    async def _let_go(self) -> tuple[Path, int]:
        """Nobody is inside the gate. Ends the batcher and gives the memory of its weights back."""
        model, batcher = self.serving()
        was, old = (model.directory, model.info.precision), weakref.ref(model.weights)
        self._steps_before += batcher.decode_steps
        self._model = self._batcher = None
        await self._aside.load(batcher.close)
        del model, batcher
        for _ in range(_GIVE_BACK_TRIES):
            await self._aside.load(_give_back)
            if old() is None:
                break
            await asyncio.sleep(_GIVE_BACK_S)  # a failed answer's error may still be on its way out
        else:
            _log.warning("the old weights are still held by something: their memory was not given back")
        return was

    def _begin(self, model: M, candidate: Candidate[M]) -> None:
        self._batcher = self._making.begin(model, self._tell_broken, self._retired)
        self._now(model, candidate)

    def _now(self, model: M, candidate: Candidate[M]) -> None:
        self._model, self._info = model, (model.info, model.here)
        self._seconds_per_byte = model.load_ms / 1e3 / max(candidate.needed_bytes, 1)

    def _load_s(self, candidate: Candidate[M]) -> float:
        return _CAUTION * self._seconds_per_byte * candidate.needed_bytes

    def _retired(self) -> None:
        if not self._closed:
            self._aside.later(memory.trim)

    async def _check(self, directory: Path, precision: int, beside: M | None = None) -> Candidate[M]:
        known = None if beside is None else beside.tokenizer
        return await self._aside.check(partial(self._making.open, directory, precision, known))


def _give_back() -> None:
    gc.collect()
    memory.trim()


def _activation(model: Loaded, pause_ms: float = 0.0, note: str = "") -> Activation:
    info = model.info
    return Activation(info.release, info.precision, info.weight_digest, model.load_ms, pause_ms, note)


def _text(error: BaseException) -> str:
    return error.message if isinstance(error, WeirError) else f"{type(error).__name__}: {error}"


def _hear(change: asyncio.Task[Activation]) -> None:
    """Takes note of a failure whose caller has left."""
    if not change.cancelled():
        change.exception()
