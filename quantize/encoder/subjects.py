"""Both sides of a classifier's measurement: the float encoder with the release's head, and the release.

The head lies in the release, because it was fitted for it; the encoder is the one the release was built from.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quantize.encoder.floats import FloatEncoder
from quantize.encoder.graph import HEAD
from quantize.encoder.head import Head
from quantize.levels import at_level
from quantize.subjects import Classifier
from release.folder import Release
from release.planes import Floats
from runtime.ort.classify import ClassifierModel, shortened
from runtime.tokenizer import Tokenizer


class EncoderClassifiers:
    """Opens classifiers for `quantize.evaluate`; `release` lends the head and the tokenizer."""

    def __init__(self, release: Release) -> None:
        arrays = release.initializers(release.precisions[0])
        self._head = Head(release.manifest.labels, arrays[f"{HEAD}.weight"], arrays[f"{HEAD}.bias"])
        self._tokenizer = Tokenizer.load(release.path)
        shape = release.manifest.architecture
        self._longest, self._layers = shape.context_length, shape.layers

    def source(self, folder: Path, threads: int) -> Classifier:
        """See Classifiers."""
        return _InFloat(FloatEncoder(folder, threads, self._layers), self._head, self._tokenizer, self._longest)

    def release(self, release: Release, precision: int, level: int | None, threads: int) -> Classifier:
        """See Classifiers."""
        return Served(release, precision, level, threads)


class Served:
    """A classifier's release as an edge node serves it."""

    def __init__(self, release: Release, precision: int, level: int | None, threads: int) -> None:
        graph = release.graph(precision)
        self._model = ClassifierModel(release, precision, threads, graph if level is None else at_level(graph, level))

    @property
    def labels(self) -> Sequence[str]:
        return self._model.labels

    def logits(self, text: str) -> Floats:
        """See Classifier."""
        row: Floats = self._model.logits([text])[0]
        return row


class _InFloat:
    def __init__(self, encoder: FloatEncoder, head: Head, tokenizer: Tokenizer, longest: int) -> None:
        self._encoder, self._head, self._tokenizer, self._longest = encoder, head, tokenizer, longest

    @property
    def labels(self) -> Sequence[str]:
        return self._head.labels

    def logits(self, text: str) -> Floats:
        """See Classifier."""
        row = shortened(self._tokenizer.encode(text), self._longest)
        found: Floats = self._head.logits(self._encoder.features([row]))[0]
        return found
