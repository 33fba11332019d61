"""The updater: three loops that keep a node at the release it should serve.

    refreshing   the signed catalogue, every now and then
    bringing     the parts of the wanted release into the store, as the transfer plan says
    adopting     what came is put on trial, proved or returned; what nothing needs goes

They share what the last look found. A fault of the network, of a source, of the disk or of a release is
told and tried again, ever less often; none of them ends a loop, and none touches what serves.
"""

from __future__ import annotations

import asyncio
import contextlib

from edge.releases import SERVED_TASKS, model_among, precisions_here
from edge.slot_file import SlotFile
from edge.slots import Slots
from edge.updater.bring import Bringer
from edge.updater.events import ReleaseKept
from edge.updater.held import Held
from edge.updater.parts import Needed, UpdaterParts, UpdaterSettings
from edge.updater.sources import Source
from edge.updater.status import Status
from edge.updater.threads import in_thread
from edge.updater.wanted import Known, Wanted, wanted
from release.errors import ReleaseError
from release.listing import Found
from release.manifest import Manifest
from release.trust.catalogue import Offer, precedence


class Updater:
    """One per node."""

    def __init__(self, parts: UpdaterParts, slots: SlotFile, settings: UpdaterSettings) -> None:
        self._parts, self._slots, self._settings = parts, slots, settings
        self._held = Held(parts.store)
        self._bringer = Bringer(parts, slots, settings)
        self._here: dict[str, Found] = {}
        self._wanted = Wanted("")
        self._now = Slots()
        self._settled: tuple[object, ...] = ()
        self._told_refusal = ""
        self._problem = ""
        self._suspects: set[str] = set()

    @property
    def status(self) -> Status:
        """What is going on."""
        slots, known, plan = self._now, self._parts.catalogues.known, self._bringer.plan
        return Status(
            model=self._bringer.model,
            wanted=self._wanted.release,
            why=self._wanted.why,
            refused=self._wanted.refused,
            current=slots.current,
            previous=slots.previous,
            trial=slots.trial,
            bad=slots.bad,
            held={release: precisions_here(found) for release, found in self._here.items()},
            plan="" if plan is None else f"{plan.reason}: {plan.text}",
            fetching=self._bringer.fetching,
            catalogue_issued="" if known is None else known.issued.isoformat(),
            catalogue_expires="" if known is None else known.expires.isoformat(),
            clock="" if known is None else known.clock,
            spent_today_bytes=self._parts.ledger.spent_today,
            problem=self._problem or self._parts.catalogues.problem,
        )

    def needed(self) -> Needed:
        """What must stay in the store for this model; everything of it as long as nothing was settled. Blocking."""
        model, coming = self._bringer.model or self._settings.model, self._bringer.coming
        kept = self._slots.read(model).held | {self._wanted.release, self._parts.served()}
        of_model = {
            found.manifest.id: found.manifest for found in self._parts.store.found() if found.manifest.name == model
        }
        for release, manifest in of_model.items():
            if not self._settled or self._is_ahead(manifest):
                kept |= {release}
        if coming is None:
            return Needed(kept)
        return Needed(kept, (coming.manifest,), (coming.sha256,))

    def suspect(self, release: str) -> None:
        """An engine could not load it: its files are looked at."""
        self._suspects.add(release)

    async def run(self) -> None:
        """Until cancelled."""
        await self._prepare()
        await self._parts.catalogues.load()
        try:
            async with asyncio.TaskGroup() as loops:
                if self._settings.refreshes:
                    loops.create_task(self._refreshing())
                loops.create_task(self._bringing())
                loops.create_task(self._adopting())
        finally:
            with contextlib.suppress(OSError):
                self._parts.ledger.save(at_once=True)

    async def _prepare(self) -> None:
        while True:
            try:
                return await in_thread(self._parts.store.prepare)
            except OSError as error:
                self._problem = str(error)
                self._keep("", str(error))
                await self._rest(1)

    # --- the catalogue

    async def _refreshing(self) -> None:
        settings, failures = self._settings, 0
        while True:
            if await self._parts.catalogues.refresh(self._spent):
                failures = 0
                await asyncio.sleep(settings.interval_s * (0.9 + 0.2 * self._parts.uniform()))
                continue
            wait = min(settings.interval_s, settings.first_retry_s * 2.0 ** min(failures, 20))
            failures += 1
            await asyncio.sleep(wait * (0.5 + self._parts.uniform()))

    def _spent(self, count: int, source: Source) -> None:
        if source.costs:
            self._parts.ledger.add(count)

    # --- the files

    async def _bringing(self) -> None:
        failures, kept = 0, 0
        while True:
            try:
                busy = await self._bringer.step(self._offer(self._bringer.target))
                failures, self._problem = 0, ""
                if not busy:
                    await asyncio.sleep(self._settings.look_s)
                continue
            except (ReleaseError, OSError) as error:
                self._problem = str(error)
                self._keep(self._bringer.target, str(error))
            if self._parts.fetcher.kept_bytes > kept:
                kept, failures = self._parts.fetcher.kept_bytes, 0
            await self._rest(failures)
            failures += 1

    async def _rest(self, failures: int) -> None:
        """Waits before another attempt, but not when another release is wanted meanwhile."""
        settings, target = self._settings, self._bringer.target
        wait = min(settings.most_retry_s, settings.first_retry_s * 2.0 ** min(failures, 20))
        ends = self._parts.clock() + wait * (0.5 + self._parts.uniform())
        while self._bringer.target == target and self._parts.clock() < ends:  # noqa: ASYNC110
            await asyncio.sleep(min(settings.look_s, wait))

    def _offer(self, release: str) -> Offer | None:
        known = self._parts.catalogues.known
        return None if known is None else known.offer(release)

    # --- what serves

    async def _adopting(self) -> None:
        while True:
            try:
                await self._adopt()
            except (ReleaseError, OSError) as error:
                self._problem = str(error)
                self._keep(self._wanted.release, str(error))
            await self._write()
            await asyncio.sleep(self._settings.look_s)

    async def _adopt(self) -> None:
        await self._look()
        target = self._wanted.release
        await self._look_at_suspects()
        if not self._bringer.model:
            return
        trials = self._parts.trials
        self._now = await trials.step(
            self._bringer.model, target, self._of_model(), more_is_coming=self._more_is_coming(target)
        )
        await self._tidy(target)

    async def _look(self) -> None:
        """What is here, what is offered, and what follows for the release to serve."""
        self._here = await in_thread(self._held.look)
        self._bringer.looked_at = frozenset(self._here)
        known = self._parts.catalogues.known
        # What this version cannot serve is not there for it.
        offers = () if known is None else tuple(offer for offer in known.offers if offer.task in SERVED_TASKS)
        manifests = [found.manifest for found in self._here.values() if found.manifest.task in SERVED_TASKS]
        names = {offer.model for offer in offers} | {manifest.name for manifest in manifests}
        model = self._bringer.model = model_among(names, self._settings.model, named=self._settings.named)
        if not model:
            if names and self._settings.named:
                self._problem = f"no release of {self._settings.model} is offered or here"
            elif names:
                listed = ", ".join(sorted(names))
                self._problem = f"there are releases of {listed}; say which to serve with model or models"
            self._wanted, self._bringer.target = Wanted(""), ""
            return
        self._now = await in_thread(self._slots.read, model)
        active = self._parts.active()
        self._wanted = wanted(
            Known(
                {offer.release: offer.version for offer in offers if offer.model == model},
                {manifest.id: manifest.version for manifest in manifests if manifest.name == model},
                frozenset() if known is None else known.withdrawn,
                self._now.bad,
                self._now.current,
            ),
            self._settings.pin,
            active.get(self._settings.model) or active.get(model) or "",
        )
        self._bringer.target = self._wanted.release
        self._keep(self._wanted.release, self._wanted.refused)

    def _of_model(self) -> dict[str, Found]:
        return {key: found for key, found in self._here.items() if found.manifest.name == self._bringer.model}

    def _more_is_coming(self, target: str) -> bool:
        """Whether 8-bit of the target is on its way, or will be when its 4-bit is here."""
        plan, coming = self._bringer.plan, self._bringer.coming
        if plan is None or coming is None or coming.manifest.id != target:
            return True  # nobody has looked yet
        return plan.fetch is not None

    async def _tidy(self, target: str) -> None:
        """Removes what nothing needs any more, once things have settled for good."""
        coming, slots = self._bringer.coming, self._now
        known = target in self._here or (coming is not None and coming.manifest.id == target)
        settled = (slots.held, frozenset(slots.bad), target, self._parts.served())
        if slots.trial or not known or settled == self._settled:
            return
        self._settled = settled
        newer = {found.manifest.id for found in self._here.values() if self._is_ahead(found.manifest)}
        await self._bringer.collect(slots.held | newer | {target, self._parts.served()}, "nothing needs it any more")

    def _is_ahead(self, manifest: Manifest) -> bool:
        """Brought before it is asked for, as by a bundle."""
        current = self._here.get(self._now.current)
        if manifest.id in self._now.bad or current is None:
            return False
        return precedence(manifest.version) > precedence(current.manifest.version)

    async def _look_at_suspects(self) -> None:
        while self._suspects:
            found = self._here.get(self._suspects.pop())
            if found is not None:
                await self._parts.trials.look_at(found)

    # --- what is told

    def _keep(self, release: str, refused: str) -> None:
        if refused and refused != self._told_refusal:
            self._parts.sink.emit(ReleaseKept(self._parts.clock(), self._bringer.model, release, refused))
        self._told_refusal = refused or self._told_refusal

    async def _write(self) -> None:
        status, now = self.status, self._parts.now()

        def work() -> None:
            self._parts.status.write(status, now)
            self._parts.ledger.save()

        try:
            await in_thread(work)
        except OSError as error:
            self._problem = f"the status could not be written: {error}"
