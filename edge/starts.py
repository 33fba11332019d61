"""What an engine that is about to start should serve, and what its end says of that.

Two ways to choose. From a folder of releases: what was in force last in this run_dir, else the newest;
a release that cannot be served ends the node. From the updater's store: what its slots say, with a
release on trial counted before it starts and given up when it fails; a node that has nothing to serve
waits for something. Must not know how an engine is started.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from edge.config import EdgeConfig
from edge.engine.endings import REASON_NAME
from edge.ports import Clock
from edge.releases import SERVED_TASKS, find, model_among, newest, precisions_here, start_with
from edge.remembered import forget, remembered
from edge.slot_file import SlotFile
from edge.slots import Slots
from edge.updater.events import ReleaseReturned, UpdaterSink
from release.errors import ReleaseError
from release.listing import Found
from release.store import Store, first_part

_log = logging.getLogger("weir.edge")


class NothingToServe(ReleaseError):
    """There is no release to start an engine with, yet."""


@dataclass(frozen=True, slots=True)
class Start:
    """A release and the precision to start it at."""

    release: Found
    precision: Literal[4, 8]


class Starts(Protocol):
    """Chooses."""

    def there(self) -> bool:
        """Whether there is something to start."""
        ...

    def next(self) -> Start:
        """What to start now. Raises NothingToServe."""
        ...

    def ended(self, detail: str, *, unusable: bool) -> bool:
        """The engine ended; `unusable`: it refused its release. Says whether to go on starting engines."""
        ...

    def stopped(self) -> None:
        """The node stops because it was told to."""
        ...


class FolderStarts:
    """From `releases_dir`."""

    def __init__(self, config: EdgeConfig, root: Path) -> None:
        """Raises ReleaseError when there is nothing to serve."""
        self._config, self._root = config, root
        self._first = start_with(root, config.model, named=config.named_in_folder)

    def there(self) -> bool:
        return True

    def next(self) -> Start:
        last = remembered(self._run_dir)
        found = find(self._root, last.release) if last is not None else None
        if found is not None and self._config.named_in_folder and found.manifest.name != self._config.model:
            found = None  # of another model, which had this folder before
        release, pinned = found or self._first, self._config.precision
        wanted = last.precision if found is not None and last is not None else first_bits(self._config, release)
        if pinned != "auto":
            wanted = int(pinned)
        here = precisions_here(release)
        return Start(release, 8 if wanted == 8 and (8 in here or pinned == "8") else 4)

    def ended(self, detail: str, *, unusable: bool) -> bool:  # noqa: ARG002 - the Protocol's
        if not unusable:
            return True
        if remembered(self._run_dir) is None:
            return False
        _log.warning("what was in force last cannot be served: back to %s", self._first.manifest.id)
        forget(self._run_dir)
        return True

    def stopped(self) -> None:
        """What was in force stays noted."""

    @property
    def _run_dir(self) -> Path:
        return self._config.engine_socket.parent


class StoreStarts:
    """From `store_dir`; from `releases_dir`, where that is set too, as long as the store has nothing."""

    def __init__(self, config: EdgeConfig, store: Store, slots: SlotFile, sink: UpdaterSink, clock: Clock) -> None:
        self._config, self._store, self._slots, self._sink, self._clock = config, store, slots, sink, clock
        self._unsaved: dict[str, Slots] = {}  # what a full disk could not take

    def there(self) -> bool:
        model, here = self._here()
        return bool(_settled(self._read(model), here, self._config.release_pin).to_start) or self._seed() is not None

    def next(self) -> Start:
        model, here = self._here()
        before = slots = self._read(model)
        if here or before.held:
            slots = self._change(model, lambda now: _settled(now, here, self._config.release_pin).starting())
        self._tell(model, before, slots)
        found = here.get(slots.to_start) or self._seed()
        if found is None:
            raise NothingToServe(f"no release in {self._store.root} can be served")
        return Start(found, self._precision(found, slots))

    def ended(self, detail: str, *, unusable: bool) -> bool:
        model, here = self._here()
        before, reason = self._read(model), self._reason() or detail
        if not unusable:
            self._change(model, Slots.crashed)
            return True
        if not before.to_start:
            return False  # the seed itself cannot be served
        reason = f"the engine refused it: {reason}"
        after = self._change(model, lambda now: (now.failed(reason) if now.trial else now.lost(reason)).among(here))
        self._tell(model, before, after)
        return True

    def stopped(self) -> None:
        model, _ = self._here()
        if self._read(model).trial:
            self._change(model, Slots.stopped)

    def _read(self, model: str) -> Slots:
        return self._unsaved.get(model) or self._slots.read(model)

    def _change(self, model: str, how: Callable[[Slots], Slots]) -> Slots:
        """What cannot be written holds as long as this process: a full disk must keep no engine from starting."""
        unsaved = self._unsaved.get(model)
        try:
            after = self._slots.change(model, lambda now: how(unsaved or now))
        except OSError as error:
            _log.warning("the slots could not be written: %s", error)
            after = self._unsaved[model] = how(self._read(model))
        else:
            self._unsaved.pop(model, None)
        return after

    def _here(self) -> tuple[str, Mapping[str, Found]]:
        found = self._store.found()
        # Slots of a model that has no release here any more (another one took its place) say nothing.
        servable = {entry.manifest.name for entry in found if entry.manifest.task in SERVED_TASKS}
        names = servable or set(self._slots.models())
        model = model_among(names, self._config.model, named=self._config.named_in_store)
        whole = {
            entry.manifest.id: entry
            for entry in found
            if entry.manifest.name == model
            and entry.manifest.task in SERVED_TASKS
            and self._store.complete(entry.manifest.id, first_part(entry.manifest))
        }
        return model, whole

    def _seed(self) -> Found | None:
        if self._config.releases_dir is None:
            return None
        try:
            return start_with(self._config.releases_dir, self._config.model, named=self._config.named_in_folder)
        except ReleaseError as error:
            _log.warning("%s", error)
            return None

    def _precision(self, found: Found, slots: Slots) -> Literal[4, 8]:
        """The pin; that of last time, where it was weighed; else the first choice. Of those that are here."""
        here, pinned = precisions_here(found), self._config.precision
        first = first_bits(self._config, found)
        wanted = int(pinned) if pinned != "auto" else (first if first == 8 else slots.precision or first)
        return 8 if 8 in here and (wanted == 8 or 4 not in here) else 4

    def _reason(self) -> str:
        try:
            return self._config.engine_socket.with_name(REASON_NAME).read_text()[:500]
        except OSError:
            return ""

    def _tell(self, model: str, before: Slots, after: Slots) -> None:
        for release, reason in after.bad.items():
            if before.bad.get(release) != reason:
                self._sink.emit(ReleaseReturned(self._clock(), model, release, after.to_start, reason))


def first_bits(config: EdgeConfig, release: Found) -> int:
    """4 where the plan can weigh them against 8 and unsure answers have somewhere to go, else 8.

    The 4-bit plane is the lighter one and the first to arrive; the plan moves on when that clearly gains.
    """
    return 4 if config.upstream and release.manifest.calibrations else 8


def _settled(slots: Slots, here: Mapping[str, Found], pin: str) -> Slots:
    """The slots as they are to be started from: an exhausted trial ends, what is gone goes, the newest may come."""
    if slots.exhausted:
        slots = slots.failed(slots.exhausted)
    slots = slots.among(here)
    if pin in here and pin not in slots.bad and slots.to_start != pin:
        return slots.offered(pin)
    if not slots.to_start:
        candidate = newest(entry for release, entry in here.items() if release not in slots.bad)
        if candidate is not None:
            return slots.offered(candidate.manifest.id)
    return slots
