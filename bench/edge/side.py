"""A measured program in a process of its own, told what to do in lines of JSON.

Nobody shares a heap, a thread pool or an interpreter lock with what it is compared with, and since a side
works only while it is asked, sides can be measured in turn within one run.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from runtime.child import PARENT_VARIABLE

_ROOT = Path(__file__).parents[2]
# The folder is searched last: an environment's own packages come before those that lie beside Weir's.
_START = "import sys; sys.path.append(sys.argv[1]); from bench.edge.sides import {name}; {name}.main()"
_NO_POOLS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
_ASK_S, _STOP_S = 300.0, 10.0
_TOLD_BYTES = 1500
_READ_BYTES = 1 << 16


class SideFailed(Exception):
    """A measured program could not do what it was asked; the message says what it said."""


class Asked(Protocol):
    """What measuring needs of a side."""

    def ask(self, do: str, **given: Any) -> dict[str, Any]:
        """The answer to one command. Raises SideFailed."""
        ...


class Side:
    """`with Side(…) as side:` runs bench.edge.sides.NAME; `ask` waits for its answer."""

    def __init__(self, name: str, python: str = sys.executable, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        given = {**os.environ, **_NO_POOLS, PARENT_VARIABLE: str(os.getpid()), **(environment or {})}
        self._process = subprocess.Popen(
            [python, "-c", _START.format(name=name), str(_ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=given,
        )
        self._read = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, do: str, *, within_s: float = _ASK_S, **given: Any) -> dict[str, Any]:
        """The answer to one command. Raises SideFailed, also when none came in time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **given}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise SideFailed(f"{self.name} has ended: {self._last_words()}") from None
        told: dict[str, Any] = json.loads(self._line(do, time.monotonic() + within_s))
        if "error" in told:
            raise SideFailed(f"{self.name}, asked to {do}: {told['error']}")
        return told

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._said.close()

    def _line(self, do: str, ends: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._read:
            ready, _, _ = select.select([descriptor], [], [], max(ends - time.monotonic(), 0.0))
            if not ready:
                raise SideFailed(f"{self.name} did not {do} in time: {self._last_words()}")
            more = os.read(descriptor, _READ_BYTES)
            if not more:
                raise SideFailed(f"{self.name} ended while asked to {do}: {self._last_words()}")
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _last_words(self) -> str:
        self._said.seek(0)
        said = self._said.read()[-_TOLD_BYTES:].decode("utf-8", "replace").strip()
        return said or "it said nothing"
