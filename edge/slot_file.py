"""The slots of a node's models on disk: `slots.json`, written whole or not at all, changed under a lock.

Launcher and front both change it, so every change reads, applies a function of edge.slots and writes.
A file that cannot be read counts as empty: the node then starts anew with the newest release it holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from edge.slots import Slots
from release.disk import Disk
from release.document import DocumentError, parse, plain

SLOTS_NAME = "slots.json"
_MOST_BYTES = 1 << 20

_log = logging.getLogger("weir.edge.slots")


class SlotFile:
    """Of one store folder."""

    def __init__(self, store_dir: Path, disk: Disk | None = None) -> None:
        self._path, self._disk = store_dir / SLOTS_NAME, disk or Disk()

    def read(self, model: str) -> Slots:
        """Of one model; empty where nothing, or nothing readable, is there."""
        return self._all().get(model, Slots())

    def models(self) -> tuple[str, ...]:
        return tuple(self._all())

    def change(self, model: str, how: Callable[[Slots], Slots]) -> Slots:
        """Applies `how` and writes the result where it is another one. Raises OSError; then nothing has changed."""
        with self._locked():
            models = self._all()
            before = models.get(model, Slots())
            after = how(before)
            if after != before:
                document = {"schema": 1, "models": {**models, model: after}}
                self._disk.write(self._path, json.dumps(plain(document), indent=1).encode())
        return after

    def _all(self) -> Mapping[str, Slots]:
        try:
            with self._path.open("rb") as handle:
                content = json.loads(handle.read(_MOST_BYTES))
            return {str(name): parse(Slots, entry) for name, entry in content["models"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, DocumentError) as error:
            _log.warning("%s cannot be read and counts as empty: %s", self._path, error)
            return {}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._path.with_name(".slots.lock").open("ab") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
