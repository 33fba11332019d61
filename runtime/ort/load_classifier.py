"""From an open classifier's release to a session that labels texts, with the digest of the weights it was fed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from release.folder import Release, weight_digest
from release.manifest import SelfTest
from runtime.cpu import cpu_class
from runtime.memory import trim
from runtime.ort.classify import ClassifierSession, Encoded, Labels, Rows, demand_classifier
from runtime.ort.load import give_back, own_initializers
from runtime.ort.reclaim import Packed, drop_file_pages
from runtime.ort.selftest import demand_close
from runtime.ort.session import GraphError
from runtime.ort.steps import ModelBroken

_PROBE = Encoded((0, 1, 2))


@dataclass(frozen=True, slots=True, eq=False)
class LoadedClassifier:
    """A release at one precision, ready to label. `weight_digest` is over the bytes in use."""

    session: ClassifierSession
    release: str
    precision: int
    weight_digest: str
    load_ms: float


def load_classifier(release: Release, precision: int, *, threads: int = 1, spin: bool = False) -> LoadedClassifier:
    """Loads weights, makes a session and tries it out on the release's self-tests. Raises ReleaseError, GraphError."""
    manifest = release.manifest
    demand_classifier(manifest)
    began = time.monotonic()
    graph, arrays = release.graph(precision), own_initializers(release, precision)
    digest = weight_digest(graph, arrays)
    packed = Packed(arrays)
    session = ClassifierSession(graph, arrays, len(manifest.labels), threads, spin)
    give_back(lambda: _first(session), packed, lambda: own_initializers(release, precision))
    drop_file_pages(arrays)
    try_out(session, precision, manifest.self_tests, cpu_class(), manifest.architecture.context_length)
    trim()
    return LoadedClassifier(session, release.id, precision, digest, (time.monotonic() - began) * 1e3)


def try_out(session: Labels, precision: int, entries: Sequence[SelfTest], cpu: str, longest: int) -> None:
    """Compares with what is known, alone and beside a longer text. Raises GraphError with the worst difference.

    No text may have more than `longest` tokens.
    """
    if not np.isfinite(_first(session)).all():
        raise GraphError("the model's first logits are not finite; build the release anew")
    of_precision = [entry for entry in entries if entry.precision == precision]
    own = [entry for entry in of_precision if entry.cpu_class == cpu]
    try:
        for entry in own or of_precision:
            tolerance = entry.tolerance if own else entry.tolerance_elsewhere
            alone = Encoded(entry.prompt_ids)
            longer = Encoded((*entry.prompt_ids[:-1], *entry.prompt_ids[-2:])[:longest])
            demand_close(session.run([alone])[0], entry, tolerance)
            demand_close(session.run([alone, longer])[0], entry, tolerance)
    except (ModelBroken, IndexError) as error:
        raise GraphError(f"the model's self-test broke it: {error}; build the release anew") from error


def _first(session: Labels) -> Rows:
    try:
        return session.run([_PROBE])
    except ModelBroken as error:
        raise GraphError(f"the model's first texts failed: {error}; build the release anew") from error
