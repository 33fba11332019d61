"""`weir bench transfer`: all of it, in order, as one JSON object.

Virtual time over every recorded link; then real sockets over a seeded choice of them; then kills; then load.
Everything is bounded, in count and in time, and lies in one folder that is gone afterwards.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.machine import machine, versions
from bench.transfer.delivery import deliver
from bench.transfer.goods import Goods, load_of, make_goods, three_ways
from bench.transfer.kills import Kill, kill_downloads
from bench.transfer.origin import Origin
from bench.transfer.simulate import Arrival, Way, ratio, simulate
from bench.transfer.traces import Trace, choose, read_traces
from bench.transfer.under_load import STEPS, UnderLoad, serve_through_changes
from bench.transfer.variants import reversioned
from quantize.progress import Progress
from release.listing import read_manifest

_PACKAGES = ("onnxruntime", "numpy", "httpx", "tuf", "grpcio")
_STAGGER_S = 2.0  # between starts of nodes that share the box


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. `release` is a nested release folder, `data` the data sets' folder."""

    release: Path
    data: Path
    traces: int = 12
    factor: float = 20.0
    seed: int = 0
    parallel: int = 2  # recorded links at a time, three nodes each
    kills: int = 20
    downloads: int = 4  # that the kills are spread over
    steady_s: float = 45.0


QUICK: Mapping[str, Any] = {"traces": 2, "kills": 2, "downloads": 1, "steady_s": 3.0}


@dataclass(frozen=True, slots=True)
class Stage:
    """Where it is measured: the server of repositories, a folder for nodes, and who is told."""

    origin: Origin
    folder: Path
    progress: Progress


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured; `figures` is plain JSON."""

    figures: dict[str, Any]
    virtual: list[Arrival]
    real: list[Arrival]


def measure(plan: Plan, progress: Progress) -> Outcome:
    """Raises TraceError, NodeFailed, ReleaseError, OSError."""
    began = time.monotonic()
    links = [trace.times(plan.factor) for trace in read_traces(plan.data)]
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        folder = Path(name)
        progress.start("preparing signed repositories", None, "steps")
        ways = three_ways(plan.release, folder)
        between = reversioned(plan.release, folder / "between", "1.5.0")
        changes = make_goods(folder, "changes", [folder / "four", between, folder / "eight"])
        progress.finish("preparing signed repositories")
        virtual = [simulate(link, way, load_of(goods), 1.0) for link in links for way, goods in ways.items()]
        with Origin().running() as origin:
            stage = Stage(origin, folder, progress)
            real = asyncio.run(_deliveries(plan, stage, ways, choose(links, plan.traces, plan.seed)))
            kills = asyncio.run(_kills(plan, stage, ways[Way.NESTED]))
            load = asyncio.run(_load(plan, stage, changes))
        sizes = {way: load_of(goods) for way, goods in ways.items()}
    figures = {
        "first_answer_ratio": round(ratio(real, Way.NESTED, Way.EIGHT_ONLY, "first_answer_s"), 4),
        "bytes_ratio": round(ratio(real, Way.NESTED, Way.EIGHT_ONLY, "bytes"), 4),
        "failed": load.failed,
        "p99_ratio": round(load.p99_ratio, 3),
        "kills": len(kills),
        "refetched_chunks_max": max((kill.refetched_chunks for kill in kills), default=0),
        "release": read_manifest(plan.release).id,
        "bytes": {way: {"first": load_.first, "rest": load_.rest} for way, load_ in sizes.items()},
        "factor": plan.factor,
        "seed": plan.seed,
        "virtual": {"traces": len(links), **_ratios(virtual), "medians": _medians(virtual)},
        "real": {
            "traces": sorted({arrival.trace for arrival in real}), **_ratios(real), "medians": _medians(real),
            "arrivals": [_rounded(arrival) for arrival in real],
        },
        "kill_details": [asdict(kill) for kill in kills],
        "load": _load_figures(load),
        "seconds": round(time.monotonic() - began, 1),
        "versions": versions(_PACKAGES),
        "machine": machine(),
    }  # fmt: skip
    return Outcome(figures, virtual, real)


async def _deliveries(plan: Plan, stage: Stage, ways: Mapping[Way, Goods], links: Sequence[Trace]) -> list[Arrival]:
    """All ways over each link at the same time, `parallel` links at a time."""
    task, arrivals = "fetching over recorded links", list[Arrival]()
    stage.progress.start(task, len(links) * len(ways), "steps")
    free = asyncio.Semaphore(plan.parallel)

    async def one(link: Trace, way: Way, after_s: float) -> None:
        await asyncio.sleep(after_s)  # starting a node takes the processor: not all at once
        arrivals.append(await deliver(stage.origin, ways[way], way, link, stage.folder / f"{way}-{link.name}"))
        stage.progress.advance(task, 1)

    async def all_of(link: Trace, after_s: float) -> None:
        async with free:
            await asyncio.sleep(after_s)
            async with asyncio.TaskGroup() as group:
                for place, way in enumerate(ways):
                    group.create_task(one(link, way, place * _STAGGER_S))

    try:
        async with asyncio.TaskGroup() as group:
            for number, link in enumerate(links):
                group.create_task(all_of(link, number % plan.parallel * _STAGGER_S / 2))
    except ExceptionGroup as failed:
        raise _first(failed) from failed
    stage.progress.finish(task)
    return sorted(arrivals, key=lambda arrival: (arrival.trace, arrival.way))


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """What went wrong first; the others were ended by it."""
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, ExceptionGroup) else inner


async def _kills(plan: Plan, stage: Stage, goods: Goods) -> list[Kill]:
    task, progress = "killing downloads", stage.progress
    progress.start(task, plan.kills, "steps")
    done = await kill_downloads(
        stage.origin, goods, stage.folder, kills=plan.kills, downloads=plan.downloads, seed=plan.seed,
        told=lambda: progress.advance(task, 1),
    )  # fmt: skip
    progress.finish(task)
    return done


async def _load(plan: Plan, stage: Stage, goods: Goods) -> UnderLoad:
    task, progress = "answering through changes", stage.progress
    progress.start(task, STEPS, "steps")
    done = await serve_through_changes(
        stage.origin, goods, stage.folder / "load", steady_s=plan.steady_s, seed=plan.seed,
        told=lambda: progress.advance(task, 1),
    )  # fmt: skip
    progress.finish(task)
    return done


def _ratios(arrivals: Sequence[Arrival]) -> dict[str, float]:
    """Medians over links of what each way takes, as a share of what 8-bit alone takes."""
    return {
        f"{way}_{name}_ratio": round(ratio(arrivals, way, Way.EIGHT_ONLY, figure), 4)
        for way in (Way.NESTED, Way.SEPARATE)
        for name, figure in (("first_answer", "first_answer_s"), ("eight", "eight_s"), ("bytes", "bytes"))
    }


def _medians(arrivals: Sequence[Arrival]) -> dict[str, dict[str, float]]:
    return {
        way: {
            figure: round(statistics.median(getattr(one, figure) for one in arrivals if one.way is way), 2)
            for figure in ("first_answer_s", "eight_s", "bytes")
        }
        for way in Way
    }


def _rounded(arrival: Arrival) -> dict[str, Any]:
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in asdict(arrival).items()}


def _load_figures(load: UnderLoad) -> dict[str, Any]:
    return {
        "phases": {name: asdict(summary) for name, summary in load.phases.items()},
        "p99_ratio_same_weights": round(load.p99_ratio_same_weights, 3),
        "failures": list(load.failures),
    }
