"""Trials of releases, step by step, with an engine that is played: what is tried when, and what is let go."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

from edge.activation import Activator
from edge.local import LocalState
from edge.slot_file import SlotFile
from edge.slots import Slots
from edge.updater.events import ReleaseForgiven
from edge.updater.trials import TrialParts, Trials, TrialSettings
from release.listing import Found
from release.store import Store
from tests.fakes.disk import QuickDisk
from tests.fakes.engine_control import FakeControl
from tests.fakes.inference import FakeInference
from tests.fakes.node import Events
from tests.fakes.releases import write_release
from wire.description import ModelInfo
from wire.errors import Overloaded
from wire.messages import Tier

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


async def test_a_node_with_nothing_but_bad_releases_tries_them_again_ever_less_often(tmp_path: Path) -> None:
    trying = Trying(tmp_path)
    first, second = trying.add("1.0.0"), trying.add("2.0.0")
    trying.settled(bad={second: "it crashed", first: "the disk failed"})
    forgiven = []
    for second_of_day in range(0, 7200, 5):
        trying.now = float(second_of_day)
        slots = await trying.step("")
        for release in {first, second} - set(slots.bad):
            forgiven.append((second_of_day, release))
            trying.settled(bad={**slots.bad, release: "again"})
    assert [release for _, release in forgiven[:4]] == [second, first, second, first]
    waits = [later - earlier for (earlier, _), (later, _) in pairwise(forgiven)]
    assert forgiven[0][0] == 60
    assert waits == sorted(waits)
    assert waits[0] >= 120
    assert max(waits) <= 3700


async def test_a_lone_release_that_had_a_bad_moment_comes_back_by_itself(tmp_path: Path) -> None:
    trying = Trying(tmp_path)
    lone = trying.add("1.0.0")
    trying.settled(bad={lone: "Input/output error"})
    assert lone in (await trying.step("")).bad
    trying.now = 61.0
    assert (await trying.step("")).bad == {}
    assert await trying.step(lone) == Slots(trial=lone)
    told = [event for event in trying.events.seen if isinstance(event, ReleaseForgiven)]
    assert [(event.release, event.reason) for event in told] == [(lone, "Input/output error")]


async def test_what_can_be_served_leaves_bad_releases_alone(tmp_path: Path) -> None:
    trying = Trying(tmp_path)
    good, bad = trying.add("1.0.0"), trying.add("2.0.0")
    trying.settled(current=good, bad={bad: "it crashed"}, precision=4)
    await trying.serves(good)
    for second in range(0, 7200, 60):
        trying.now = float(second)
        assert bad in (await trying.step(good)).bad
