"""A copy of a release in small chunks, so that a download of a few hundred kilobytes has many."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from release.folder import describe_file
from release.listing import read_manifest
from release.manifest import MANIFEST_NAME, Manifest, write


def in_small_chunks(source: Path, folder: Path, version: str = "1.0.0", chunk_bytes: int = 16 << 10) -> Manifest:
    """`folder` must be new. Another version is another release of the same model, with the same files."""
    shutil.copytree(source, folder)
    manifest = read_manifest(folder)
    files = tuple(describe_file(folder / entry.name, chunk_bytes) for entry in manifest.files)
    (folder / MANIFEST_NAME).write_text(write(dataclasses.replace(manifest, files=files, version=version)))
    return read_manifest(folder)
