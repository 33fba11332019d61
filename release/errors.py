"""What can be wrong with a release, as one small tree.

    ReleaseError             root
    ├── ManifestError        the manifest is missing, malformed, or names an unknown schema
    ├── CorruptRelease       a file is missing, truncated, too long or has another hash than promised
    └── OutOfSpace           the disk cannot take it

Messages name the file and say what to do. Callers above translate them into their own errors.
"""

from __future__ import annotations


class ReleaseError(Exception):
    """A release cannot be used as it is."""


class ManifestError(ReleaseError):
    """The manifest cannot be read or contradicts itself."""


class CorruptRelease(ReleaseError):
    """The bytes on disk are not the bytes the manifest promises."""


class OutOfSpace(ReleaseError):
    """The disk is full, or would be fuller than it may become. Nothing is lost; room makes it go on."""
