"""A steady stream of requests through changes of precision and release, in both ways a node can make them.

    steady at 4 bits → upgrade → steady at 8 bits → change of release, at 8 bits → downgrade

once with memory for old and new weights, once within a budget that holds only one of them, so that the node
changes with a short queue. Requests are sent to the node's front as any client would. All phases last equally long;
a change begins after a quarter of its own.

Two ratios: p99 of the worst change against the better of the two steady phases, which is what a client
notices; and against the steady phase of the slower weights that had a part in it, which is what the change
itself costs.
"""

from __future__ import annotations

import asyncio
import math
import random
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.load import OpenLoop, Pace, Summary, prompt_of, summarize
from bench.machine import machine, versions
from bench.switching.node import Node, node, second_release
from edge.config import available_cpus
from release.listing import read_manifest
from runtime.ort.footprint import load_bytes
from runtime.tokenizer import Tokenizer
from wire.deadline import Deadline
from wire.engine import Activation
from wire.errors import Overloaded, PreconditionFailed
from wire.messages import GenerateRequest, Sampling
from wire.service import Call

BESIDE, SHORT_QUEUE = "beside", "short_queue"
STEADY, UPGRADE, STEADY_8, RELEASE, DOWNGRADE = "steady_4", "upgrade", "steady_8", "release_change", "downgrade"
PHASES = (STEADY, UPGRADE, STEADY_8, RELEASE, DOWNGRADE)
CHANGES = (UPGRADE, RELEASE, DOWNGRADE)

_PROMPTS = 32
_WARM_UP_S, _SETTLE_S = 5.0, 1.0
_ACTIVATE_S = 60.0
_PREFILL_CHUNK = 128
_SHORT_BY = 20 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. Times in seconds, a phase; `threads` are the engine's, by default as many as a node takes."""

    release: Path
    seconds: float = 45.0
    per_minute: float = 200.0
    tokens_in: int = 32
    tokens_out: int = 8
    slots: int = 4
    threads: int = field(default_factory=available_cpus)
    seed: int = 0
    deadline_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Way:
    """One pass through all phases, with the change of those that have one, or why the node refused it.

    Bytes are the engine's, at the end of a phase.
    """

    phases: dict[str, Summary]
    changes: dict[str, Activation]
    refused: dict[str, str]
    failures: tuple[str, ...]
    resident_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        return sum(summary.failed for summary in self.phases.values())

    @property
    def p99_ratio(self) -> float | None:
        """The worst change against the better steady phase; None where a phase had no answer at all."""
        return self._ratio(min(self.phases[STEADY].p99_ms, self.phases[STEADY_8].p99_ms))

    @property
    def p99_ratio_same_weights(self) -> float | None:
        """The same against the steady phase of the slower weights: every change has 8-bit weights on one side."""
        return self._ratio(max(self.phases[STEADY].p99_ms, self.phases[STEADY_8].p99_ms))

    def _ratio(self, steady_ms: float) -> float | None:
        if any(math.isnan(summary.p99_ms) for summary in self.phases.values()):
            return None
        return round(max(self.phases[name].p99_ms for name in CHANGES) / steady_ms, 3)


def measure(plan: Plan, told: Callable[[str], None] = lambda _what: None) -> dict[str, Any]:
    """Everything as one JSON object. `told` hears what begins. Raises NodeFailed, WeirError."""
    before = machine()
    with tempfile.TemporaryDirectory(prefix="weir-switching-") as folder:
        first, second = Path(folder) / "releases" / "first", Path(folder) / "releases" / "second"
        first.parent.mkdir()
        first.symlink_to(plan.release.resolve())
        second_release(plan.release, second)
        beside = asyncio.run(_pass(plan, second, None, lambda phase: told(f"{BESIDE}: {phase}")))
        budget = _budget(plan, beside)
        short = asyncio.run(_pass(plan, second, budget, lambda phase: told(f"{SHORT_QUEUE}: {phase}")))
    return {
        "failed": beside.failed + short.failed,
        "p99_ratio": beside.p99_ratio,
        "p99_ratio_same_weights": beside.p99_ratio_same_weights,
        "p99_ratio_short_queue": short.p99_ratio,
        "p99_ratio_short_queue_same_weights": short.p99_ratio_same_weights,
        "pauses_ms": {name: round(change.pause_ms, 1) for name, change in short.changes.items()},
        "memory_budget_bytes": budget,
        "ways": {BESIDE: _way(beside), SHORT_QUEUE: _way(short)},
        "plan": {**asdict(plan), "release": read_manifest(plan.release).id},
        "versions": versions(("onnxruntime", "numpy", "grpcio", "tokenizers")),
        "machine": before,
    }


