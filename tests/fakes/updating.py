"""The real updater over a real store, with an engine and a launcher that are played in memory."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from edge.activation import Activator
from edge.local import LocalState
from edge.slot_file import SlotFile
from edge.slots import Slots
from edge.updater.catalogue import Catalogues
from edge.updater.fetch import Fetcher, Patience
from edge.updater.ledger import Ledger
from edge.updater.loop import Updater
from edge.updater.parts import Planner, UpdaterParts, UpdaterSettings
from edge.updater.sources import HttpSource, Manners, Source, source_at
from edge.updater.status import StatusFile
from edge.updater.trials import TrialParts, Trials, TrialSettings
from release.disk import Disk
from release.manifest import Manifest
from release.store import Store, free_bytes
from router.precision import PrecisionPlan
from router.transfer import TransferView, plan_transfer
from tests.fakes.disk import QuickDisk
from tests.fakes.engine_control import FakeControl
from tests.fakes.inference import FakeInference
from tests.fakes.node import Events
from wire.description import ModelInfo
from wire.messages import Tier

QUICK = Patience(failures=4, first_rest_s=0.01, most_rest_s=0.3)
POLITE = Manners(connect_s=2.0, silence_s=0.8, lowest_bytes_per_s=2_000, lowest_after_s=0.5)
MODEL = "tiny"


def http(url: str, *, costs: bool = True) -> Source:
    """A server that is given little time."""
    return HttpSource(url, POLITE, costs=costs)


@dataclasses.dataclass
class UpdatingNode:
    """`root` is the store; `serving` the release of the engine, empty for none."""

    root: Path
    trusted_root: Path | None
    sources: Sequence[Source | str]
    settings: UpdaterSettings = dataclasses.field(default_factory=UpdaterSettings)
    serving: str = ""
    pinned: int | None = None
    disk: Disk = dataclasses.field(default_factory=QuickDisk)
    keep_free_bytes: int = 0
    free: Callable[[Path], int] = free_bytes
    active: Mapping[str, str] = dataclasses.field(default_factory=dict)
    plan: Planner = plan_transfer
    precision: PrecisionPlan | None = None
    prove_after_s: float = 0.1
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        self.events = Events()
        self.engine = FakeInference(Tier.EDGE, model=ModelInfo(MODEL, self.serving, precision=4))
        self.control = FakeControl(self.engine)
        self.local = LocalState(self.engine, self.events, time.monotonic)
        self.store = Store(self.root, self.keep_free_bytes, self.disk, self.free)
        self.slot_file = SlotFile(self.root, self.disk)
        self.made = [source_at(place) if isinstance(place, str) else place for place in self.sources]
        uniform = random.Random(7).random
        activator = Activator(self.control, self.local, self.events, time.monotonic)
        trials = Trials(
            TrialParts(
                self.store, self.slot_file, self.local, activator, self.events, time.monotonic, lambda _manifest: None
            ),
            TrialSettings(self.prove_after_s, self.pinned),
        )
        self.fetcher = Fetcher(self.store, self.made, self.events, time.monotonic, uniform, patience=QUICK)
        self.root.mkdir(parents=True, exist_ok=True)
        parts = UpdaterParts(
            self.store,
            Catalogues(
                self.store,
                self.trusted_root,
                self.made[::-1],
                self.events,
                time.monotonic,
                now=self.now,
            ),
            self.fetcher,
            trials,
            Ledger(self.root / "spent.json", self.now, self.disk),
            StatusFile(self.root, "test"),
            lambda _manifest: TransferView(serving=self.local.available, plan=self.precision),
            lambda: self.active,
            lambda: self.local.served.release if self.local.served is not None else "",
            lambda _manifest: None,
            self.plan,
            self.events,
            time.monotonic,
            self.now,
            uniform,
        )
        quick = dataclasses.replace(
            self.settings, look_s=0.02, plan_s=0.02, first_retry_s=0.05, most_retry_s=0.2, told_every_s=0.2
        )
        quick = dataclasses.replace(quick, interval_s=min(quick.interval_s, 0.2))
        self.updater = Updater(parts, self.slot_file, quick)

    @property
    def slots(self) -> Slots:
        return self.slot_file.read(MODEL)

    async def run_until(self, done: Callable[[], bool], seconds: float = 20.0) -> None:
        """Runs the updater until `done`. Raises AssertionError with what was told."""
        if self.serving:
            await self.local.refresh()
        running = asyncio.create_task(self.updater.run())
        try:
            async with asyncio.timeout(seconds):
                while not done():
                    if running.done():
                        await running
                    await asyncio.sleep(0.01)
        except TimeoutError as error:
            raise AssertionError(f"not within {seconds} s: {self.updater.status}, {self.events.seen[-5:]}") from error
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            for source in self.made:
                await source.close()

    def holds(self, manifest: Manifest, *, all_of_it: bool = True) -> bool:
        files = manifest.files if all_of_it else ()
        return self.store.folder(manifest.id).is_dir() and self.store.complete(manifest.id, files)
