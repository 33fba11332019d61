"""What the updater is made of and set to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from edge.ports import Clock, Uniform
from edge.updater.catalogue import Catalogues
from edge.updater.events import UpdaterSink
from edge.updater.fetch import Fetcher
from edge.updater.ledger import Ledger
from edge.updater.status import StatusFile
from edge.updater.trials import Trials
from release.manifest import Manifest
from release.store import Store
from router.transfer import Stock, TransferPlan, TransferSettings, TransferView

Planner = Callable[[Stock, TransferView, TransferSettings, float], TransferPlan]


@dataclass(frozen=True, slots=True)
class UpdaterSettings:
    """`model` is the name to serve; empty where the repository has one model alone. Times in seconds."""

    model: str = ""
    pin: str = ""
    interval_s: float = 60.0
    transfer: TransferSettings = field(default_factory=TransferSettings)
    look_s: float = 0.5  # between looks at what is here and what serves
    plan_s: float = 1.0  # for how long a plan holds while a part is being fetched
    first_retry_s: float = 2.0
    most_retry_s: float = 300.0
    told_every_s: float = 5.0
    named: bool = False  # one of several models: only releases called `model` are its own
    refreshes: bool = True  # of several models one asks for the catalogue


@dataclass(frozen=True, slots=True)
class Needed:
    """What must stay in the store for one model: releases, what is on its way, and objects."""

    releases: frozenset[str] = frozenset()
    coming: tuple[Manifest, ...] = ()
    objects: tuple[str, ...] = ()

    def __or__(self, other: Needed) -> Needed:
        return Needed(self.releases | other.releases, self.coming + other.coming, self.objects + other.objects)


@dataclass(frozen=True, slots=True)
class UpdaterParts:
    """What it looks at and acts through. `view` is the transfer's view of a release, but for what the updater knows.

    `active` are the upstream's active releases by model. `served` is the release in the engine, empty for none.
    """

    store: Store
    catalogues: Catalogues
    fetcher: Fetcher
    trials: Trials
    ledger: Ledger
    status: StatusFile
    view: Callable[[Manifest], TransferView]
    active: Callable[[], Mapping[str, str]]
    served: Callable[[], str]
    arrived: Callable[[Manifest], None]
    plan: Planner
    sink: UpdaterSink
    clock: Clock
    now: Callable[[], datetime]
    uniform: Uniform
    others: Callable[[], Needed] = Needed  # what the node's other models need; asked in threads
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # one part at a time comes over the link
