"""One model of a node: its engine, what is known of it, what decides and watches for it. Made and joined here.

A node makes one per model; they share the way to the upstream and nothing else, so that one whose engine is down
disturbs no other. Which task a model does is its engine's to say: both cascades stand over the same engine.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from edge.activation import Activator
from edge.calibration import Calibrated
from edge.cascade import Cascade
from edge.classify_cascade import ClassifyCascade, ClassifyParts
from edge.config import EdgeConfig
from edge.events import LogSink
from edge.follow import Follower, FollowParts
from edge.front.settings import cascade_settings, precision_settings, upstream_settings
from edge.front.updating import Around, Shared, Suspicious, Updating, make_updating
from edge.judge import CascadeParts
from edge.link import UpstreamLink
from edge.local import LocalState
from edge.models import each
from edge.node import NodeModel
from edge.precision import PrecisionLoop, PrecisionParts
from edge.rehearsal import Rehearsal
from edge.releases import GENERATE
from edge.remembered import InForce, remember
from edge.upstream import UpstreamState
from release.errors import ReleaseError
from release.listing import list_releases
from release.manifest import Manifest
from release.store import Store
from runtime.cpu import cpu_class
from runtime.memory import free_bytes
from wire.classification import Classifies
from wire.grpc_client import EngineControlClient
from wire.local_stream import EngineClient
from wire.service import InferenceService

_log = logging.getLogger("weir.edge.front")


@dataclass(frozen=True, slots=True)
class Upstream:
    """The next tier up as all models see it. Where there is none, both are NoUpstream."""

    service: InferenceService
    classifies: Classifies
    link: UpstreamLink


class ModelFront:
    """The parts of one running model. `config` is its own (edge.models)."""

    def __init__(self, config: EdgeConfig, upstream: Upstream, shared: Shared | None) -> None:
        """`shared` is what the updaters of a node with a store share; None without one."""
        sink, clock = Suspicious(LogSink(config.node)), time.monotonic
        uniform = random.SystemRandom().random
        engine = EngineClient(config.engine_socket)
        control = EngineControlClient(config.engine_target)
        self._clients = (engine, control)
        self.local = local = LocalState(engine, sink, clock)
        self.state = state = UpstreamState(upstream_settings(config), sink, clock, upstream.link, lambda: _task(local))
        calibrated = Calibrated(cpu_class(), _manifests(config))
        settings = cascade_settings(config)
        activator = Activator(control, local, sink, clock, _memory(config))
        rehearsal = Rehearsal(engine, activator, clock, engine) if config.rehearse and config.upstream else None
        fit = _both_fit(calibrated, config.memory_budget_bytes)
        planning = PrecisionParts(local, state, calibrated, activator, sink, clock, fit, rehearsal)
        self.precision = PrecisionLoop(planning, precision_settings(config))
        own_releases = config.releases_dir if config.store_dir is None else None
        following = FollowParts(upstream.service, state, local, calibrated, activator, sink, clock, own_releases)
        self.follower = Follower(following, config.probe_interval_s)
        around = Around(local, state, calibrated, activator, self.precision, sink)
        self.updating: Updating | None = None if shared is None else make_updating(config, around, sink, shared)
        parts = CascadeParts(engine, local, upstream.service, state, calibrated, sink, clock, uniform)
        labelling = ClassifyParts(engine, local, upstream.classifies, state, calibrated, sink, clock, uniform)
        self.node = NodeModel(
            settings,
            local,
            state,
            Cascade(parts, settings),
            classify=ClassifyCascade(labelling, settings),
            scores=engine,
            updating=self._doing,
        )

    def _doing(self) -> str:
        return "" if self.updating is None else self.updating.updater.status.line

    def loops(self) -> list[Coroutine[None, None, None]]:
        """What runs beside the servers. Asking the upstream is one loop for all models: see Followers."""
        updating = [self.updating.run()] if self.updating is not None else []
        return [self.local.watch(), self.precision.run(), *updating]

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


def make_models(config: EdgeConfig, upstream: Upstream, shared: Shared | None) -> tuple[ModelFront, ...]:
    """Of a settled node, in the order of its settings."""
    return tuple(ModelFront(own, upstream, shared) for own in each(config))


def _task(local: LocalState) -> str:
    return local.served.tasks[0] if local.served is not None and local.served.tasks else GENERATE


def _manifests(config: EdgeConfig) -> list[Manifest]:
    """Of the model's releases that are here now; the updater adds those that come."""
    found = list(Store(config.store_dir).found()) if config.store_dir is not None else []
    try:
        found += list_releases(config.releases_dir).found if config.releases_dir is not None else ()
    except ReleaseError as error:
        _log.warning("no calibrations: %s", error)
    named = config.named_in_folder or config.named_in_store
    return [entry.manifest for entry in found if not named or entry.manifest.name == config.model]


def _memory(config: EdgeConfig) -> Callable[[InForce], None]:
    """Where it is noted what an engine that is replaced should start with; a store has its slots for that."""
    run_dir = config.engine_socket.parent
    return (lambda last: remember(run_dir, last)) if config.store_dir is None else (lambda _last: None)


def _both_fit(calibrated: Calibrated, budget: int | None) -> Callable[[], bool]:
    """Whether free memory and the budget hold the largest release at both precisions, as far as can be told now."""

    def fit() -> bool:
        sizes = (sum(entry.bytes for entry in manifest.files) for manifest in calibrated.manifests)
        needed = 2 * max(sizes, default=0)
        return free_bytes() > needed and (budget is None or budget > needed)

    return fit
