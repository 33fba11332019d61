"""Where a release is built: a hidden folder beside its place, renamed at the end or gone without a trace."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from quantize.errors import OutOfSpace


@contextlib.contextmanager
def room(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out`, gone afterwards; a full disk becomes OutOfSpace.

    Its name holds this process's id, so that what a killed build left behind can be told and removed.
    """
    for left in out.parent.glob(f".{glob.escape(out.name)}-*-*"):
        pid = left.name.split("-")[-2]
        if pid.isdecimal() and not _alive(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}-{os.getpid()}-", dir=out.parent))
    try:
        yield work
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutOfSpace(f"the disk of {out.parent} filled up; nothing was written: free some room") from error
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def publish(made: Path, out: Path, work: Path) -> None:
    """Puts the finished folder `made` at `out` by renaming; what was there moves into `work`."""
    if out.exists():
        out.rename(work / "before")
    made.rename(out)
