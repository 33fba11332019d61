"""From an open release to a model that takes steps, with the digest of the weights it was fed."""

from __future__ import annotations

import time
from dataclasses import dataclass

from release.folder import Release, weight_digest
from runtime.cpu import cpu_class
from runtime.memory import trim
from runtime.ort.selftest import try_out
from runtime.ort.session import OrtSession, OrtStepModel


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
) -> LoadedModel:
    """Loads weights, makes a session and tries it out on the release's self-tests.

    `capacity` is in tokens per slot, at most the model's own context. Raises ReleaseError or GraphError.
    """
    began = time.monotonic()
    graph, arrays = release.graph(precision), release.initializers(precision)
    digest = weight_digest(graph, arrays)
    session = OrtSession(graph, arrays, threads)
    capacity = min(capacity, release.manifest.architecture.context_length)
    steps = OrtStepModel(session, slots, capacity, min(prefill_chunk, capacity))
    try_out(steps, precision, release.manifest.self_tests, cpu_class())
    trim()
    return LoadedModel(steps, release.id, precision, digest, (time.monotonic() - began) * 1e3)