def _budget(plan: Plan, beside: Way) -> int:
    """A little less than what 8-bit weights take while they load beside 4-bit ones.

    Loading 4-bit weights beside 8-bit ones may take less than loading 8-bit ones alone; then there is room for it.
    """
    eight = load_bytes(read_manifest(plan.release), 8, slots=plan.slots, prefill_chunk=_PREFILL_CHUNK)
    return beside.resident_bytes[STEADY] + eight - _SHORT_BY


async def _pass(plan: Plan, second: Path, budget: int | None, told: Callable[[str], None]) -> Way:
    releases = second.parent
    ask = _asking(plan)
    changes, refused, resident = dict[str, Activation](), dict[str, str](), dict[str, int]()
    targets = {UPGRADE: ("", 8), RELEASE: (str(second), 8), DOWNGRADE: ("", 4)}
    async with node(releases / "first", slots=plan.slots, threads=plan.threads, memory_budget_bytes=budget) as running:
        load = OpenLoop(running.inference, ask, Pace(plan.per_minute, plan.seed), deadline_s=plan.deadline_s)
        async with load:
            await asyncio.sleep(min(_WARM_UP_S, plan.seconds / 4))
            for phase in PHASES:
                told(phase)
                load.phase(phase)
                await asyncio.sleep(plan.seconds / 4)
                if phase in targets:
                    try:
                        changes[phase] = await _change(running, *targets[phase])
                    except (Overloaded, PreconditionFailed) as error:
                        refused[phase] = error.message
                await asyncio.sleep(plan.seconds * 3 / 4)
                resident[phase] = running.resident_bytes()
            load.phase("")
            await asyncio.sleep(_SETTLE_S)
    outcomes = [outcome for outcome in load.outcomes if outcome.phase in PHASES]
    failures = {f"{one.phase}: {one.error}": one.message for one in outcomes if one.error}
    told_of = tuple(f"{kind}: {message}" for kind, message in sorted(failures.items()))
    return Way({name: summarize(load.of(name)) for name in PHASES}, changes, refused, told_of, resident)


async def _change(running: Node, directory: str, precision: int) -> Activation:
    return await running.control.activate(directory, precision, Call(Deadline.after(_ACTIVATE_S)))


def _asking(plan: Plan) -> Callable[[int], GenerateRequest]:
    draw, tokenizer = random.Random(plan.seed), Tokenizer.load(plan.release)
    prompts = [prompt_of(tokenizer, plan.tokens_in, draw) for _ in range(_PROMPTS)]

    def ask(number: int) -> GenerateRequest:
        sampling = Sampling(max_tokens=plan.tokens_out, temperature=0.0)
        return GenerateRequest(prompt=prompts[number % _PROMPTS], sampling=sampling)

    return ask


def _way(way: Way) -> dict[str, Any]:
    phases = {}
    for name, summary in way.phases.items():
        change = way.changes.get(name)
        phases[name] = {
            **{key: _plain(value) for key, value in asdict(summary).items()},
            **({} if change is None else {"load_ms": round(change.load_ms, 1), "pause_ms": round(change.pause_ms, 1)}),
            "resident_bytes": way.resident_bytes[name],
        }
    return {
        "failed": way.failed,
        "p99_ratio": way.p99_ratio,
        "p99_ratio_same_weights": way.p99_ratio_same_weights,
        "phases": phases,
        "failures": list(way.failures),
        "refused": way.refused,
        "notes": sorted({change.note for change in way.changes.values() if change.note}),
    }


def _plain(value: Any) -> Any:
    """As JSON has it: no time is null."""
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else round(value, 1)
