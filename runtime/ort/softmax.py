"""The probabilities of a row of logits, by ONNX Runtime's own kernel: within the model's graph, or of any row.

numpy's exponential takes three to four times as long over a vocabulary where the CPU has no AVX-512; at eight rows a
step that was more than confidence may cost. Runs are given no RunOptions: handing them over takes longer than the rest.
One session serves the process: it holds nothing but the graph below. A Softmax belongs to one thread. After a step of a
model its run finds nothing of itself in the caches and takes four times as long as the kernel, so a decoder's graph
gets the same operation as its last.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from runtime.ort.steps import Logits

# One Softmax over the last axis of x [n]. tests/unit/runtime/test_softmax.py makes it with the onnx package.
GRAPH = bytes.fromhex(
    "080812003a540a250a01781201792207536f66746d61782a140a046178697318ffffffffffffffffff01a00102"
    "1207736f66746d61785a100a0178120b0a09080112050a0312016e62100a0179120b0a09080112050a0312016e42040a00100d"
)
# What follows a decoder's graph so that it gives `probabilities` beside `logits`: messages in a row are read as one,
# here with a node and an output more. tests/unit/runtime/test_softmax.py makes it likewise.
APPENDED = bytes.fromhex(
    "3a4f0a360a066c6f67697473120d70726f626162696c69746965732207536f66746d61782a140a046178697318ffffffffffffffffff01a00102"
    "62150a0d70726f626162696c697469657312040a020801"
)
_ERRORS_ONLY = 3
_MOST_BINDINGS = 256  # rows seen at so many addresses; beyond that all are bound anew


class Softmax:
    """Writes into `probabilities` [V], which is the same array every time."""

    def __init__(self, vocab_size: int) -> None:
        self.probabilities: npt.NDArray[np.float32] = np.empty(vocab_size, np.float32)
        self._bindings: dict[int, Any] = {}

    def __call__(self, logits: Logits) -> npt.NDArray[np.float32]:
        """Of `logits` [V]. Valid until the next call."""
        # The kernel is told an address and nothing else.
        if logits.dtype != np.float32 or not logits.flags.c_contiguous:
            logits = np.ascontiguousarray(logits, np.float32)
        if logits.shape != self.probabilities.shape:
            raise ValueError(f"logits of shape {logits.shape}; this is for {self.probabilities.shape}")
        address = logits.ctypes.data
        # Rows of logits lie in few places, which the steps before had bound already.
        binding = self._bindings.get(address)
        if binding is None:
            binding = self._bind(address)
        _session().run_with_iobinding(binding)
        return self.probabilities

    def _bind(self, address: int) -> Any:
        if len(self._bindings) >= _MOST_BINDINGS:
            self._bindings.clear()
        binding = self._bindings[address] = _session().io_binding()
        shape = list(self.probabilities.shape)
        binding.bind_input("x", "cpu", 0, np.float32, shape, address)
        binding.bind_output("y", "cpu", 0, np.float32, shape, self.probabilities.ctypes.data)
        return binding


@cache
def _session() -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(GRAPH, options, providers=["CPUExecutionProvider"])
