"""Weir's steps against the peers': decode, prefill, batches, the price of the signals, memory bandwidth.

All sides are loaded before the first round and stay; each round asks every one of them once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.edge.peers import Missing, genai_folder, gguf_file, llama_python
from bench.edge.plan import Plan
from bench.edge.rounds import Figures, interleaved, medians, ratio
from bench.edge.side import Asked, Side, SideFailed
from quantize.progress import Progress
from quantize.sources.resolve import resolve
from release.listing import read_manifest
from release.manifest import Manifest

OURS, GENAI, LLAMA = "weir", "genai", "llamacpp"
SYMMETRIC = "genai_symmetric"  # as its builder makes weights unless told otherwise: without zero points
_PEER_SLOTS = 16
_MOST = {GENAI: _PEER_SLOTS, LLAMA: _PEER_SLOTS, SYMMETRIC: 1}  # sequences at once
_MEGABYTES, _TRIALS = 256, 7
_TASK = "rounds against the peers"


@dataclass(slots=True)
class Sides:
    """The measured programs that could be started, by name and width, and why others could not."""

    running: dict[tuple[str, int], Asked] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    features: str = ""

    def start(self, stack: ExitStack, key: tuple[str, int], make: Callable[[], tuple[Side, dict[str, Any]]]) -> None:
        """Starts and loads one side; a peer that cannot be had is noted."""
        try:
            side, load = make()
            stack.enter_context(side)
            told = side.ask("load", **load)
        except (Missing, SideFailed) as error:
            if key[0] == OURS:
                raise
            self.skipped[f"{key[0]} {key[1]}-bit"] = str(error)
            return
        self.running[key] = side
        self.versions |= told.get("versions", {})
        self.features = told.get("features", self.features)


def started(plan: Plan, stack: ExitStack, progress: Progress) -> Sides:
    """Every side the plan names. Raises SideFailed for our own."""
    sides = Sides()
    widths = (4, 8) if "batch8" in plan.only else (4,)
    most = max(*plan.batches, 8)
    for bits in widths:
        load = {"release": str(plan.release), "precision": bits, "slots": most, "capacity": plan.capacity}
        given = {**load, "threads": plan.threads}
        sides.start(stack, (OURS, bits), partial(_own, given))
        if GENAI in plan.peers:
            make = partial(_genai, plan, bits, False, progress)
            sides.start(stack, (GENAI, bits), make)
    if GENAI in plan.peers and "decode" in plan.only:
        sides.start(stack, (SYMMETRIC, 4), partial(_genai, plan, 4, True, progress))
    if LLAMA in plan.peers:
        sides.start(stack, (LLAMA, 4), partial(_llama, plan, progress))
    return sides


def _own(load: dict[str, Any]) -> tuple[Side, dict[str, Any]]:
    return Side("own"), load


def _genai(plan: Plan, bits: int, symmetric: bool, progress: Progress) -> tuple[Side, dict[str, Any]]:
    if plan.source is None:
        raise Missing("genai builds its own from the model's folder: name it with --source")
    source = resolve(plan.source, progress)
    folder = genai_folder(source.folder, source.name, bits, symmetric, progress)
    side = Side(GENAI) if plan.peers_python is None else Side(GENAI, plan.peers_python)
    return side, {"folder": str(folder), "threads": plan.threads}


def _llama(plan: Plan, progress: Progress) -> tuple[Side, dict[str, Any]]:
    if plan.gguf is None and plan.source is None:
        raise Missing("llama.cpp needs the same model as a GGUF: name it with --gguf")
    file = plan.gguf or str(gguf_file(plan.source or "", progress))
    python = plan.peers_python or llama_python(progress)
    capacity = plan.prompt_tokens + plan.steps + 2
    return Side(LLAMA, python), {"file": file, "threads": plan.threads, "slots": _PEER_SLOTS, "capacity": capacity}


def measure(plan: Plan, ids: Sequence[int], sides: Sides, progress: Progress) -> dict[str, Any]:
    """Every part of the plan that is about steps."""
    own, found = sides.running[OURS, 4], dict[str, Any]()
    wanted = [name for name in ("decode", "prefill", "batch8", "signals") if name in plan.only]
    progress.start(_TASK, (plan.rounds + 1) * len(wanted), "steps")

    def advance() -> None:
        progress.advance(_TASK, 1)

    if "decode" in wanted:
        found |= _decode(plan, ids, sides, advance)
    if "prefill" in wanted:
        prefilling = (OURS, GENAI, LLAMA)
        ways = {name: _prefill(side, ids) for (name, bits), side in sides.running.items() if bits == 4}
        ways = {name: way for name, way in ways.items() if name in prefilling}
        figures = interleaved(plan.rounds, ways, advance)
        found |= {"prefill_ms": medians(figures), "prefill_vs_llamacpp": ratio(figures, LLAMA, OURS)}
        found["prefill_vs_genai"] = ratio(figures, GENAI, OURS)
    if "batch8" in wanted:
        found |= _batch8(plan, ids, sides, advance)
    if "signals" in wanted:
        found["signals_share"] = _signals(plan, ids, own, advance)
    if "bandwidth" in plan.only:
        found["bandwidth"] = _bandwidth(plan, ids, sides)
    progress.finish(_TASK)
    return found


def _decode(plan: Plan, ids: Sequence[int], sides: Sides, advance: Callable[[], None]) -> dict[str, Any]:
    """Tokens a second by batch size; the ratios are of batch 1."""
    ways = {
        f"{name} {batch}": _per_s(side, ids, batch, plan.steps)
        for (name, bits), side in sides.running.items()
        if bits == 4
        for batch in plan.batches
        if batch <= _MOST.get(name, batch)
    }
    figures = interleaved(plan.rounds, ways, advance)
    table: dict[str, dict[str, float]] = {}
    for way, value in medians(figures, 1).items():
        name, _, batch = way.partition(" ")
        table.setdefault(name, {})[batch] = value
    ours = f"{OURS} 1"
    return {
        "decode_tokens_per_s": table,
        "decode_vs_genai": ratio(figures, ours, f"{GENAI} 1"),
        "decode_vs_genai_symmetric": ratio(figures, ours, f"{SYMMETRIC} 1"),
        "decode_vs_llamacpp": ratio(figures, ours, f"{LLAMA} 1"),
    }


def _batch8(plan: Plan, ids: Sequence[int], sides: Sides, advance: Callable[[], None]) -> dict[str, Any]:
    """Eight sequences of ours against one of genai's, at both widths."""
    ways = {
        f"{name} {bits}": _per_s(side, ids, 8 if name == OURS else 1, plan.steps)
        for (name, bits), side in sides.running.items()
        if name in (OURS, GENAI)
    }
    figures = interleaved(plan.rounds, ways, advance)
    ratios = {str(bits): ratio(figures, f"{OURS} {bits}", f"{GENAI} {bits}") for bits in (4, 8)}
    return {"batch8_vs_genai_batch1": ratios, "batch8_tokens_per_s": medians(figures, 1)}


