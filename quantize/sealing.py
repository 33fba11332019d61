"""Puts a changed manifest in the place of a release's own, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from release.manifest import MANIFEST_NAME, Manifest, sealed, write


def reseal(folder: Path, manifest: Manifest) -> Manifest:
    """Seals `manifest`, writes it beside the old one and renames it into place; returns it with its new id."""
    manifest = sealed(manifest)
    fresh = folder / f"new-{MANIFEST_NAME}"
    fresh.write_text(write(manifest), encoding="utf-8")
    fresh.replace(folder / MANIFEST_NAME)
    return manifest
