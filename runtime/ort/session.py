"""An ONNX Runtime session whose weights come from memory, and the steps it takes over a KV pool.

Invariants: the buffers of the weights live as long as the session, which reads them in place; every
binding is made once, over arrays that never move, and steps only change what the arrays hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from runtime.ort.rows import BlockPool, RowPool, RowShape
from runtime.ort.softmax import APPENDED
from runtime.ort.steps import BLOCK_TOKENS, SITS_OUT, Logits, ModelBroken

Array = npt.NDArray[Any]

_ERRORS_ONLY = 3
# Positions of one pass whose logits are given: for a large vocabulary each is a few hundred kilobytes.
_SCORED_AT_ONCE = 16
_INPUTS = ("input_ids", "seqlens_k", "total_seq", "logits_idx")


class GraphError(ValueError):
    """The graph or its weights are not what this runtime serves; the message says why."""


class FedSession:
    """A session over a graph whose weights it is fed with from memory; `run` is ONNX Runtime's own."""

    def __init__(self, graph: bytes, initializers: Mapping[str, Array], threads: int = 1, spin: bool = False) -> None:
        """`spin`: idle threads wait busily, for lower latency on cores that are nobody else's.

        Raises GraphError when ONNX Runtime refuses the graph.
        """
        self._arrays = {name: np.ascontiguousarray(array) for name, array in initializers.items()}
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in self._arrays.values()]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = _ERRORS_ONLY
        # Idle threads that spin would steal the cores other processes of this box need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
        options.add_external_initializers(list(self._arrays), values)
        try:
            self.run = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library raises bare exceptions of many kinds
            raise GraphError(f"ONNX Runtime refuses the graph: {error}") from error
        self._values = values


class OrtSession(FedSession):
    """A decoder's graph with its weights. Shared by nobody: one StepModel drives it."""

    def __init__(self, graph: bytes, initializers: Mapping[str, Array], threads: int = 1, spin: bool = False) -> None:
        """Raises GraphError when ONNX Runtime refuses the graph or it lacks the contract's inputs."""
        super().__init__(graph + APPENDED, initializers, threads, spin)
        self.vocab_size, self.row_shape = self._inspect()
        wanted = {x.name: x.shape for x in self.run.get_inputs()}["logits_idx"]
        self.many_positions = wanted[1] != 1  # releases of early versions give the logits of one position a pass

    def _inspect(self) -> tuple[int, RowShape]:
        inputs = {x.name: x.shape for x in self.run.get_inputs()}
        logits = {x.name: x.shape for x in self.run.get_outputs()}.get("logits")
        layers = sum(name.startswith("past_key_values.") and name.endswith(".key") for name in inputs)
        missing = [name for name in _INPUTS if name not in inputs]
        if missing or not layers or logits is None:
            raise GraphError(f"the graph lacks {missing or 'a KV cache or logits'}; build the release anew")
        _, heads, _, head_dim = inputs["past_key_values.0.key"]
        if not all(isinstance(x, int) for x in (heads, head_dim, logits[-1])):
            raise GraphError(
                f"the graph leaves sizes open: heads {heads}, head_dim {head_dim}, vocabulary {logits[-1]}"
            )
        return logits[-1], RowShape(layers, heads, head_dim)


