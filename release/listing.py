"""Which releases lie in a folder, told by their manifests alone.

Reads no weights and needs no numpy, so that a parent process can choose a release and stay small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from release.errors import ManifestError, ReleaseError
from release.manifest import MANIFEST_NAME, Manifest, read

_MOST_MANIFEST_BYTES = 16 << 20


def read_manifest(path: Path) -> Manifest:
    """The manifest of a release folder."""
    file = path / MANIFEST_NAME
    try:
        if file.stat().st_size > _MOST_MANIFEST_BYTES:
            raise ManifestError(f"{file} is larger than {_MOST_MANIFEST_BYTES} bytes: not a manifest")
        return read(file.read_bytes())
    except FileNotFoundError as error:
        raise ManifestError(f"{path} is not a release folder: it has no {MANIFEST_NAME}") from error
    except NotADirectoryError as error:
        raise ManifestError(f"{path} is not a folder") from error
    except ManifestError as error:
        raise ManifestError(f"{file}: {error}") from error


@dataclass(frozen=True, slots=True)
class Found:
    """A release folder that could be read."""

    path: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies in a folder of releases; `broken` says of each unreadable one why."""

    found: tuple[Found, ...]
    broken: Mapping[str, str]


def list_releases(root: Path) -> Listing:
    """The releases in `root`: itself, or the folders in it. Reads manifests only; verifies no files."""
    if (root / MANIFEST_NAME).is_file():
        candidates = [root]
    elif root.is_dir():
        candidates = sorted(child for child in root.iterdir() if (child / MANIFEST_NAME).is_file())
    else:
        raise ReleaseError(f"{root} is not a folder: point to a release, or to a folder that holds releases")
    found, broken = [], {}
    for path in candidates:
        if path.name.startswith("."):
            continue  # still being built
        try:
            found.append(Found(path, read_manifest(path)))
        except ReleaseError as error:
            broken[str(path)] = str(error)
    return Listing(tuple(found), broken)
