"""A node's own store, served to its siblings on the site.

They take it as any other source: metadata that this node verified, and objects that it verified and
completed. Partial files, releases and slots are not reachable.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI

from release.objects import METADATA, OBJECTS
from runtime.repository_files import repository_route

TRUST = "trust"


def add_repository(app: FastAPI, store: Path) -> None:
    """Adds /repository/ over a store folder (release.store), which need not exist yet."""
    app.router.routes.append(repository_route(store / TRUST / METADATA, store / OBJECTS))
