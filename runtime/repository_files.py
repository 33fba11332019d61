"""A repository's files over HTTP, for whoever has an app and two folders: metadata and objects.

GET and HEAD /repository/metadata/…    never cached without asking for the timestamp, else immutable
GET and HEAD /repository/objects/…     with Range; immutable: the name is the content's hash

Only names that a repository has are looked up, so that no path leads out of the folders; everything
else is 404. Read only. Nothing here is secret, and nothing needs to be believed: readers verify.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import anyio
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from release.objects import METADATA, OBJECTS, is_metadata, object_digest

PREFIX = "/repository"
_FRESH = "no-cache"
_NEVER = {"Cache-Control": "no-store"}
_FOR_EVER = "public, max-age=31536000, immutable"


def repository_route(metadata: Path, objects: Path) -> Route:
    """A route over the folder of metadata files and the folder of objects."""

    async def serve(request: Request) -> Response:
        path = request.path_params["path"]
        found = _locate(path, metadata, objects)
        status = None if found is None else await anyio.to_thread.run_sync(_regular, found)
        if found is None or status is None:
            return JSONResponse(
                {"error": {"message": f"no {path[:200]} in this repository", "code": "not_found"}}, 404, _NEVER
            )
        caching = _FRESH if found.name == "timestamp.json" else _FOR_EVER
        kind = "application/json" if path.startswith(f"{METADATA}/") else "application/octet-stream"
        return FileResponse(found, headers={"Cache-Control": caching}, media_type=kind, stat_result=status)

    return Route(f"{PREFIX}/{{path:path}}", serve, methods=["GET", "HEAD"])


def _locate(path: str, metadata: Path, objects: Path) -> Path | None:
    if is_metadata(path):
        return metadata / path.removeprefix(f"{METADATA}/")
    if object_digest(path) is not None:
        return objects / path.removeprefix(f"{OBJECTS}/")
    return None


def _regular(path: Path) -> os.stat_result | None:
    """What the system says of a regular file; None where there is none. A link is not followed."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None
