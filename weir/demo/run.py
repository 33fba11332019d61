"""`weir demo` from its first line to its last: set up, play, add up, draw, leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quantize.sources.cache import Cache
from router.precision import PrecisionReason
from weir.cli.progress import Bars
from weir.demo import picture, summary
from weir.demo.acts import Play
from weir.demo.processes import Troupe
from weir.demo.questions import Catalogue, load
from weir.demo.recipe import Prepared, prepare, prove_apart
from weir.demo.scene import RANKS, Props, cloud_precision, stage
from weir.demo.show import Show
from weir.demo.summary import Outcome

_RUNS_KEPT = 5
# Probe often and change one's mind a little more easily, so that a new link is answered within the
# patience of somebody who watches.
EDGE_SETTINGS = {"probe_bytes": 4096, "probe_interval_s": 1, "precision_hysteresis": 0.06}


@dataclass(frozen=True, slots=True)
class Ended:
    """How the demo ended; `figures` is what --json prints. `faults` says what it failed to show."""

    figures: dict[str, Any]
    faults: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.faults


def run(*, full: bool = False, picture: Path | None = None, quiet: bool = False) -> Ended:
    """Plays the demo. With `quiet` nothing is written to stdout. Raises DemoError and what setting up raises."""
    began = time.monotonic()
    show = Show.on(stderr=quiet)
    catalogue = load()
    _welcome(show, full)
    with Bars(show.console) as bars:
        prepared = prepare(catalogue, full=full, progress=bars)
    prove_apart(prepared, catalogue)
    _say_calibration(show, prepared, catalogue)
    run_dir = _run_dir()
    outcome = Outcome(calibration=prepared.calibration(), run_dir=str(run_dir))
    outcome.models = {
        "edge": prepared.manifest.id,
        "cloud": f"{prepared.cloud.name}, {cloud_precision()}, {RANKS} ranks",
    }
    props = Props(prepared.release_dir, prepared.cloud.folder, prepared.cloud.name, cloud_precision(), EDGE_SETTINGS)
    asyncio.run(_play(props, catalogue, show, outcome, run_dir))
    outcome.seconds = time.monotonic() - began
    return _end(outcome, show, picture or run_dir / "latency.png")


async def _play(props: Props, catalogue: Catalogue, show: Show, outcome: Outcome, run_dir: Path) -> None:
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    if task is not None:
        # Being told to end must clear the stage as Ctrl-C does.
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    show.act("Setting the stage", f"logs in {run_dir}")
    began = time.monotonic()
    async with stage(props, run_dir) as scene:
        show.say(
            f"edge node, link, gateway and engine host with {RANKS} ranks are ready after "
            f"{time.monotonic() - began:.1f} s"
        )
        await Play(scene, catalogue, show, outcome).run()
        troupe: Troupe = scene.troupe
    left = troupe.left_over()
    show.say(f"\nall processes have ended ({'none left' if not left else f'left over: {left}'})")


def _welcome(show: Show, full: bool) -> None:
    show.act(
        "weir demo", "an edge node and a tensor-parallel cloud on this machine, with a link between them that breaks"
    )
    if not full:
        show.warn(
            "SmolLM2-135M on the edge is very small, and a 0.5B in the cloud is not large: watch who answers and why, "
            "not how clever the answers are. --full takes 0.5B and 1.5B."
        )


def _say_calibration(show: Show, prepared: Prepared, catalogue: Catalogue) -> None:
    made = "built and calibrated now" if prepared.built else "built and calibrated in an earlier run"
    show.act("The release", f"{prepared.manifest.id}, {made}")
    show.say(
        f"confidence was fitted on {len(catalogue.fitted)} items; none of the {len(catalogue.asked)} questions is "
        "among them (compared by hash)"
    )
    for bits, figures in prepared.calibration()["per_precision"].items():
        auroc = "-" if figures["auroc"] is None else f"{figures['auroc']:.2f}"
        show.say(
            f"{bits}-bit: {figures['agree_with_cloud']} of {len(catalogue.fitted)} answered as the cloud does, "
            f"AUROC of the confidence {auroc}, threshold {figures['threshold']:.2f}, "
            f"{figures['escalation_share']:.0%} of the items would escalate"
        )


def _run_dir() -> Path:
    """A fresh folder for this run's logs and picture; the oldest runs give way."""
    root = Cache.from_environment(os.environ).root / "demo-runs"
    root.mkdir(parents=True, exist_ok=True)
    for old in sorted(root.iterdir())[: -(_RUNS_KEPT - 1)]:
        shutil.rmtree(old, ignore_errors=True)
    path = root / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    path.mkdir()
    return path


def _end(outcome: Outcome, show: Show, path: Path) -> Ended:
    picture.draw(outcome.records, path)
    outcome.picture = str(path)
    figures = outcome.as_json()
    show.act("What happened")
    show.console.print(summary.table(figures))
    for line in summary.sentences(figures):
        show.say(line)
    show.say(f"picture: {path}")
    show.say(
        "bring your own: weir quantize SOURCE --out DIR --cloud-reference NAME --items FILE.jsonl, then "
        "weir edge serve --releases-dir DIR --upstream HOST:PORT"
    )
    faults = _faults(figures)
    for fault in faults:
        show.warn(f"not shown: {fault}")
    show.say(f"{outcome.seconds:.0f} s in all")
    return Ended(figures, faults)


def _faults(figures: dict[str, Any]) -> list[str]:
    """What the demo promises and this run did not show.

    On a box where 8 bits are as fast as 4 a router that keeps its precision, and says so, is right.
    """
    moot = figures["precision_plan"].startswith(PrecisionReason.DOES_NOT_MATTER)
    promises = {
        f"{figures['failed']} requests failed": figures["failed"] == 0,
        "escalation did not resume after the ranks came back": figures["resumed"],
        "the router did not change the precision": figures["precision_switches"] > 0 or moot,
        "no answer was degraded while the ranks were away": figures["degraded_answers"] > 0,
    }
    return [text for text, kept in promises.items() if not kept]
