"""Why a model could not be had. Every message says what to do about it.

SourceError
├── UnknownModel         no such name, path or repository
├── BadModel             a folder or file that lacks something or is damaged
│   └── UnknownArchitecture
├── WrongHash            the bytes are not the ones that were pinned
├── DiskFull
├── NoNetwork            neither a hub nor a package index answered, or the line broke
├── MirrorsOff           only the package index has it and WEIR_MIRRORS=off refuses that
└── ConversionFailed
"""

from __future__ import annotations


class SourceError(Exception):
    """A model could not be had."""


class UnknownModel(SourceError):
    """No model of that name, path or repository."""


class BadModel(SourceError):
    """What was found is not a usable model."""


class UnknownArchitecture(BadModel):
    """A model of a family that Weir cannot build or serve."""


class WrongHash(SourceError):
    """The bytes that came are not those that were pinned; they have been removed."""


class DiskFull(SourceError):
    """There is not enough room."""


class NoNetwork(SourceError):
    """Nothing answered, or the line broke and stayed broken."""


class MirrorsOff(SourceError):
    """Only the package index could help, and the user refuses it."""


class ConversionFailed(SourceError):
    """GGUF could not be turned into safetensors."""
