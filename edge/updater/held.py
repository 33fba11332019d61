"""Which releases on disk can serve; manifests are read anew only when they changed."""

from __future__ import annotations

from pathlib import Path

from release.errors import ReleaseError
from release.listing import Found, read_manifest
from release.manifest import MANIFEST_NAME
from release.store import Store, first_part

_Stamp = tuple[int, int, int]


class Held:
    """Of one store. Blocking."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[Path, tuple[_Stamp, Found]] = {}

    def look(self) -> dict[str, Found]:
        """By id: those whose first part is whole."""
        seen: dict[Path, tuple[_Stamp, Found]] = {}
        folders = sorted(self._store.releases.iterdir()) if self._store.releases.is_dir() else []
        for folder in folders:
            if folder.name.startswith("."):
                continue
            try:
                status = (folder / MANIFEST_NAME).stat()
                stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
                before = self._seen.get(folder)
                fresh = before is not None and before[0] == stamp
                seen[folder] = before if before is not None and fresh else (stamp, Found(folder, read_manifest(folder)))
            except (OSError, ReleaseError):
                continue
        self._seen = seen
        return {
            found.manifest.id: found
            for _, found in seen.values()
            if self._store.complete(found.manifest.id, first_part(found.manifest))
        }
