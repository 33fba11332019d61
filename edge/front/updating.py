"""The updaters of a node, one per model, made and joined; of a node without a store there is none."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from edge.activation import Activator
from edge.calibration import Calibrated
from edge.config import EdgeConfig
from edge.events import ActivationFailed, Event, Sink
from edge.local import LocalState
from edge.precision import PrecisionLoop
from edge.slot_file import SlotFile
from edge.updater.catalogue import Catalogues
from edge.updater.fetch import Fetcher
from edge.updater.ledger import Ledger
from edge.updater.loop import Updater
from edge.updater.parts import Needed, UpdaterParts, UpdaterSettings
from edge.updater.sources import source_at
from edge.updater.status import STATUS_NAME, StatusFile
from edge.updater.trials import TrialParts, Trials, TrialSettings
from edge.upstream import UpstreamState
from release.manifest import Manifest
from release.store import Store
from router.transfer import TransferSettings, TransferView, plan_transfer
from runtime.ort.footprint import load_bytes

_SPENT_NAME = "spent.json"
_PREFILL_CHUNK = 128  # the engine's
_ANEW_S, _MOST_ANEW_S = 5.0, 600.0

_log = logging.getLogger("weir.edge.front")


@dataclass(frozen=True, slots=True)
class Around:
    """The parts of the node that an updater works with."""

    local: LocalState
    state: UpstreamState
    calibrated: Calibrated
    activator: Activator
    precision: PrecisionLoop
    sink: Sink


@dataclass(frozen=True, slots=True)
class Updating:
    """An updater and what has to be closed with it."""

    updater: Updater

    async def run(self) -> None:
        """Until cancelled. What breaks in here must not take the servers along: it is told and begun anew."""
        told, wait_s = "", _ANEW_S
        while True:
            began = time.monotonic()
            try:
                await self.updater.run()
            except Exception as fault:  # noqa: BLE001 - whatever it was, the servers go on
                text = f"{type(fault).__name__}: {fault}"
                # The trace once: the same again says nothing new and would fill the log.
                tell = _log.error if text == told else _log.exception
                told, lasted_s = text, time.monotonic() - began
                wait_s = _ANEW_S if lasted_s > _MOST_ANEW_S else min(2 * wait_s, _MOST_ANEW_S)
                tell("the updater broke (%s); it begins anew in %.0f s, and what serves goes on", text, wait_s)
            await asyncio.sleep(wait_s)


class Shared:
    """What the updaters of a node's models share: the store and the way to it, one catalogue, one budget."""

    def __init__(self, config: EdgeConfig, store_dir: Path, sink: Sink) -> None:
        self.store, self.slots = Store(store_dir, config.keep_free_bytes), SlotFile(store_dir)
        siblings = tuple(source_at(url, costs=False) for url in config.siblings)
        repository = (source_at(config.repository),) if config.repository else ()
        self._sources = (*repository, *siblings)
        clock, uniform = time.monotonic, random.SystemRandom().random
        # The repository is asked first for what is offered: a sibling may be behind. For files it is the last.
        self.catalogues = Catalogues(self.store, config.trusted_root, self._sources, sink, clock, now=_now)
        self.fetcher = Fetcher(self.store, (*siblings, *repository), sink, clock, uniform)
        self.ledger = Ledger(store_dir / _SPENT_NAME, _now)
        self.turn = asyncio.Lock()
        self.updaters: list[Updater] = []

    def needed_beside(self, updater: Updater) -> Needed:
        """What must stay in the store for the other models."""
        needed = Needed()
        for other in self.updaters:
            if other is not updater:
                needed = needed | other.needed()
        return needed

    async def close(self) -> None:
        for source in self._sources:
            await source.close()


class Suspicious:
    """A sink that passes everything on, and tells the updater of releases that could not be put in force."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.suspect: Callable[[str], None] = lambda _release: None

    def emit(self, event: Event) -> None:
        self._sink.emit(event)
        if isinstance(event, ActivationFailed):
            self.suspect(event.release)


def make_updating(config: EdgeConfig, around: Around, suspicious: Suspicious, shared: Shared) -> Updating:
    """Of one model. The first that is made asks for the catalogue, for all of them."""
    store, slots, first = shared.store, shared.slots, not shared.updaters
    clock, uniform, sink, local = time.monotonic, random.SystemRandom().random, around.sink, around.local
    trials = Trials(
        TrialParts(store, slots, local, around.activator, sink, clock, around.calibrated.add),
        TrialSettings(pinned=_pinned(config)),
    )
    status = STATUS_NAME if first else f"status-{config.engine_socket.parent.name}.json"
    parts = UpdaterParts(
        store,
        shared.catalogues,
        shared.fetcher,
        trials,
        shared.ledger,
        StatusFile(store.root, config.node, status),
        _view(config, around),
        lambda: _active(around.state),
        lambda: local.served.release if local.served is not None else "",
        around.calibrated.add,
        plan_transfer,
        sink,
        clock,
        _now,
        uniform,
        lambda: shared.needed_beside(updater),
        shared.turn,
    )
    updater = Updater(parts, slots, _settings(config, refreshes=first))
    shared.updaters.append(updater)
    suspicious.suspect = updater.suspect
    return Updating(updater)


def _settings(config: EdgeConfig, *, refreshes: bool) -> UpdaterSettings:
    transfer = TransferSettings(_pinned(config), config.metered, config.bytes_per_day, config.bandwidth_share)
    return UpdaterSettings(
        config.model,
        config.release_pin,
        config.update_interval_s,
        transfer,
        named=config.named_in_store,
        refreshes=refreshes,
    )


def _view(config: EdgeConfig, around: Around) -> Callable[[Manifest], TransferView]:
    def view(manifest: Manifest) -> TransferView:
        budget = config.memory_budget_bytes
        fits = budget is None or load_bytes(manifest, 8, slots=config.slots, prefill_chunk=_PREFILL_CHUNK) <= budget
        return TransferView(
            bytes_per_s=around.state.link().bytes_per_s,
            serving=around.local.available,
            plan=around.precision.plan,
            eight_fits=fits,
        )

    return view


def _active(state: UpstreamState) -> Mapping[str, str]:
    return {} if state.description is None else state.description.active_releases


def _pinned(config: EdgeConfig) -> int | None:
    return None if config.precision == "auto" else int(config.precision)


def _now() -> datetime:
    return datetime.now(UTC)
