"""Following the upstream's active release, planning the precision, and the engine that comes and goes."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from edge.activation import Activator
from edge.calibration import Calibrated
from edge.events import Activated, ActivationFailed, EngineChanged, PrecisionWeighed
from edge.follow import Follower, FollowParts
from edge.local import LocalState
from edge.precision import PrecisionLoop, PrecisionLoopSettings, PrecisionParts
from edge.rehearsal import REHEARSAL, Rehearsal
from edge.releases import find, start_with
from edge.remembered import InForce
from edge.upstream import UpstreamSettings, UpstreamState
from release.errors import ReleaseError
from release.listing import list_releases
from release.manifest import MANIFEST_NAME, Manifest, write
from router.events import PrecisionChanged
from router.network import NetworkSettings
from router.precision import PrecisionSettings
from tests.fakes.engine_control import FakeControl
from tests.fakes.inference import FakeInference
from tests.fakes.node import Events, cloud, engine
from tests.fakes.releases import write_release
from tests.unit.edge.test_calibration import entry
from wire.errors import Overloaded, Unavailable
from wire.messages import Delta, Final, GenerateEvent, GenerateRequest, Tier, Usage
from wire.service import Call, Exchange


class Node:
    """The parts that switch an engine, over fakes and a clock that is moved by hand."""

    def __init__(self, root: Path, first: Manifest, **plan: object) -> None:
        self.now = 100.0
        self.events, self.above = Events(), cloud()
        self.engine: FakeInference = engine()
        self.engine.model = dataclasses.replace(
            self.engine.model, name="tiny", release=first.id, precisions_available=(4, 8)
        )
        self.control = FakeControl(self.engine)
        clock: Callable[[], float] = lambda: self.now  # noqa: E731
        self.local = LocalState(self.engine, self.events, clock)
        settings = UpstreamSettings("up:1", network=NetworkSettings(down_after=2))
        self.state = UpstreamState(settings, self.events, clock)
        self.calibrated = Calibrated("x86-vnni", [found.manifest for found in list_releases(root).found])
        activator = Activator(self.control, self.local, self.events, clock)
        self.follower = Follower(
            FollowParts(self.above, self.state, self.local, self.calibrated, activator, self.events, clock, root),
            1.0,
        )
        parts = PrecisionParts(self.local, self.state, self.calibrated, activator, self.events, clock, lambda: False)
        self.loop = PrecisionLoop(parts, PrecisionLoopSettings(plan=PrecisionSettings(**plan)))  # type: ignore[arg-type]

    def link(self, rtt_s: float, bytes_per_s: float) -> None:
        """Lets the node measure such a link."""
        self.now += 60  # older figures are forgotten
        ms = rtt_s * 1e3
        self.state.on_exchange(Exchange("Describe", 10, 100, ms, ms, "OK"))
        self.state._link._move(self.state.network.transfer(1 << 20, (1 << 20) / bytes_per_s, self.now))

    def cut(self) -> None:
        for _ in range(2):
            self.state.on_exchange(Exchange("Describe", 10, 0, None, 1.0, "UNAVAILABLE"))

    def measure(self) -> None:
        """Lets it measure both tiers: 4-bit 20 ms a token, the cloud 10 ms."""
        answer = Final("stop", Usage(1, 32), Tier.EDGE, precision=4)
        self.local.answered(answer, 0.1, 0.1 + 31 * 0.02)
        self.state.succeeded(dataclasses.replace(answer, tier=Tier.CLOUD), 0.05, 0.05 + 31 * 0.01, 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "releases"


def calibrated_release(folder: Path, version: str) -> Manifest:
    """4-bit escalates half of its requests, 8-bit a fifth; both err alike."""
    manifest = write_release(folder, version=version)
    entries = (entry("end", 0.5, 4, escalation_share=0.5), entry("end", 0.5, 8, escalation_share=0.2))
    text = write(dataclasses.replace(manifest, calibrations=entries))
    (folder / MANIFEST_NAME).write_text(text)
    return list_releases(folder).found[0].manifest


async def test_a_full_disk_ends_no_switch(root: Path) -> None:
    def full(_last: InForce) -> None:
        raise OSError(28, "No space left on device")

    node = Node(root, calibrated_release(root / "a", "1.0.0"))
    activator = Activator(node.control, node.local, node.events, lambda: 0.0, full)
    assert await activator.put(None, "", 4, "a test")
    assert node.local.served is not None
    assert node.local.served.precision == 4


async def test_the_active_release_is_followed_and_a_missing_one_is_said_once(root: Path) -> None:
    first, second = calibrated_release(root / "a", "1.0.0"), calibrated_release(root / "b", "1.1.0")
    node = Node(root, first)
    await node.local.refresh()
    node.above.active_releases = {"tiny": "tiny@7.0.0+abcdefabcdef"}
    for _ in range(3):
        assert await node.follower.step()
    failed = [event for event in node.events.seen if isinstance(event, ActivationFailed)]
    assert len(failed) == 1
    assert first.id in failed[0].message
    assert node.control.asked == []
    node.above.active_releases = {"tiny": second.id}
    await node.follower.step()
    assert node.control.asked == [(str(root / "b"), 8)]
    assert node.local.served is not None
    assert node.local.served.release == second.id
    await node.follower.step()
    assert len(node.control.asked) == 1


async def test_a_release_that_arrives_later_is_followed_then(root: Path) -> None:
    first = calibrated_release(root / "a", "1.0.0")
    node = Node(root, first)
    await node.local.refresh()
    later = calibrated_release(root.parent / "elsewhere", "2.0.0")
    node.above.active_releases = {"tiny": later.id}
    await node.follower.step()
    (root.parent / "elsewhere").rename(root / "c")
    node.now += 11
    await node.follower.step()
    assert node.local.served is not None
    assert node.local.served.release == later.id
    assert node.calibrated.entry(later.id, 8) is not None


async def test_a_release_that_cannot_be_loaded_is_tried_again_only_after_a_while(root: Path) -> None:
    first, second = calibrated_release(root / "a", "1.0.0"), calibrated_release(root / "b", "1.1.0")
    node = Node(root, first)
    await node.local.refresh()
    node.control.fail = Overloaded("too little memory")
    node.above.active_releases = {"tiny": second.id}
    for _ in range(5):
        await node.follower.step()
    assert len(node.control.asked) == 1
    node.now, node.control.fail = node.now + 11, None
    await node.follower.step()
    assert node.local.served is not None
    assert node.local.served.release == second.id


async def test_an_upstream_that_is_away_changes_nothing(root: Path) -> None:
    node = Node(root, calibrated_release(root / "a", "1.0.0"))
    await node.local.refresh()
    node.above.fail_before = Unavailable("gone")
    assert not await node.follower.step()
    assert node.control.asked == []


async def test_the_precision_follows_the_link(root: Path) -> None:
    node = Node(root, calibrated_release(root / "a", "1.0.0"), dwell_s=5.0)
    await node.local.refresh()
    await node.loop.step()
    assert node.control.asked == []  # nothing is known: what is, stays
    node.measure()
    node.link(0.005, 1e8)
    await node.loop.step()
    assert node.control.asked == [("", 4)]
    assert node.local.served is not None
    assert node.local.served.precision == 4
    node.link(1.0, 2_000)
    await node.loop.step()
    assert node.control.asked == [("", 4), ("", 8)]
    changes = [event for event in node.events.seen if isinstance(event, PrecisionChanged)]
    assert [(change.before, change.plan.bits) for change in changes] == [(8, 4), (4, 8)]
    assert changes[1].plan.text
    done = [event for event in node.events.seen if isinstance(event, Activated)]
    assert "escalating_is_dear" in done[1].why
    for _ in range(3):
        await node.loop.step()
    assert len(node.control.asked) == 2


async def test_a_dead_link_brings_eight_bits_home(root: Path) -> None:
    node = Node(root, calibrated_release(root / "a", "1.0.0"))
    await node.local.refresh()
    node.measure()
    node.link(0.005, 1e8)
    await node.loop.step()
    node.now += 6
    node.cut()
    await node.loop.step()
    assert node.control.asked[-1] == ("", 8)


class Slower(FakeInference):
    """Takes longer by the bits it is at: 4-bit 0.1 s and 10 ms a token, 8-bit thrice and twice that."""

    node: Node

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        eight = self.model.precision == 8
        first = True
        async for event in super().generate(request, call):
            if isinstance(event, Delta):
                self.node.now += (0.3 if eight else 0.1) if first else (0.02 if eight else 0.01)
                first = False
            yield event


def rehearsing(root: Path) -> Node:
    node = Node(root, calibrated_release(root / "a", "1.0.0"))
    slower = Slower(model=dataclasses.replace(node.engine.model, precision=8))
    slower.node, node.engine, node.control.inference = node, slower, slower
    node.local._engine = slower
    parts = dataclasses.replace(
        node.loop._parts, rehearsal=Rehearsal(slower, node.loop._parts.activator, lambda: node.now)
    )
    node.loop = PrecisionLoop(parts, PrecisionLoopSettings())
    return node


async def test_every_precision_is_measured_once_and_what_was_served_is_served_again(root: Path) -> None:
    node = rehearsing(root)
    await node.local.refresh()
    for _ in range(3):
        await node.loop.step()
    assert node.control.asked == [("", 4), ("", 8)]
    assert all(event.why == REHEARSAL for event in node.events.seen if isinstance(event, Activated))
    node.local.answered(Final("stop", Usage(1, 11), Tier.EDGE, precision=8), 0.6, 1.0)  # busier than in the rehearsal
    assert node.local.served is not None
    four, eight = (node.loop._figures(node.local.served, bits) for bits in (4, 8))
    assert not (four.assumed or eight.assumed)
    assert (eight.first_token_s, eight.per_token_s) == pytest.approx((0.6, 0.04))
    assert (four.first_token_s, four.per_token_s) == pytest.approx((0.2, 0.02))


async def test_a_rehearsal_that_fails_leaves_the_usual_guess(root: Path) -> None:
    node = rehearsing(root)
    await node.local.refresh()
    node.engine.fail_after = (1, Unavailable("died"))
    await node.loop.step()
    node.engine.fail_after = None
    assert node.local.served is not None
    assert node.local.served.precision == 8
    node.local.answered(Final("stop", Usage(1, 11), Tier.EDGE, precision=8), 0.6, 1.0)
    guess = node.loop._figures(node.local.served, 4)
    assert (guess.per_token_s < 0.04, guess.assumed) == (True, True)
    await node.loop.step()
    assert node.control.asked[-1] == ("", 8)


def four_alone(node: Node) -> None:
    """The residual has not arrived yet."""
    node.engine.model = dataclasses.replace(node.engine.model, precision=4, precisions_available=(4,))


async def test_eight_that_is_not_here_is_wanted_and_held_once_it_is(root: Path) -> None:
    node = Node(root, calibrated_release(root / "a", "1.0.0"))
    four_alone(node)
    await node.local.refresh()
    node.measure()
    node.link(1.0, 2_000)
    for _ in range(3):
        await node.loop.step()
        node.now += 1
    assert node.control.asked == []
    plan = node.loop.plan
    assert plan is not None
    assert (plan.bits, plan.wanted, plan.reason) == (4, 8, "not_here_yet")
    assert plan.text.startswith("8-bit is not here yet, so 4-bit is held: expected cost of a request: 4-bit ")
    assert plan.text.endswith("; the speed of 8-bit is assumed")
    node.engine.model = dataclasses.replace(node.engine.model, precisions_available=(4, 8))
    await node.local.refresh()
    await node.loop.step()
    assert node.control.asked == [("", 8)]


async def test_what_was_wanted_of_another_release_is_forgotten(root: Path) -> None:
    first, second = write_release(root / "a", version="1.0.0"), write_release(root / "b", version="1.1.0")
    node = Node(root, first)
    text = write(dataclasses.replace(first, precisions=(4,)))
    (root / "a" / MANIFEST_NAME).write_text(text)
    node.calibrated.update([found.manifest for found in list_releases(root).found])
    release = next(found.manifest.id for found in list_releases(root).found if found.path.name == "a")
    node.engine.model = dataclasses.replace(node.engine.model, release=release, precision=4, precisions_available=(4,))
    await node.local.refresh()
    await node.loop.step()
    assert node.loop.plan is not None
    assert (node.loop.plan.wanted, node.loop.plan.reason) == (4, "only_one")
    node.engine.model = dataclasses.replace(node.engine.model, release=second.id)
    await node.local.refresh()
    await node.loop.step()
    assert (node.loop.plan.wanted, node.loop.plan.reason) == (8, "not_here_yet")


async def test_eight_that_was_pinned_is_held_once_it_is_here(root: Path) -> None:
    node = Node(root, calibrated_release(root / "a", "1.0.0"), pinned=8)
    four_alone(node)
    await node.local.refresh()
    await node.loop.step()
    assert node.control.asked == []
    node.engine.model = dataclasses.replace(node.engine.model, precisions_available=(4, 8))
    await node.local.refresh()
    await node.loop.step()
    assert node.control.asked == [("", 8)]


async def test_what_arrives_is_rehearsed(root: Path) -> None:
    node = rehearsing(root)
    four_alone(node)
    await node.local.refresh()
    await node.loop.step()
    assert node.control.asked == []
    node.engine.model = dataclasses.replace(node.engine.model, precisions_available=(4, 8))
    await node.local.refresh()
    for _ in range(3):
        await node.loop.step()
    assert node.control.asked == [("", 8), ("", 4)]


async def test_a_release_that_is_here_in_part_is_followed_at_what_is_here(root: Path) -> None:
    first, second = calibrated_release(root / "a", "1.0.0"), calibrated_release(root / "b", "1.1.0")
    node = Node(root, first)
    await node.local.refresh()
    for name in ("plane.lo.bin", "plane.hi.bin"):
        (root / "b" / name).rename(root.parent / name)
    node.above.active_releases = {"tiny": second.id}
    await node.follower.step()
    assert node.control.asked == []
    (root.parent / "plane.hi.bin").rename(root / "b" / "plane.hi.bin")
    node.now += 11
    await node.follower.step()
    assert node.control.asked == [(str(root / "b"), 4)]


async def test_a_pinned_node_rehearses_nothing(root: Path) -> None:
    node = rehearsing(root)
    node.loop = PrecisionLoop(node.loop._parts, PrecisionLoopSettings(plan=PrecisionSettings(pinned=8)))
    await node.local.refresh()
    await node.loop.step()
    assert node.control.asked == []


async def test_what_the_plan_weighs_is_told_when_its_reason_changes(root: Path) -> None:
    node = Node(root, calibrated_release(root / "a", "1.0.0"))
    await node.local.refresh()
    for _ in range(3):
        await node.loop.step()
    node.measure()
    node.link(0.005, 1e8)
    await node.loop.step()
    told = [event.plan.reason for event in node.events.seen if isinstance(event, PrecisionWeighed)]
    assert told == ["link_unknown", "escalating_is_cheap"]


async def test_the_plan_is_made_for_answers_as_long_as_they_have_been(root: Path) -> None:
    node = Node(root, calibrated_release(root / "a", "1.0.0"))
    assert node.loop._usual().tokens == PrecisionSettings().tokens
    for tokens in (4, 4, 6):
        node.local.answered(Final("stop", Usage(1, tokens), Tier.EDGE, precision=8), 0.1, 0.2)
    assert node.loop._usual().tokens == 4


async def test_a_switch_that_fails_is_not_tried_over_and_over(root: Path) -> None:
    node = Node(root, calibrated_release(root / "a", "1.0.0"), dwell_s=5.0)
    await node.local.refresh()
    node.measure()
    node.link(0.005, 1e8)
    node.control.fail = Overloaded("too little memory")
    for _ in range(4):
        await node.loop.step()
    assert len(node.control.asked) == 1
    assert node.loop.plan is not None
    assert node.loop.plan.bits == 8


async def test_an_engine_that_came_back_with_other_bits_is_put_right(root: Path) -> None:
    node = Node(root, calibrated_release(root / "a", "1.0.0"), pinned=4)
    await node.local.refresh()
    await node.loop.step()
    assert node.control.asked == [("", 4)]
    node.engine.model = dataclasses.replace(node.engine.model, precision=8)
    node.local.failed()
    await node.loop.step()
    assert len(node.control.asked) == 1  # nothing is asked of an engine that is away
    await node.local.refresh()
    await node.loop.step()
    assert node.control.asked == [("", 4), ("", 4)]


async def test_the_watch_notices_an_engine_that_goes_and_comes() -> None:
    fake, events = engine(), Events()
    local = LocalState(fake, events, time.monotonic)
    watching = asyncio.create_task(local.watch())
    async with asyncio.timeout(5):
        while not local.available:
            await asyncio.sleep(0.01)
        fake.fail_before = Unavailable("killed")
        local.failed()
        assert not local.available
        await asyncio.sleep(0.3)
        fake.fail_before = None
        while not local.available:
            await asyncio.sleep(0.01)
    watching.cancel()
    assert [event.available for event in events.seen if isinstance(event, EngineChanged)] == [True, False, True]


def test_a_node_starts_on_what_it_can_serve_and_on_nothing_else(root: Path) -> None:
    write_release(root / "c", name="pictures", task="draw")
    with pytest.raises(ReleaseError, match="made to draw, which this version does not serve"):
        start_with(root, "")
    labels = write_release(root / "d", name="intents", task="classify")
    assert start_with(root, "").manifest.id == labels.id
    assert start_with(root, "any name").manifest.id == labels.id
    with pytest.raises(ReleaseError, match="no release of 'any name'"):
        start_with(root, "any name", named=True)


def test_a_node_starts_with_the_newest_release_of_its_model(root: Path) -> None:
    with pytest.raises(ReleaseError, match="not a folder"):
        start_with(root, "")
    write_release(root / "a", version="1.9.0")
    write_release(root / "b", version="1.10.0")
    write_release(root / "c", version="1.10.0-rc1")
    assert start_with(root, "").manifest.version == "1.10.0"
    other = write_release(root / "d", name="other")
    with pytest.raises(ReleaseError, match="other, tiny"):
        start_with(root, "")
    assert start_with(root, "other").manifest.id == other.id
    with pytest.raises(ReleaseError, match="no release of 'third'"):
        start_with(root, "third")
    assert find(root, other.id) is not None
    assert find(root, "other@1.0.0+nothing") is None
