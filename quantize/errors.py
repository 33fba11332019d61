"""What can go wrong while a release is built.

    QuantizeError                root
    ├── UnsupportedArchitecture  the model is of a kind that cannot be built, found before any work
    ├── ExportFailed             the exporter ended with an error or made a graph we do not understand
    └── OutOfSpace               the disk cannot hold the work

Messages say what to do.
"""

from __future__ import annotations


class QuantizeError(Exception):
    """A release cannot be built."""


class UnsupportedArchitecture(QuantizeError):
    """The model is of a kind that cannot be built."""


class ExportFailed(QuantizeError):
    """The graph could not be exported."""


class OutOfSpace(QuantizeError):
    """The disk is, or would be, full."""
