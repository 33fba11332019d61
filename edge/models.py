"""Which models a node runs, and the settings of each. Pure, apart from what the two `names_in…` read.

A node is told of its models (`[[edge.models]]`), or of one (`model`), or takes every model that it finds. Each has
an EdgeConfig of its own, like a node with that model alone: so whatever starts, watches or routes one model knows
nothing of the others. What they share is divided here: memory by equal shares of what no model claims for itself, and
without a budget each is told how many promise of what is free.
Cores are not divided: an engine that has nothing to do takes none, unless its threads `spin`; `cpus` sets engines
apart.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from edge.config import EdgeConfig
from edge.model_config import ModelConfig
from edge.releases import SERVED_TASKS
from release.errors import ReleaseError
from release.listing import Found, list_releases
from release.store import Store

_LONGEST_NAME = 24  # of a folder with a socket in it
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LEAST_BUDGET = 1 << 20


def settled(config: EdgeConfig, names: Collection[str]) -> EdgeConfig:
    """With every model named that is to be run, where they are several. `names` are those that were found."""
    if config.models or config.model or len(names) < 2:
        return config
    if config.release_pin:
        raise ReleaseError(
            f"release_pin is of one model, and there are {', '.join(sorted(names))}; say which with model"
        )
    if config.default_model and config.default_model not in names:
        raise ReleaseError(f"default_model is {config.default_model!r}; there are {', '.join(sorted(names))}")
    return config.model_copy(update={"models": tuple(ModelConfig(name=name) for name in sorted(names))})


def each(config: EdgeConfig) -> tuple[EdgeConfig, ...]:
    """The configuration of every model of a settled node; of a node with one model it is the node's own."""
    if not config.models:
        return (config,)
    share = _share(config)
    return tuple(_own(config, entry, share) for entry in config.models)


def found_names(config: EdgeConfig) -> frozenset[str]:
    """Models of which there are releases here now. Unreadable folders have none."""
    if config.models or config.model:
        return frozenset()
    stored = _servable(Store(config.store_dir).found()) if config.store_dir is not None else frozenset()
    if stored or config.releases_dir is None:
        return stored
    try:
        return _servable(list_releases(config.releases_dir).found)
    except ReleaseError:
        return frozenset()


def folder_of(run_dir: Path, name: str) -> Path:
    """Where a model's engine has its socket: short enough for one, and no other model's."""
    plain = _UNSAFE.sub("_", name).lstrip(".")
    if plain == name and len(name) <= _LONGEST_NAME:
        return run_dir / name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return run_dir / f"{plain[: _LONGEST_NAME - 9]}-{digest}"


def _servable(found: Sequence[Found]) -> frozenset[str]:
    return frozenset(entry.manifest.name for entry in found if entry.manifest.task in SERVED_TASKS)


def _own(config: EdgeConfig, entry: ModelConfig, share: int | None) -> EdgeConfig:
    said = {key: value for key, value in entry.model_dump(exclude={"name"}).items() if value is not None}
    alone = len(config.models) == 1
    # A model with processors of its own has as many threads as those have cores, unless it says otherwise.
    inherited = config.model_dump(exclude={"threads"} if "cpus" in said else None)
    own = {
        **inherited,
        "memory_budget_bytes": share,
        **said,
        "model": entry.name,
        "models": (),
        "default_model": "",
    }
    if config.run_dir is not None and not alone:
        own["run_dir"] = folder_of(config.run_dir, entry.name)
    made = EdgeConfig.model_validate(own)
    return made if alone else made.among_others(own_folder=entry.releases_dir is not None, models=len(config.models))


def _share(config: EdgeConfig) -> int | None:
    """Of the node's memory, what a model gets that claims none for itself."""
    if config.memory_budget_bytes is None:
        return None
    claimed = [entry.memory_budget_bytes for entry in config.models if entry.memory_budget_bytes is not None]
    others = len(config.models) - len(claimed)
    return max((config.memory_budget_bytes - sum(claimed)) // max(others, 1), _LEAST_BUDGET)
