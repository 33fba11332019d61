"""One rank process: joins its group, loads its share of the weights, runs the batch loop.

    python -m cloud.rank        (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, WEIR_RANK_SPEC)

Ends with the batch loop, with its parent, or by a signal; the parent starts the group again. A model
that can never run ends it with exit status 2 and the reason on standard error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from cloud.engine import TRANSFORMERS
from cloud.rank.batching import Batch
from cloud.rank.beat import Beat, Heart
from cloud.rank.chat import Chat
from cloud.rank.folder import model_config, weight_digest
from cloud.rank.plan import PlanRefused, check_devices, plan_sharding
from cloud.rank.server import RankService, serve
from cloud.rank.spec import SPEC_VARIABLE, RankSpec
from cloud.rank.transformers_engine import TransformersEngine
from cloud.rank.weights import Held, held, load_model
from runtime.child import begin

_log = logging.getLogger("weir.rank")

EXIT_REFUSED = 2
# The parent's heartbeat decides long before this; it only bounds a group whose parent is gone.
_COLLECTIVE_TIMEOUT_S = 300.0


class _Life:
    """What the rank's beat reports, filled in as the rank comes up."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._held = Held(0, 0)
        self._batch: Batch | None = None

    def ready(self, batch: Batch, what: Held) -> None:
        self._batch, self._held = batch, what

    def beat(self) -> Beat:
        batch = self._batch
        return Beat(
            rank=self._rank,
            pid=os.getpid(),
            state="loading" if batch is None else "ready",
            turns=0 if batch is None else batch.turns,
            parameter_bytes=self._held.parameter_bytes,
            parameter_bytes_total=self._held.parameter_bytes_total,
        )


class _Digest(threading.Thread):
    """Hashes the weight files while they are being loaded."""

    def __init__(self, spec: RankSpec) -> None:
        super().__init__(name="digest", daemon=True)
        self._spec = spec
        self._value = ""

    def run(self) -> None:
        self._value = weight_digest(Path(self._spec.model_dir), self._spec.precision)

    def value(self) -> str:
        self.join()
        if not self._value:
            raise ValueError(f"{self._spec.model_dir} holds no weights that can be read")
        return self._value


def main() -> int:
    """Runs this rank until its loop ends; returns the exit status."""
    begin()
    # A terminal's Ctrl-C reaches the whole group; the parent lets running answers finish first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec = RankSpec.decode(os.environ[SPEC_VARIABLE])
    rank = int(os.environ["RANK"])
    logging.basicConfig(level=spec.log_level.upper(), format=f"%(asctime)s rank{rank} %(name)s %(message)s")
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.WARNING)
    # Says at every layer of every step that activations change their type on the way through int8.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    life = _Life(rank)
    Heart(Path(spec.run_dir), spec.heartbeat_s, life.beat).start()
    try:
        asyncio.run(_run(spec, rank, life))
    except (PlanRefused, ValueError) as error:
        sys.stderr.write(f"rank {rank}: {error}\n")
        return EXIT_REFUSED
    return 1


async def _run(spec: RankSpec, rank: int, life: _Life) -> None:
    digest = _Digest(spec)
    if rank == 0:
        digest.start()
    batch, what = _load(spec, rank)
    batch.start()
    life.ready(batch, what)
    if rank == 0:
        engine = TransformersEngine(batch, Chat(Path(spec.model_dir)), spec, digest.value())
        await serve(RankService(engine, spec, what), spec)
    while batch.running:  # noqa: ASYNC110 - a thread of another library, which sets no event when it ends
        await asyncio.sleep(0.1)
    _log.error("the batch loop ended: %s", batch.fault or "stopped")
    # Threads of torch.distributed may be stuck in a collective: leave without waiting for them.
    os._exit(1)


def _load(spec: RankSpec, rank: int) -> tuple[Batch, Held]:
    disable_progress_bar()
    torch.set_num_threads(spec.threads)
    torch.set_num_interop_threads(1)
    gpus = torch.cuda.device_count()
    check_devices(spec.ranks, gpus)
    config = model_config(Path(spec.model_dir))
    plan = plan_sharding(config, spec.precision, spec.ranks, TRANSFORMERS)
    if plan.note and rank == 0:
        _log.warning("%s", plan.note)
    if spec.ranks > 1:
        if gpus:
            torch.cuda.set_device(rank)
        torch.distributed.init_process_group(
            "nccl" if gpus else "gloo", timeout=timedelta(seconds=max(_COLLECTIVE_TIMEOUT_S, spec.start_timeout_s))
        )
    model = load_model(spec, plan)
    what = held(model)
    _log.info("holds %d of %d parameter bytes", what.parameter_bytes, what.parameter_bytes_total)
    return Batch(model, spec.slots, spec.context_length, _COLLECTIVE_TIMEOUT_S), what
