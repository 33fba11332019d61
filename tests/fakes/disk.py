"""A disk that stops at a step: the power goes, or it is full. And a way to try every step there is."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from release.disk import Disk, Step

CUT = 86


class QuickDisk(Disk):
    """Waits for no platter: the steps are the same, and a process that ends loses nothing that it wrote."""

    def __init__(self, step: Step = lambda _operation, _path: None) -> None:
        super().__init__(step)
        self._told = step

    def sync(self, descriptor: int, path: Path) -> None:
        self._told("sync", path)

    def sync_folder(self, path: Path) -> None:
        self._told("sync_folder", path)


class Steps:
    """A `release.disk.Step` that counts, and calls `then` at the `stop`-th operation (counted from 0)."""

    def __init__(self, stop: int = -1, then: Callable[[str, Path], None] | None = None) -> None:
        self.count = 0
        self.seen: list[str] = []
        self._stop, self._then = stop, then

    def __call__(self, operation: str, path: Path) -> None:
        self.seen.append(f"{operation} {path.name}")
        self.count += 1
        if self.count - 1 == self._stop and self._then is not None:
            self._then(operation, path)


def power_cut(_operation: str, _path: Path) -> None:
    """This process ends here, without a word to anybody."""
    os._exit(CUT)


def full(operation: str, path: Path) -> None:
    """There is no room for this operation; removing things always works."""
    if operation not in ("remove", "truncate"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def in_a_process(work: Callable[[], None], seconds: int = 30) -> int:
    """Runs `work` in a process of its own; its exit code: 0, CUT, or 1 for an exception."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(seconds)
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def every_cut(work: Callable[[Steps], None], most: int = 1000) -> Iterator[int]:
    """Runs `work` in a process whose power goes at its first step, its second, and so on until it gets through.

    Yields the number of the step after each cut, with the disk as the cut left it.
    """
    for step in range(most):
        code = in_a_process(lambda step=step: work(Steps(step, power_cut)))  # type: ignore[misc]
        if code == 0:
            return
        assert code == CUT, f"step {step} ended with {code}"
        yield step
    raise AssertionError(f"more than {most} steps")
