"""Asks the upstream who it is: the idle probe of the link, and the word on which release to serve.

The upstream names the active release of every model. When it names another one than the engine
serves and that release lies on this node, it is put in force; when it does not, the node keeps what
it has and says so once. An upstream that cannot be reached changes nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edge.activation import Activator
from edge.calibration import Calibrated
from edge.events import ActivationFailed, Sink
from edge.local import LocalState
from edge.ports import Clock
from edge.releases import find, precisions_here
from edge.upstream import UpstreamState
from release.errors import ReleaseError
from release.listing import list_releases
from wire.deadline import Deadline
from wire.description import Description
from wire.errors import WeirError
from wire.service import Call, InferenceService

_PROBE_S = 8.0
_SOON_S = 0.5
_AGAIN_S = 10.0
_FOLLOWING = "the upstream's active release"


@dataclass(frozen=True, slots=True)
class FollowParts:
    """What the follower looks at and acts through. Without a `releases_dir` it only asks: the updater follows."""

    upstream: InferenceService
    state: UpstreamState
    local: LocalState
    calibrated: Calibrated
    activator: Activator
    sink: Sink
    clock: Clock
    releases_dir: Path | None


class Follower:
    """One per model. Of several, one asks the upstream, and has the `others` follow what it heard."""

    def __init__(self, parts: FollowParts, interval_s: float) -> None:
        self._parts, self._interval_s = parts, interval_s
        self.others: tuple[Follower, ...] = ()
        self._told = ""  # the release that was said to be missing or broken
        self._again_at = -math.inf  # when to look for it once more

    async def run(self) -> None:
        """Probes and follows until cancelled. Sooner while the upstream is away, to notice its return."""
        while True:
            heard = await self.step()
            await asyncio.sleep(self._interval_s if heard else min(self._interval_s, _SOON_S))

    async def step(self) -> bool:
        """Asks once. Says whether the upstream answered and is ready."""
        description = await self._ask()
        self._parts.state.described(description)
        if description is None:
            return False
        for follower in (self, *self.others):
            await follower.follow(description.active_releases)
        return description.ready

    async def _ask(self) -> Description | None:
        padding = self._parts.state.probing()
        try:
            return await self._parts.upstream.describe(Call(Deadline.after(_PROBE_S)), padding)
        except WeirError:
            return None

    async def follow(self, active: Mapping[str, str]) -> None:
        """Puts the release in force that `active` names for this model, where it is on this node."""
        parts, served = self._parts, self._parts.local.served
        if served is None or not parts.local.available or parts.releases_dir is None:
            return
        own_name = served.release.partition("@")[0]
        wanted = active.get(served.name) or active.get(own_name) or ""
        if not wanted or wanted == served.release:
            self._told = ""
            return
        if wanted == self._told and parts.clock() < self._again_at:
            return
        try:
            found = await asyncio.to_thread(find, parts.releases_dir, wanted)
            manifests = [entry.manifest for entry in (await asyncio.to_thread(list_releases, parts.releases_dir)).found]
        except ReleaseError as error:
            self._keep(wanted, served.precision, str(error))
            return
        if found is None:
            self._keep(wanted, served.precision, f"it is not in {parts.releases_dir}; {served.release} stays")
            return
        parts.calibrated.update(manifests)
        here = precisions_here(found)
        if not here:
            self._keep(wanted, served.precision, f"no precision of it is complete in {found.path} yet")
            return
        precision = served.precision if served.precision in here else here[0]
        if not await parts.activator.put(found.path, wanted, precision, _FOLLOWING):
            self._told, self._again_at = wanted, parts.clock() + _AGAIN_S

    def _keep(self, wanted: str, precision: int, message: str) -> None:
        told, self._told = self._told, wanted
        self._again_at = self._parts.clock() + _AGAIN_S
        if told == wanted:
            return
        self._parts.sink.emit(ActivationFailed(self._parts.clock(), wanted, precision, _FOLLOWING, message))
