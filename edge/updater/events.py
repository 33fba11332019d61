"""What the updater tells: releases that come and go, files on their way, what was refused and why.

Frozen, without text of requests. Times are of the node's clock, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CatalogueRefused:
    """A source's metadata was not believed or did not come; what was verified last stays in force."""

    at: float
    source: str
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class CatalogueTaken:
    """Another verified state of the repository. `clock` says when the box's own clock was not believed."""

    at: float
    source: str
    issued: str
    expires: str
    releases: int
    clock: str = ""


@dataclass(frozen=True, slots=True)
class TransferPlanned:
    """What to fetch of a release now, or why nothing."""

    at: float
    release: str
    part: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class TransferStarted:
    """A part of a release is being fetched; `bytes` are still missing."""

    at: float
    release: str
    part: str
    bytes: int


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """Told every few seconds. `bytes_per_s` is of late, pauses included."""

    at: float
    release: str
    part: str
    missing_bytes: int
    bytes_per_s: float
    source: str


@dataclass(frozen=True, slots=True)
class TransferFinished:
    """A part of a release is here, verified. `bytes` came over the network for it just now."""

    at: float
    release: str
    part: str
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TransferRefused:
    """A source failed a file, gave wrong bytes, or the disk could not take it; what is whole stays."""

    at: float
    release: str
    file: str
    source: str
    message: str


@dataclass(frozen=True, slots=True)
class ReleaseOffered:
    """A release is put on trial."""

    at: float
    model: str
    release: str
    precision: int


@dataclass(frozen=True, slots=True)
class ReleaseProved:
    """The release on trial serves; it is the current one now."""

    at: float
    model: str
    release: str
    previous: str


@dataclass(frozen=True, slots=True)
class ReleaseReturned:
    """A release could not be served and is not tried again; `to` is in force instead (empty: nothing is)."""

    at: float
    model: str
    release: str
    to: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseForgiven:
    """Nothing else is left to serve: a release that was bad, for `reason`, gets another chance."""

    at: float
    model: str
    release: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseKept:
    """What was asked for cannot be had; what is in force stays."""

    at: float
    model: str
    release: str
    message: str


@dataclass(frozen=True, slots=True)
class StoreCleared:
    """Releases and files that nothing needs any more went."""

    at: float
    freed_bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class FilesDamaged:
    """Files on disk no longer had their hash; they went, and are fetched again."""

    at: float
    release: str
    files: str


UpdaterEvent = (
    CatalogueRefused
    | CatalogueTaken
    | TransferPlanned
    | TransferStarted
    | TransferProgress
    | TransferFinished
    | TransferRefused
    | ReleaseOffered
    | ReleaseProved
    | ReleaseReturned
    | ReleaseForgiven
    | ReleaseKept
    | StoreCleared
    | FilesDamaged
)


class UpdaterSink(Protocol):
    """Told of every event of the updater; edge.events.Sink is one."""

    def emit(self, event: UpdaterEvent) -> None: ...