def _signals(plan: Plan, ids: Sequence[int], own: Asked, advance: Callable[[], None]) -> dict[str, float]:
    """What signals add to a step over an argmax, as a share of it, at batch 1 and 8."""

    def share(batch: int) -> Callable[[], float]:
        def measured() -> float:
            told = own.ask("signals", ids=ids, batch=batch, tokens=plan.steps)
            whole, choosing, plain = (statistics.median(told[name]) for name in ("step_s", "choose_s", "argmax_s"))
            return float((choosing - plain) / whole)

        return measured

    return medians(interleaved(plan.rounds, {str(batch): share(batch) for batch in (1, 8)}, advance), 4)


def _bandwidth(plan: Plan, ids: Sequence[int], sides: Sides) -> dict[str, Any]:
    """How close a decode step comes to the time in which this box can read the weights at all."""
    own = sides.running[OURS, 4]
    manifest, shares, steps = read_manifest(plan.release), dict[str, float](), dict[str, float]()
    told = own.ask("bandwidth", megabytes=_MEGABYTES, trials=_TRIALS, threads=plan.threads)
    readable = float(told["bytes_per_s"])
    for (name, bits), side in sides.running.items():
        if name == OURS:
            seconds = statistics.median(side.ask("decode", ids=ids, batch=1, tokens=plan.steps)["step_s"])
            steps[str(bits)] = round(seconds * 1e3, 3)
            shares[str(bits)] = round(bytes_per_step(manifest, bits) / seconds / readable, 3)
    return {
        "readable_bytes_per_s": round(readable),
        "bytes_per_step": {bits: bytes_per_step(manifest, int(bits)) for bits in shares},
        "step_ms": steps,
        "share": shares,
    }


def bytes_per_step(manifest: Manifest, bits: int) -> int:
    """Of weights, scales and zero points that a decode step reads: every product's once, lookups left out."""
    total, parts = 0, set[str]()
    for matrix in manifest.matrices:
        parts |= {f"{matrix.name}.{part}" for part in ("q", "s", "z")}
        if matrix.table != matrix.name:
            blocks = matrix.rows * matrix.columns // matrix.block_size
            total += matrix.rows * matrix.columns * bits // 8 + blocks * 4 + blocks * bits // 8
    # A head of 8 bits in both precisions is kept in blocks, a table in rows.
    for tensor in manifest.tensors:
        if tensor.name.endswith(".q") and tensor.name not in parts and len(tensor.shape) == 3:
            rows, blocks, size = tensor.shape
            total += rows * blocks * (size + 5)
    return total


def _per_s(side: Asked, ids: Sequence[int], batch: int, steps: int) -> Callable[[], float]:
    def measured() -> float:
        told = side.ask("decode", ids=ids, batch=batch, tokens=steps)
        return float(batch / statistics.median(told["step_s"]))

    return measured


def _prefill(side: Asked, ids: Sequence[int]) -> Callable[[], float]:
    return lambda: float(side.ask("prefill", ids=ids)["s"]) * 1e3


def figures_of(found: Mapping[str, Any]) -> Figures:
    """For a plot: tokens a second by batch size."""
    table: Figures = found.get("decode_tokens_per_s", {})
    return table
