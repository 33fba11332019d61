"""The demo's acts. Each asks real questions of the real processes and shows what comes back.

Nothing is arranged behind the scenes: the router sees the link as it is, and decides by itself. What
an act needs from the outside world it does in the open: shape the link, kill processes.

Must not know: how processes are started, how figures are added up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict

from bench.link import Shape
from weir.client import Answer
from weir.demo.questions import Catalogue, Item
from weir.demo.record import Record, from_answer, of_act
from weir.demo.scene import NARROW, WIDE, Scene
from weir.demo.show import Show
from weir.demo.summary import BACK, CASCADE, CLOUD_ONLY, CUT, Outcome
from weir.demo.summary import NARROW as NARROW_ACT
from wire.errors import WeirError

DEADLINE_S = 30.0
SETTLE_S, SWITCH_S, RECOVERY_S, RESUME_S = 30.0, 60.0, 150.0, 60.0
_FEW, _FIRST = 8, 2
_BACK = 4


class Play:
    """One performance; `outcome` collects what happened."""

    def __init__(self, scene: Scene, catalogue: Catalogue, show: Show, outcome: Outcome) -> None:
        self._scene, self._show, self._outcome = scene, show, outcome
        self._asked, self._warm = catalogue.asked, catalogue.fitted
        self._noticed = 0  # switches shown
        self._killed_at = 0.0

    async def run(self) -> None:
        """All acts in their order."""
        await self.warm_up()
        await self.cascade_and_cloud()
        await self.narrow()
        await self.cut()
        await self.back()
        self._scene.events.look()
        self._outcome.switches = [asdict(switch) for switch in self._scene.events.switches]

    async def warm_up(self) -> None:
        """A few requests that do not count, so that the node knows its own speed and the cloud's."""
        show, scene = self._show, self._scene
        show.act("Warming up", "the node measures itself, the link and the cloud before anything counts")
        of_each_task = {item.task: item for item in self._warm}
        for item in reversed(of_each_task.values()):
            await self._answer(item, "edge_only")
            await self._answer(item, "cloud_only")
        self._outcome.link_wide = await scene.measure_link(narrow=False)
        await self._until_planned(SETTLE_S)
        await self._notice()
        show.say(f"the node serves {await scene.precision()}-bit weights; {self._words()}")

    async def cascade_and_cloud(self) -> None:
        """Act one: every question by the cascade, then every question by the cloud alone."""
        show = self._show
        show.act(
            "Act 1a · the cascade",
            f"{len(self._asked)} questions; what the edge is unsure of goes to the cloud over a wide link",
        )
        show.header()
        for item in self._asked:
            await self._ask(CASCADE, item)
        show.act("Act 1b · the cloud alone", "the same questions over the same link, every one answered in the cloud")
        show.header()
        for item in self._asked:
            await self._ask(CLOUD_ONLY, item, "cloud_only")

    async def narrow(self) -> None:
        """Act two: the link is narrowed, the router notices by itself and changes precision and threshold."""
        show, scene = self._show, self._scene
        before, switches, began = await scene.precision(), len(scene.events.switches), time.monotonic()
        show.act("Act 2 · a narrow link", f"{_shape(WIDE)} becomes {_shape(NARROW)}")
        scene.link.shape(NARROW)
        show.header()
        for item in self._unsure()[:_FIRST]:
            await self._ask(NARROW_ACT, item)
        if await self._until_switched(switches, SWITCH_S):
            show.say(f"that was {time.monotonic() - began:.1f} s after the link changed")
        else:
            show.warn(f"the router kept {before} bits for {SWITCH_S:.0f} s; {self._words()}")
        self._outcome.link_narrow = await scene.measure_link(narrow=True)
        for item in self._few():
            await self._ask(NARROW_ACT, item)
        self._outcome.precision_plan = scene.events.plan
        scene.link.shape(WIDE)
        show.say(f"the link is wide again: {_shape(WIDE)}")

    async def cut(self) -> None:
        """Act three: the ranks die; answers keep coming."""
        show = self._show
        show.act("Act 3 · the cloud's ranks are killed", "SIGKILL to every process that holds the cloud's weights")
        pids = await self._scene.kill_ranks()
        self._outcome.ranks_killed = pids
        self._killed_at = time.monotonic()
        show.say(f"killed {', '.join(map(str, pids))}")
        show.header()
        for item in self._few():
            await self._ask(CUT, item)

    async def back(self) -> None:
        """Act four: the group has been respawned by its host; escalation resumes."""
        show, scene, outcome = self._show, self._scene, self._outcome
        show.act("Act 4 · the ranks come back by themselves")
        await scene.troupe.until("the ranks' return", scene.cloud_ready, RECOVERY_S)
        outcome.recovery_s = round(time.monotonic() - self._killed_at, 1)
        show.say(f"the engine host respawned them; ready {outcome.recovery_s:.1f} s after the kill")
        show.header()
        unsure = (self._unsure() or list(self._asked))[:_BACK]
        end = time.monotonic() + RESUME_S
        while time.monotonic() < end and not outcome.resumed:
            for item in unsure:
                record = await self._ask(BACK, item)
                outcome.resumed = outcome.resumed or record.tier == "cloud"
                if time.monotonic() > end:
                    break
            await asyncio.sleep(1.0)
            await self._notice()

    async def _ask(self, act: str, item: Item, tier: str = "auto") -> Record:
        began = time.monotonic()
        try:
            record = from_answer(act, item.task, item.text, await self._answer(item, tier))
        except WeirError as error:
            ms = (time.monotonic() - began) * 1e3
            record = Record(act, item.task, item.text, "", ms, error=f"{type(error).__name__}: {error.message}")
        self._outcome.records.append(record)
        self._show.record(record)
        await self._notice()
        return record

    async def _answer(self, item: Item, tier: str) -> Answer:
        return await self._scene.edge.generate(
            item.messages,
            max_tokens=item.max_tokens,
            stop=item.stop,
            temperature=0.0,
            tier=tier,  # type: ignore[arg-type]
            deadline_s=DEADLINE_S,
            request_class=item.task,
        )

    def _few(self) -> Sequence[Item]:
        """Some questions of act one: those that were escalated first, then others."""
        unsure = self._unsure()
        return (unsure[: _FEW // 2] + [item for item in self._asked if item not in unsure])[:_FEW]

    def _unsure(self) -> list[Item]:
        went = {record.question for record in of_act(self._outcome.records, CASCADE) if record.tier == "cloud"}
        return [item for item in self._asked if item.text in went]

    async def _until_planned(self, seconds: float) -> None:
        """Waits until the precision has stood still for three planning rounds."""
        end, still, last = time.monotonic() + seconds, 0, 0
        while time.monotonic() < end and still < 4:
            now = await self._scene.precision()
            still, last = (still + 1 if now == last else 0), now
            await asyncio.sleep(1.0)

    async def _until_switched(self, switches: int, seconds: float) -> bool:
        """Waits until the node has put another precision in force than `switches` switches ago."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await self._notice()
            if len(self._scene.events.switches) > switches:
                return True
            await asyncio.sleep(0.5)
        return False

    async def _notice(self) -> None:
        """Shows what the router changed by itself since the last look."""
        await self._scene.precision()
        events = self._scene.events
        for switch in events.switches[self._noticed :]:
            threshold = events.thresholds.get(switch.precision)
            now = "" if threshold is None else f", threshold now {threshold:.2f}"
            self._show.router(f"{switch.before} → {switch.precision} bits{now} · {switch.why}")
        self._noticed = len(events.switches)

    def _words(self) -> str:
        return self._scene.events.plan or "the router has not weighed its precision yet"


def _shape(shape: Shape) -> str:
    rate = "unlimited" if shape.bytes_per_s is None else f"{shape.bytes_per_s / 1e3:.0f} kB/s"
    return f"{rate}, {shape.delay_s * 1e3:.0f} ms each way"
