"""Small files written whole or not at all, on the disk itself.

A reader, and a start after a power cut, sees either the old content or the new one: the bytes are
flushed under another name first, then renamed, then the folder is flushed. Knows no format.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replaces `path` by `content`. Raises OSError; then the old content stays, and no draft is left."""
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".draft", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(draft).unlink()
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Onto the disk: the names in `folder`, so that a rename outlives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
