"""Trials of releases, step by step, with an engine that is played: what is tried when, and what is let go."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

from edge.activation import Activator
from edge.local import LocalState
from edge.slot_file import SlotFile
from edge.slots import Slots
from edge.updater.trials import TrialParts, Trials, TrialSettings
from release.listing import Found
from release.store import Store
from tests.fakes.disk import QuickDisk
from tests.fakes.engine_control import FakeControl
from tests.fakes.inference import FakeInference
from tests.fakes.node import Events
from tests.fakes.releases import write_release
from wire.errors import Overloaded
from wire.messages import ModelInfo, Tier

MODEL = "tiny"


@dataclasses.dataclass
class Trying:
    """Releases that are here, an engine that serves one of them or none, and a clock that is set by hand."""

    root: Path
    now: float = 0.0

    def __post_init__(self) -> None:
        self.here: dict[str, Found] = {}
        self.events = Events()
        self.engine = FakeInference(Tier.EDGE, model=ModelInfo(MODEL, precision=4))
        self.control = FakeControl(self.engine)
        self.local = LocalState(self.engine, self.events, lambda: self.now)
        store = Store(self.root, disk=QuickDisk())
        store.prepare()
        self.slots = SlotFile(self.root, QuickDisk())
        activator = Activator(self.control, self.local, self.events, lambda: self.now)
        parts = TrialParts(
            store, self.slots, self.local, activator, self.events, lambda: self.now, lambda _manifest: None
        )
        self.trials = Trials(parts, TrialSettings())

    def add(self, version: str) -> str:
        folder = self.root / "releases" / version
        manifest = write_release(folder, version=version)
        self.here[manifest.id] = Found(folder, manifest)
        return manifest.id

    def settled(self, **slots: object) -> None:
        self.slots.change(MODEL, lambda _now: Slots(**slots))  # type: ignore[arg-type]

    async def serves(self, release: str) -> None:
        self.engine.model = dataclasses.replace(self.engine.model, release=release)
        await self.local.refresh()

    async def step(self, target: str) -> Slots:
        return await self.trials.step(MODEL, target, self.here, more_is_coming=False)


async def test_a_release_that_does_not_start_any_more_gives_way_to_another(tmp_path: Path) -> None:
    trying = Trying(tmp_path)
    old, new = trying.add("1.0.0"), trying.add("2.0.0")
    trying.settled(current=old)
    assert await trying.step(new) == Slots(current=old)
    trying.now = 119.0
    assert await trying.step(new) == Slots(current=old)
    trying.now = 121.0
    assert await trying.step(new) == Slots(current=old, trial=new)


async def test_a_pause_in_serving_is_no_reason_to_give_way(tmp_path: Path) -> None:
    trying = Trying(tmp_path)
    old, new = trying.add("1.0.0"), trying.add("2.0.0")
    trying.settled(current=old)
    await trying.step(new)
    trying.now = 100.0
    await trying.serves(old)
    await trying.step(old)
    trying.now, trying.engine.ready = 130.0, False
    await trying.local.refresh()
    assert await trying.step(new) == Slots(current=old, precision=4)


async def test_a_trial_that_nobody_wants_any_more_is_let_go(tmp_path: Path) -> None:
    trying = Trying(tmp_path)
    old, withdrawn = trying.add("1.0.0"), trying.add("2.0.0")
    trying.settled(current=old, trial=withdrawn, boots=1, precision=4)
    await trying.serves(old)
    assert await trying.step(old) == Slots(current=old, precision=4)


async def test_a_release_that_finds_no_memory_is_tried_ever_less_often(tmp_path: Path) -> None:
    trying = Trying(tmp_path)
    old, large = trying.add("1.0.0"), trying.add("2.0.0")
    trying.settled(current=old, precision=4)
    await trying.serves(old)
    trying.control.fail = Overloaded("there is too little memory for these weights")
    tried = []
    for second in range(3600):
        trying.now, before = float(second), len(trying.control.asked)
        slots = await trying.step(large)
        if len(trying.control.asked) > before:
            tried.append(second)
        assert slots == Slots(current=old, precision=4)
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert gaps[:4] == [10, 20, 40, 80]
    assert max(gaps) == 600
