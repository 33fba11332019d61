"""Which releases are known and which one of each model is active, kept in the state store.

    release/<model>/<id>   a summary of the manifest and the folder it was registered from
    active/<model>         the release that edges should serve: {"release", "since", "by"}

Only a registered release becomes active, and only over the version the caller saw. Unknown fields are
passed over when reading, so that a newer admin may add some. Knows no HTTP and no clock.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, ValidationError

from cloud.state.base import ABSENT, Entry, StateStore, VersionConflict
from release.errors import ReleaseError
from release.folder import open_release
from release.manifest import Manifest
from wire.errors import Conflict, NotFound, PreconditionFailed, WeirError

ACTIVE = "active/"
RELEASE = "release/"
_ATTEMPTS = 5


class KnownRelease(BaseModel):
    """A release as it was registered. `bytes` is the sum over its files; `folder` its name on the admin's disk."""

    model_config = ConfigDict(frozen=True)

    id: str
    model: str
    version: str
    task: str
    precisions: tuple[int, ...]
    tokenizer_digest: str
    cloud_model: str
    bytes: int
    calibrations: tuple[str, ...]
    folder: str
    registered_at: datetime


class ActiveRelease(BaseModel):
    """The release of a model that edges should serve. `version` is the one to change it over."""

    model_config = ConfigDict(frozen=True)

    model: str
    release: str
    since: datetime
    by: str
    version: int


class Page(BaseModel):
    """Registered releases in the order of model and id. `next`: ask again with `after` set to it."""

    model_config = ConfigDict(frozen=True)

    releases: tuple[KnownRelease, ...]
    next: str | None = None


def read_folder(folder: Path, now: datetime) -> KnownRelease:
    """The summary of a release folder, after every file was checked against its hashes. Blocks for as long.

    Raises NotFound or PreconditionFailed.
    """
    if not folder.is_dir():
        raise NotFound(f"there is no release folder {folder.name}")
    try:
        manifest = open_release(folder).manifest
    except (ReleaseError, OSError) as error:
        # Where the admin keeps its files is nobody's business but its own.
        fault = str(error).replace(f"{folder.parent}/", "")
        raise PreconditionFailed(f"the release in {folder.name} cannot be used: {fault}") from error
    return summary(manifest, folder.name, now)


def summary(manifest: Manifest, folder: str, now: datetime) -> KnownRelease:
    """What the registry keeps of a manifest."""
    return KnownRelease(
        id=manifest.id,
        model=manifest.name,
        version=manifest.version,
        task=manifest.task,
        precisions=manifest.precisions,
        tokenizer_digest=manifest.tokenizer_digest,
        cloud_model=manifest.cloud.name,
        bytes=sum(file.bytes for file in manifest.files),
        calibrations=tuple(calibration.id for calibration in manifest.calibrations),
        folder=folder,
        registered_at=now,
    )


async def register(store: StateStore, release: KnownRelease) -> KnownRelease:
    """Makes a release known; once more is no change. Returns what is kept."""
    key = _release_key(release.model, release.id)
    try:
        await store.compare_and_set(key, ABSENT, release.model_dump_json().encode())
    except VersionConflict:
        # Ids are digests: what is there already is the same release.
        return await known(store, release.model, release.id)
    return release


async def known(store: StateStore, model: str, release_id: str) -> KnownRelease:
    """Raises NotFound for a release nobody registered."""
    entry = await store.get(_release_key(model, release_id))
    if entry is None:
        raise NotFound(f"release {release_id} of {model} is not known; register it first (POST /v1/releases)")
    return _read(KnownRelease, entry)


async def page(store: StateStore, model: str | None = None, after: str = "", limit: int = 100) -> Page:
    """Registered releases, of one model or of all."""
    prefix = RELEASE if model is None else f"{RELEASE}{_part(model)}/"
    listing = await store.list(prefix, limit, after)
    releases = tuple(_read(KnownRelease, entry) for entry in listing.entries)
    return Page(releases=releases, next=listing.entries[-1].key if listing.more and listing.entries else None)


async def active(store: StateStore, model: str) -> ActiveRelease | None:
    """The active release of a model, or None."""
    entry = await store.get(_active_key(model))
    return None if entry is None else _read_active(entry)


async def activate(
    store: StateStore, model: str, release_id: str, *, by: str, now: datetime, expected: int | None = None
) -> ActiveRelease:
    """Makes a known release the active one of its model.

    `expected` is the version to change it over (ABSENT: only if none is active); None means whichever is
    there. A release that is active already stays as it is. Raises NotFound or Conflict.
    """
    await known(store, model, release_id)
    for _ in range(_ATTEMPTS):
        current = await active(store, model)
        version = ABSENT if current is None else current.version
        if expected is not None and version != expected:
            raise VersionConflict(_active_key(model), expected, version)
        if current is not None and current.release == release_id:
            return current
        wanted = ActiveRelease(model=model, release=release_id, since=now, by=by, version=0)
        value = wanted.model_dump_json(exclude={"version"}).encode()
        try:
            written = await store.compare_and_set(_active_key(model), version, value)
        except VersionConflict:
            if expected is not None:
                raise
            continue
        return wanted.model_copy(update={"version": written})
    raise Conflict(f"the active release of {model} keeps changing; look who else changes it, then try again")


R = TypeVar("R", bound=BaseModel)


def _read(kind: type[R], entry: Entry) -> R:
    try:
        return kind.model_validate_json(entry.value)
    except ValidationError as error:
        raise WeirError(
            f"state key {entry.key} cannot be read: {error.error_count()} faults; was it edited?"
        ) from error


def _read_active(entry: Entry) -> ActiveRelease:
    try:
        content = {**json.loads(entry.value), "version": entry.version}
        return ActiveRelease.model_validate(content)
    except (ValueError, TypeError) as error:  # pydantic's ValidationError is a ValueError
        raise WeirError(f"state key {entry.key} cannot be read; was it edited?") from error


def _part(name: str) -> str:
    """A name as one part of a key."""
    return quote(name, safe="@+:=")


def _active_key(model: str) -> str:
    return ACTIVE + _part(model)


def _release_key(model: str, release_id: str) -> str:
    return f"{RELEASE}{_part(model)}/{_part(release_id)}"