class OrtStepModel:
    """Prefill and decode steps over a pool of rows; satisfies runtime.ort.steps.StepModel."""

    def __init__(
        self, session: OrtSession, slots: int, capacity: int, prefill_chunk: int, prefix_blocks: int = 0
    ) -> None:
        self._session = session
        self._pool = RowPool(session.row_shape, slots, capacity)
        self._kept = BlockPool(self._pool, prefix_blocks, BLOCK_TOKENS)
        self.prefix_blocks = prefix_blocks
        self._prompt = np.zeros((1, prefill_chunk), np.int64)
        self._tokens = np.zeros((slots, 1), np.int64)
        self._seqlens = np.zeros(slots, np.int32)
        self._total = np.array(0, np.int32)
        self._index = np.zeros((slots, 1, 1), np.int64)
        self._logits = np.zeros((slots, 1, session.vocab_size), np.float32)
        self._probabilities = np.zeros_like(self._logits)
        self._positions = np.arange(_SCORED_AT_ONCE, dtype=np.int64).reshape(1, -1, 1)
        self._scored = np.empty((1, _SCORED_AT_ONCE, session.vocab_size), np.float32)
        self._unread = np.empty_like(self._scored)
        self._decode_bindings = [self._bind(0, count) for count in range(1, slots + 1)]
        self._prefill_bindings = [self._bind(row, row + 1) for row in range(slots)]
        # Scoring's own: other positions, and logits of each. Made for a row when it first scores.
        self._score_bindings: dict[int, Any] = {}

    @property
    def slots(self) -> int:
        return self._pool.slots

    @property
    def capacity(self) -> int:
        return self._pool.capacity

    @property
    def prefill_chunk(self) -> int:
        return self._prompt.shape[1]

    @property
    def vocab_size(self) -> int:
        return self._session.vocab_size

    @property
    def probabilities(self) -> Logits:
        """See StepModel."""
        rows: Logits = self._probabilities[:, 0]
        return rows

    def prefill(self, row: int, token_ids: Sequence[int], start: int) -> Logits:
        """See StepModel. At most `prefill_chunk` tokens at once."""
        count = len(token_ids)
        if not 0 < count <= self.prefill_chunk or start + count > self.capacity:
            raise ValueError(f"{count} tokens from position {start} do not fit a chunk or a row")
        self._prompt[0, :count] = token_ids
        self._seqlens[0] = start + count - 1
        self._total[...] = start + count
        self._index[0] = count - 1
        binding = self._prefill_bindings[row]
        # One row's chunk lies at the front of the buffer, so only its shape is bound anew.
        bind_input(binding, "input_ids", self._prompt[:, :count])
        self._run(binding)
        self._index[0] = 0
        row_logits: Logits = self._logits[0, 0]
        return row_logits

    @property
    def score_chunk(self) -> int:
        return min(_SCORED_AT_ONCE, self.prefill_chunk)

    def score(self, row: int, token_ids: Sequence[int], start: int) -> Logits:
        """See StepModel."""
        count = len(token_ids)
        if not 0 < count <= self.score_chunk or start + count > self.capacity:
            raise ValueError(f"{count} tokens from position {start} do not fit a pass or a row")
        scored: Logits = self._scored[0, :count]
        if not self._session.many_positions:
            for at, token in enumerate(token_ids):
                scored[at] = self.prefill(row, [token], start + at)
            return scored
        self._prompt[0, :count] = token_ids
        self._seqlens[0] = start + count - 1
        self._total[...] = start + count
        binding = self._score_bindings.get(row)
        if binding is None:
            binding = self._score_bindings[row] = self._bind(row, row + 1)
        bind_input(binding, "input_ids", self._prompt[:, :count])
        bind_input(binding, "logits_idx", self._positions[:, :count])
        bind_output(binding, "logits", self._scored[:, :count])
        bind_output(binding, "probabilities", self._unread[:, :count])
        self._run(binding)
        return scored

    def decode(self, tokens: Sequence[int], lengths: Sequence[int]) -> Logits:
        """See StepModel."""
        count = len(tokens)
        # One that sits out is computed as if it were empty, looking back over nothing; its first position is put back.
        out = [row for row, length in enumerate(lengths) if length == SITS_OUT]
        held = self._pool.first(out) if out else None
        self._tokens[:count, 0] = tokens
        self._seqlens[:count] = [max(length, 0) for length in lengths]
        self._total[...] = max(lengths) + 1
        self._run(self._decode_bindings[count - 1])
        if held is not None:
            self._pool.put_first(out, held)
        rows: Logits = self._logits[:count, 0]
        return rows

    def move(self, source: int, target: int, start: int, end: int) -> None:
        """See StepModel."""
        self._pool.move(source, target, start, end)

    def give_back(self, row: int, start: int) -> None:
        """See StepModel."""
        self._pool.give_back(row, start)

    def keep(self, row: int, start: int, block: int) -> None:
        """See StepModel."""
        self._kept.keep(row, start, block)

    def restore(self, block: int, row: int, start: int) -> None:
        """See StepModel."""
        self._kept.restore(block, row, start)

    def forget(self, first: int, end: int) -> None:
        """See StepModel."""
        self._kept.forget(first, end)

    def _run(self, binding: Any) -> None:
        try:
            self._session.run.run_with_iobinding(binding)
        except Exception as error:  # the library raises bare exceptions of many kinds
            raise ModelBroken(f"ONNX Runtime failed inside a step: {error}") from error

    def _bind(self, first: int, end: int) -> Any:
        """Binds rows first … end-1 of the pool and the front of every other array."""
        binding = self._session.run.io_binding()
        count = end - first
        bind_input(binding, "input_ids", self._tokens[:count])
        bind_input(binding, "seqlens_k", self._seqlens[:count])
        bind_input(binding, "total_seq", self._total)
        bind_input(binding, "logits_idx", self._index[:count])
        for name, array in self._pool.arrays.items():
            bind_input(binding, f"past_key_values.{name}", array[first:end])
            bind_output(binding, f"present.{name}", array[first:end])
        bind_output(binding, "logits", self._logits[:count])
        bind_output(binding, "probabilities", self._probabilities[:count])
        return binding


def bind_input(binding: Any, name: str, array: Array) -> None:
    """The session reads `array` in place; it must live as long as the binding."""
    binding.bind_input(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)


def bind_output(binding: Any, name: str, array: Array) -> None:
    """The session writes into `array`; it must live as long as the binding."""
    binding.bind_output(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)
