"""A classifier's release at one precision: texts in, a logit for every label out.

Texts are batched with others of about their length, so that little is computed for padding. What a text gets
does not depend on its batch beyond the kernels' rounding. A text longer than the model takes loses its end or
is refused, as the release says.

Must not know: requests, tiers, how labels came to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from release.folder import Release
from release.manifest import Manifest
from runtime.ort.session import FedSession, GraphError
from runtime.ort.steps import ModelBroken
from runtime.tokenizer import Tokenizer

CLASSIFY = "classify"
TYPES = "token_type_ids"
_MOST_ROWS = 32
_MOST_TOKENS = 4096  # of one batch, padding included
_BUCKET = 8
_INPUTS = frozenset({"input_ids", "attention_mask", TYPES})

Rows = npt.NDArray[np.float32]
Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class Encoded:
    """One text, or pair of texts, as the model takes it. `types` says of each token which text it is of; empty: one."""

    ids: Ids
    types: Ids = ()

    def __len__(self) -> int:
        return len(self.ids)


class TextEncoder:
    """Texts as token ids for one classifier. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest, most: int | None = None) -> None:
        """`most` tokens a text, at most the model's own context."""
        longest = manifest.architecture.context_length
        self.tokenizer, self.most = tokenizer, longest if most is None else min(longest, most)
        self._cuts = manifest.labelling.truncates
        self.takes_pairs = manifest.labelling.text_pairs and tokenizer.takes_pairs
        # A ready-made model's manifest may not know; its embedding has a row for every token, then.
        self.vocabulary = manifest.architecture.vocabulary or tokenizer.id_count

    def __call__(self, text: str, pair: str = "", *, cut: bool | None = None) -> Encoded:
        """Raises TooManyTokens where the release does not say that texts are cut; `cut` overrides what it says."""
        cuts = self._cuts if cut is None else cut
        if pair:
            ids, types = self.tokenizer.encode_pair(text, pair, self.most, cut=cuts)
            return Encoded(ids, types)
        ids = self.tokenizer.encode(text, most=None if cuts else self.most)
        return Encoded(shortened(ids, self.most))


class Labels(Protocol):
    """What a batcher needs of a classifier: `rows` texts as ids in, logits out. One thread drives it."""

    def run(self, rows: Sequence[Encoded]) -> Rows:
        """Logits [B, L]. Raises ModelBroken."""
        ...


class ClassifierSession:
    """A classifier's graph with its weights; satisfies Labels."""

    def __init__(
        self, graph: bytes, initializers: Mapping[str, npt.NDArray[Any]], labels: int, threads: int, spin: bool = False
    ) -> None:
        """Raises GraphError where the graph is not what so many labels need."""
        self._session = FedSession(graph, initializers, threads, spin)
        self._inputs = [entry.name for entry in self._session.run.get_inputs()]
        outputs = {entry.name: entry.shape for entry in self._session.run.get_outputs()}
        if (
            set(self._inputs) - _INPUTS
            or "input_ids" not in self._inputs
            or outputs.get("logits", [None])[-1] != labels
        ):
            raise GraphError(
                f"the graph takes {', '.join(self._inputs)} and gives {outputs}: not what {labels} labels "
                "need; build the release anew"
            )

    @property
    def takes_types(self) -> bool:
        """Whether the graph is told of each token which text it is of."""
        return TYPES in self._inputs

    def run(self, rows: Sequence[Encoded]) -> Rows:
        """See Labels."""
        width = max(len(row) for row in rows)
        tokens, mask, types = (np.zeros((len(rows), width), np.int64) for _ in range(3))
        for index, row in enumerate(rows):
            tokens[index, : len(row)], mask[index, : len(row)] = row.ids, 1
            if row.types:
                types[index, : len(row)] = row.types
        given = {"input_ids": tokens, "attention_mask": mask, TYPES: types}
        try:
            (logits,) = self._session.run.run(["logits"], {name: given[name] for name in self._inputs})
        except Exception as error:  # the library raises bare exceptions of many kinds
            raise ModelBroken(f"ONNX Runtime failed: {error}") from error
        return np.asarray(logits, np.float32)


class ClassifierModel:
    """Texts of any number, for building and measuring. Not thread-safe. `labels` are in the logits' order."""

    def __init__(self, release: Release, precision: int, threads: int = 1, graph: bytes | None = None) -> None:
        """`graph` stands in for the release's own. Raises ReleaseError, GraphError or TokenizerError."""
        manifest = release.manifest
        demand_classifier(manifest)
        self.labels = manifest.labels
        self._encode = TextEncoder(Tokenizer.load(release.path), manifest)
        graph = release.graph(precision) if graph is None else graph
        self._session = ClassifierSession(graph, release.initializers(precision), len(self.labels), threads)

    def scores(self, texts: Sequence[str]) -> Rows:
        """Probabilities [B, L]; every row sums to 1. Raises ModelBroken."""
        logits = self.logits(texts)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)

    def logits(self, texts: Sequence[str]) -> Rows:
        """Logits [B, L]; what is too long is cut. Raises ModelBroken."""
        rows = [self._encode(text, cut=True) for text in texts]
        found = np.empty((len(texts), len(self.labels)), np.float32)
        for batch in batches([len(row) for row in rows]):
            found[batch] = self._session.run([rows[index] for index in batch])
        return found


def demand_classifier(manifest: Manifest) -> None:
    """Raises GraphError for a release that does something else."""
    if manifest.task != CLASSIFY:
        raise GraphError(f"release {manifest.id} is made to {manifest.task}, not to classify")


def shortened(ids: list[int], most: int) -> list[int]:
    """At most `most` token ids. The last one closes a text for the model, so it stays."""
    return ids if len(ids) <= most else [*ids[: most - 1], ids[-1]]


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of texts that go together: of the same length to within a bucket, no more than a batch may hold."""
    batch: list[int] = []
    bucket = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        own = -(-max(lengths[index], 1) // _BUCKET)
        full = len(batch) == _MOST_ROWS or (len(batch) + 1) * own * _BUCKET > _MOST_TOKENS
        if batch and (own != bucket or full):
            yield batch
            batch = []
        batch.append(index)
        bucket = own
    if batch:
        yield batch
