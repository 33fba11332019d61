"""A classifier's release at one precision: texts in, a probability for every label out.

Texts are batched with others of about their length, so that little is computed for padding; a text longer
than the model takes loses its end, as in training. What a text gets does not depend on its batch beyond
the kernels' rounding.

Must not know: requests, tiers, how labels came to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from release.folder import Release
from runtime.ort.session import FedSession, GraphError
from runtime.ort.steps import ModelBroken
from runtime.tokenizer import Tokenizer

CLASSIFY = "classify"
_MOST_ROWS = 32
_MOST_TOKENS = 4096  # of one batch, padding included
_BUCKET = 8

Rows = npt.NDArray[np.float32]
Ids = Sequence[int]


class ClassifierModel:
    """Not thread-safe: one thread drives it. `labels` are in the order of the probabilities."""

    def __init__(self, release: Release, precision: int, threads: int = 1, graph: bytes | None = None) -> None:
        """`graph` stands in for the release's own. Raises ReleaseError, GraphError or TokenizerError."""
        manifest = release.manifest
        if manifest.task != CLASSIFY:
            raise GraphError(f"release {release.id} is made to {manifest.task}, not to classify")
        self.labels = manifest.labels
        self._longest = manifest.architecture.context_length
        self._tokenizer = Tokenizer.load(release.path)
        graph = release.graph(precision) if graph is None else graph
        self._session = FedSession(graph, release.initializers(precision), threads)
        self._inputs = [entry.name for entry in self._session.run.get_inputs()]
        self._demand()

    def scores(self, texts: Sequence[str]) -> Rows:
        """Probabilities [B, L]; every row sums to 1. Raises ModelBroken."""
        logits = self.logits(texts)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)

    def logits(self, texts: Sequence[str]) -> Rows:
        """Logits [B, L]. Raises ModelBroken."""
        rows = [shortened(self._tokenizer.encode(text), self._longest) for text in texts]
        found = np.empty((len(texts), len(self.labels)), np.float32)
        for batch in batches([len(row) for row in rows]):
            found[batch] = self._run([rows[index] for index in batch])
        return found

    def _demand(self) -> None:
        unknown = sorted(set(self._inputs) - {"input_ids", "attention_mask", "token_type_ids"})
        outputs = {entry.name: entry.shape for entry in self._session.run.get_outputs()}
        if unknown or "input_ids" not in self._inputs or outputs.get("logits", [None])[-1] != len(self.labels):
            raise GraphError(
                f"the graph takes {', '.join(self._inputs)} and gives {outputs}: not what {len(self.labels)} labels "
                "need; build the release anew"
            )

    def _run(self, rows: Sequence[Ids]) -> Rows:
        width = max(len(row) for row in rows)
        tokens, mask = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width), np.int64)
        for index, row in enumerate(rows):
            tokens[index, : len(row)], mask[index, : len(row)] = row, 1
        given = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(tokens)}
        try:
            (logits,) = self._session.run.run(["logits"], {name: given[name] for name in self._inputs})
        except Exception as error:  # the library raises bare exceptions of many kinds
            raise ModelBroken(f"ONNX Runtime failed: {error}") from error
        return np.asarray(logits, np.float32)


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
