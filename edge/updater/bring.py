"""Brings the parts of one release into the store, as far as the transfer plan says, within what the disk has.

The plan is made anew every second while a part is underway, so that a link, a budget or a wish that changed
is heeded within a piece. Space is looked for before a part is begun; when it is short, what nothing needs
goes first, then the release before the current one; what serves never goes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edge.slot_file import SlotFile
from edge.updater.events import (
    StoreCleared,
    TransferFinished,
    TransferPlanned,
    TransferProgress,
    TransferRefused,
    TransferStarted,
)
from edge.updater.pace import Pace
from edge.updater.parts import UpdaterParts, UpdaterSettings
from edge.updater.sources import Source
from edge.updater.status import Fetching
from edge.updater.threads import in_thread
from release.errors import OutOfSpace, ReleaseError
from release.manifest import File, Manifest, read
from release.store import first_part, second_part
from release.trust.catalogue import Offer
from router.transfer import Part, Stock, TransferPlan, TransferReason


class Superseded(Exception):
    """Something else is to be fetched now, or nothing."""


@dataclass(frozen=True, slots=True)
class Coming:
    """A release with the text of its manifest, verified."""

    manifest: Manifest
    content: bytes
    sha256: str


class Bringer:
    """Of one node. `target` is the release to bring; setting another one supersedes what is underway."""

    def __init__(self, parts: UpdaterParts, slots: SlotFile, settings: UpdaterSettings) -> None:
        self._parts, self._slots, self._settings = parts, slots, settings
        self.model = self.target = ""
        self.coming: Coming | None = None
        self.plan: TransferPlan | None = None
        self.fetching: Fetching | None = None
        self.moved_bytes = self._planned_bytes = 0
        self._told_at = self._told_bytes = 0.0
        self.looked_at: frozenset[str] = frozenset()  # releases that were here at the last look

    async def step(self, offer: Offer | None) -> bool:
        """Brings one part of the target; says whether there was something to do.

        Raises ReleaseError, OSError: what came stays, and the next step goes on from there.
        """
        target = self.target
        if not target:
            return False
        coming = await self._manifest(target, offer)
        if coming is None:
            return False
        plan = await in_thread(self._planned, coming.manifest)
        self._tell_plan(target, plan)
        if plan.fetch is None:
            if plan.reason is not TransferReason.NO_ROOM:
                return False
            # Where what must stay free is gone already, what has come is in the way itself.
            if await self.make_room(last_resort=self._parts.store.spare() == 0):
                return True
            raise OutOfSpace(plan.text)
        try:
            async with self._parts.turn:
                await self._part(coming, plan.fetch)
        except Superseded:
            return True
        finally:
            self.fetching = None
        return True

    async def make_room(self, *, last_resort: bool = False) -> bool:
        """Removes what nothing needs, then the previous release; as a last resort what has come of the target.

        Says whether that freed anything.
        """
        if await self._clear("nothing needs it", partial=True):
            return True
        slots = await in_thread(self._slots.read, self.model)
        if slots.previous and slots.previous != self._parts.served():
            await in_thread(self._slots.change, self.model, lambda now: replace(now, previous=""))
            if await self._clear("the disk is full: the previous release went", partial=True):
                return True
        return last_resort and await self._clear("the disk is full: what had come went", partial=False)

    async def _clear(self, why: str, *, partial: bool) -> bool:
        slots = await in_thread(self._slots.read, self.model)
        freed = await self.collect(slots.held | {self._parts.served()}, why, partial=partial)
        return freed > 0

    async def collect(self, keep: frozenset[str], why: str, *, partial: bool = True) -> int:
        """Removes all releases but these, and what has come of another than the target. The bytes freed."""
        coming = self.coming if partial else None
        manifest, objects = (coming.manifest, (coming.sha256,)) if coming is not None else (None, ())

        store, looked_at = self._parts.store, self.looked_at

        def work() -> int:
            others = self._parts.others()
            with store.locked():
                # What was carried here since the last look: nobody has judged it yet.
                fresh = {
                    found.manifest.id
                    for found in store.found()
                    if found.manifest.id not in looked_at
                    and store.complete(found.manifest.id, first_part(found.manifest))
                }
                kept = filter(None, keep | fresh | others.releases)
                return store.collect(kept, manifest, (*objects, *others.objects), others.coming)

        freed = await in_thread(work)
        if freed:
            self._parts.sink.emit(StoreCleared(self._parts.clock(), freed, why))
        return freed

    async def _manifest(self, target: str, offer: Offer | None) -> Coming | None:
        """From the release on disk, the objects, or a source; None where nobody offers it. Raises ReleaseError."""
        if self.coming is not None and self.coming.manifest.id == target:
            return self.coming
        parts = self._parts
        self.coming = await in_thread(self._stored, target, offer)
        if self.coming is None and offer is not None:
            manifest, content = await parts.fetcher.manifest(offer, self._count)
            await in_thread(parts.store.put, content, offer.sha256)
            self.coming = Coming(manifest, content, offer.sha256)
        return self.coming

    def _stored(self, target: str, offer: Offer | None) -> Coming | None:
        store = self._parts.store
        if offer is not None:
            try:
                content = store.object(offer.sha256).read_bytes()
                return Coming(offer.manifest(content), content, offer.sha256)
            except (OSError, ReleaseError):
                pass
        held = store.content(target)
        return None if held is None else Coming(read(held[0]), *held)

    # --- one part

    async def _part(self, coming: Coming, part: Part) -> None:
        parts, release = self._parts, coming.manifest.id
        files = _files(coming.manifest, part)
        missing = await in_thread(parts.store.missing, files)
        await self._reserve(missing)
        began, before = parts.clock(), self.moved_bytes
        if missing:
            parts.sink.emit(TransferStarted(began, release, part, missing))
        self._told_at, self._told_bytes = began, float(before)
        self.fetching = Fetching(release, part, "", missing, sum(entry.bytes for entry in files))
        for entry in files:
            self.fetching = replace(self.fetching, file=entry.name)
            try:
                await parts.fetcher.file(release, entry, lambda: self._pace(coming.manifest, part), self._came)
            except OutOfSpace as error:
                parts.sink.emit(TransferRefused(parts.clock(), release, entry.name, "the disk", str(error)))
                await self.make_room(last_resort=True)
                raise
        await in_thread(self._show, coming)
        parts.arrived(coming.manifest)
        moved = self.moved_bytes - before
        parts.sink.emit(TransferFinished(parts.clock(), release, part, moved, parts.clock() - began))

    async def _reserve(self, missing: int) -> None:
        try:
            await in_thread(self._parts.store.reserve, missing)
        except OutOfSpace:
            if not await self.make_room():
                raise
            await in_thread(self._parts.store.reserve, missing)

    def _show(self, coming: Coming) -> None:
        with self._parts.store.locked():
            self._parts.store.show(coming.manifest, coming.content)

    def _pace(self, manifest: Manifest, part: Part) -> Pace:
        """Asked before every piece. Raises Superseded."""
        if manifest.id != self.target:
            raise Superseded
        plan = self.plan
        left = 0 if plan is None else plan.most_bytes - (self.moved_bytes - self._planned_bytes)
        if plan is None or left <= 0 or self._parts.clock() - plan.at >= self._settings.plan_s:
            plan = self._planned(manifest)
            self._tell_plan(manifest.id, plan)
            left = plan.most_bytes
        if plan.fetch != part or left <= 0:
            raise Superseded
        day = self._settings.transfer.bytes_per_day
        budget = None if day is None else max(0, day - self._parts.ledger.spent_today)
        return Pace(plan.share, plan.bytes_per_s, left, budget)

    def _planned(self, manifest: Manifest) -> TransferPlan:
        parts = self._parts
        seen = parts.view(manifest)
        view = replace(
            seen,
            bytes_per_s=parts.fetcher.rate or seen.bytes_per_s,
            spent_today_bytes=parts.ledger.spent_today,
            disk_free_bytes=parts.store.spare(),
        )
        return parts.plan(self._stock(manifest), view, self._settings.transfer, parts.clock())

    def _stock(self, manifest: Manifest) -> Stock:
        store, nested = self._parts.store, 4 in manifest.precisions
        first, second = first_part(manifest), second_part(manifest)
        return Stock(
            manifest.id,
            four=nested and store.complete(manifest.id, first),
            eight=8 in manifest.precisions and store.complete(manifest.id, manifest.files),
            four_missing_bytes=store.missing(first) if nested else 0,
            eight_missing_bytes=store.missing(second if nested else first),
            precisions=manifest.precisions,
        )

    def _count(self, count: int, source: Source) -> None:
        self.moved_bytes += count
        if source.costs:
            self._parts.ledger.add(count)

    def _came(self, count: int, source: Source) -> None:
        self._count(count, source)
        parts, fetching = self._parts, self.fetching
        if fetching is None:
            return
        self.fetching = fetching = replace(
            fetching, missing_bytes=max(0, fetching.missing_bytes - count), source=source.name
        )
        passed = parts.clock() - self._told_at
        if passed >= self._settings.told_every_s:
            rate = (self.moved_bytes - self._told_bytes) / passed
            self._told_at, self._told_bytes = parts.clock(), float(self.moved_bytes)
            self.fetching = replace(fetching, bytes_per_s=rate)
            parts.sink.emit(
                TransferProgress(
                    parts.clock(), fetching.release, fetching.part, fetching.missing_bytes, rate, source.name
                )
            )

    def _tell_plan(self, release: str, plan: TransferPlan) -> None:
        before, self.plan, self._planned_bytes = self.plan, plan, self.moved_bytes
        if before is None or (before.fetch, before.reason) != (plan.fetch, plan.reason):
            self._parts.sink.emit(
                TransferPlanned(self._parts.clock(), release, plan.fetch or "", plan.reason.value, plan.text)
            )


def _files(manifest: Manifest, part: Part) -> tuple[File, ...]:
    """Small ones first: they are soon out of the way, and a wrong one is found before much has come."""
    files = first_part(manifest) if part == "four" or 4 not in manifest.precisions else second_part(manifest)
    return tuple(sorted(files, key=lambda entry: entry.bytes))
