"""From an open release to a model that takes steps, with the digest of the weights it was fed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from release.folder import Release, weight_digest
from runtime import huge_pages
from runtime.cpu import cpu_class
from runtime.memory import trim
from runtime.ort.reclaim import Packed, drop_file_pages
from runtime.ort.selftest import first_logits, try_out
from runtime.ort.session import GraphError, OrtSession, OrtStepModel
from runtime.ort.steady import kv_bytes_per_token
from runtime.ort.steps import BLOCK_TOKENS

GENERATE = "generate"  # the task of a manifest whose model writes text

_log = logging.getLogger("weir.runtime")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A release at one precision, ready to take steps. `weight_digest` is over the bytes in use."""

    steps: OrtStepModel
    release: str
    precision: int
    weight_digest: str
    load_ms: float


def load_model(
    release: Release,
    precision: int,
    *,
    slots: int = 1,
    capacity: int = 2048,
    threads: int = 1,
    prefill_chunk: int = 128,
    prefix_bytes: int = 0,
    spin: bool = False,
) -> LoadedModel:
    """Loads weights, makes a session and tries it out on the release's self-tests.

    `capacity` is in tokens per slot, at most the model's own context; `prefix_bytes` is what kept prefixes may
    take. Raises ReleaseError or GraphError.
    """
    if release.manifest.task != GENERATE:
        raise GraphError(f"release {release.id} is made to {release.manifest.task}, not to write text")
    began = time.monotonic()
    graph, arrays = release.graph(precision), own_initializers(release, precision)
    digest = weight_digest(graph, arrays)
    packed = Packed(arrays)
    session = OrtSession(graph, arrays, threads, spin)
    capacity = min(capacity, release.manifest.architecture.context_length)
    blocks = prefix_bytes // (kv_bytes_per_token(release.manifest) * BLOCK_TOKENS)
    steps = OrtStepModel(session, slots, capacity, min(prefill_chunk, capacity), blocks)
    give_back(lambda: first_logits(steps), packed, lambda: own_initializers(release, precision))
    drop_file_pages(arrays)
    try_out(steps, precision, release.manifest.self_tests, cpu_class())
    trim()
    huge_pages.gather()
    return LoadedModel(steps, release.id, precision, digest, (time.monotonic() - began) * 1e3)


def give_back(
    logits: Callable[[], npt.NDArray[np.float32]], packed: Packed, again: Callable[[], Mapping[str, Any]]
) -> None:
    """Drops the codes that a session has packed, unless it turns out to read them; `again` makes them anew.

    `logits` computes with every weight.
    """
    if not packed.bytes:
        return
    before = logits().copy()
    packed.drop()
    if not np.array_equal(before, logits(), equal_nan=True):
        _log.info("the kernels of this box read weights as they are fed: %d MiB stay", packed.bytes >> 20)
        packed.put_back(again())


def own_initializers(release: Release, precision: int) -> dict[str, Any]:
    """Over maps of their own, so that files from which weights were made are not mapped any longer than that."""
    return Release(release.path, release.manifest).initializers(precision)
