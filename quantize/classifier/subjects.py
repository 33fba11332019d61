"""A ready-made classifier as it was found, run in float32: what its release is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from quantize.classifier.source import ReadyMade, read_ready_made
from quantize.encoder.subjects import Served
from quantize.errors import UnsupportedArchitecture
from quantize.subjects import Classifier
from release.folder import Release
from release.planes import Floats
from runtime.ort.classify import shortened
from runtime.tokenizer import Tokenizer

_ERRORS_ONLY = 3


class InFloat:
    """The graph of the user's own. Raises UnsupportedArchitecture where ONNX Runtime refuses it."""

    def __init__(self, found: ReadyMade, tokenizer: Tokenizer, threads: int) -> None:
        self._found, self._tokenizer = found, tokenizer
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, _ERRORS_ONLY
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._run = onnxruntime.InferenceSession(str(found.graph), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library raises bare exceptions of many kinds
            raise UnsupportedArchitecture(f"ONNX Runtime refuses {found.graph}: {error}") from error

    @property
    def labels(self) -> Sequence[str]:
        return self._found.labels

    def logits(self, text: str) -> Floats:
        """See Classifier."""
        return self._logits(shortened(self._tokenizer.encode(text), self._found.architecture.context_length))

    def try_out(self) -> None:
        """Raises UnsupportedArchitecture unless a short text gets one finite value per label."""
        try:
            found = self._logits(self._tokenizer.encode("a"))
        except Exception as error:  # the library raises bare exceptions of many kinds
            raise UnsupportedArchitecture(f"{self._found.graph} fails on a short text: {error}") from error
        if found.shape != (len(self.labels),) or not np.isfinite(found).all():
            raise UnsupportedArchitecture(
                f"{self._found.graph} gives {found.shape} for a text, not {len(self.labels)} finite values"
            )

    def _logits(self, ids: Sequence[int]) -> Floats:
        tokens = np.asarray([ids], np.int64)
        given = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens)}
        wanted = [entry.name for entry in self._run.get_inputs()]
        (logits,) = self._run.run([self._found.output], {name: given[name] for name in wanted})
        row: Floats = np.asarray(logits[0], np.float32)
        return row


class ReadyMadeClassifiers:
    """Opens both sides for `quantize.evaluate`; `release` lends the tokenizer."""

    def __init__(self, release: Release) -> None:
        self._tokenizer = Tokenizer.load(release.path)

    def source(self, folder: Path, threads: int) -> Classifier:
        """See Classifiers."""
        return InFloat(read_ready_made(folder), self._tokenizer, threads)

    def release(self, release: Release, precision: int, level: int | None, threads: int) -> Classifier:
        """See Classifiers."""
        return Served(release, precision, level, threads)
