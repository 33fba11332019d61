"""Where a file lies in a content-addressed folder: `objects/<first 2 hex digits>/<sha256>`.

The same rule holds in a repository, in a bundle and in a node's store, so that any of them can be
another's source. Pure; no I/O.
"""

from __future__ import annotations

import re

OBJECTS, METADATA = "objects", "metadata"

_SHA256 = re.compile(r"[0-9a-f]{64}")
_OBJECT = re.compile(r"objects/([0-9a-f]{2})/(\1[0-9a-f]{62})")
_METADATA = re.compile(r"metadata/(?:[1-9][0-9]{0,18}\.(?:root|snapshot|targets)|timestamp)\.json")


def object_path(sha256: str) -> str:
    """The path of a file's content below the repository. Raises ValueError unless it is 64 lower-case hex digits."""
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"{sha256!r} is not a SHA-256: 64 lower-case hex digits")
    return f"{OBJECTS}/{sha256[:2]}/{sha256}"


def object_digest(path: str) -> str | None:
    """The SHA-256 that a path of an object names; None for any other path."""
    found = _OBJECT.fullmatch(path)
    return found.group(2) if found else None


def is_metadata(path: str) -> bool:
    """Whether a path is that of a metadata file."""
    return _METADATA.fullmatch(path) is not None
