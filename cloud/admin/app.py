"""The routes. Each is a few lines over cloud.releases; nothing here blocks the event loop."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Query, Response, Security
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field

from cloud import releases
from cloud.admin import faults
from cloud.releases import ActiveRelease, KnownRelease, Page
from cloud.state.base import StateStore
from runtime.version import weir_version
from wire.errors import InvalidRequest, NotFound, Overloaded

_log = logging.getLogger(__name__)
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")
_ETAG = re.compile(r'(?:W/)?"(\d{1,19})"')
_PROBE_KEY = "health/probe"


def _now() -> datetime:
    return datetime.now(UTC)


class Activate(BaseModel):
    """The release to make active. `expected`: the version to change it over; 0 only if none is active."""

    model_config = ConfigDict(extra="forbid")

    release: str = Field(min_length=1, max_length=256, examples=["smollm2-135m-instruct@1.0.0+0123456789ab"])
    expected: int | None = Field(default=None, ge=0)
    by: str = Field(default="admin", min_length=1, max_length=128, description="who changes it, for the record")


class Register(BaseModel):
    """The folder's name under the admin's releases_dir."""

    model_config = ConfigDict(extra="forbid")

    folder: str = Field(min_length=1, max_length=128, examples=["smollm2-135m-instruct-1.0.0"])


class ModelReleases(BaseModel):
    """What is known of one model. `active` is null when none is."""

    model: str
    active: ActiveRelease | None
    releases: tuple[KnownRelease, ...]
    next: str | None


class StoreHealth(BaseModel):
    kind: str
    answered_in_ms: float


class Health(BaseModel):
    status: str
    version: str
    store: StoreHealth


@dataclass(slots=True)
class Admin:
    """What the routes need. `clock` gives the time that is written down."""

    store: StateStore
    releases_dir: Path
    clock: Callable[[], datetime] = _now
    verifying: asyncio.Lock = field(default_factory=asyncio.Lock)

    def folder(self, name: str) -> Path:
        """The folder of that name, and nothing outside releases_dir. Touches the disk."""
        root = self.releases_dir.resolve()
        if _FOLDER.fullmatch(name):
            path = (root / name).resolve()
            if path.parent == root:
                return path
        raise InvalidRequest(f"folder {name[:80]!r} must be the name of a folder in the releases folder, not a path")

    async def register(self, name: str) -> KnownRelease:
        """Hashing gigabytes takes a core: one release at a time, in a thread."""
        if self.verifying.locked():
            raise Overloaded("another release is being verified; try again when it is done")
        async with self.verifying:
            return await asyncio.to_thread(lambda: releases.read_folder(self.folder(name), self.clock()))


_MEANINGS: dict[int | str, str] = {
    400: "the request can never succeed as it is",
    401: "the token is missing or wrong",
    404: "unknown model, release or folder",
    409: "somebody else changed it first",
    503: "the state store cannot be reached",
    "default": "any other fault, in the same shape",
}
_FAULTS: dict[int | str, dict[str, Any]] = {
    status: {"model": faults.FaultBody, "description": text} for status, text in _MEANINGS.items()
}


def build(admin: Admin) -> FastAPI:
    """The API, still without the guard."""
    app = FastAPI(title="Weir admin", version=weir_version(), docs_url=None, redoc_url=None)
    faults.install(app)

    @app.get("/healthz", tags=["health"], summary="Is the process alive?")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    # The guard checks the token; this tells the API's description about it.
    app.include_router(_releases(admin), dependencies=[Security(HTTPBearer(auto_error=False))])
    app.include_router(_models(admin), dependencies=[Security(HTTPBearer(auto_error=False))])
    return app


def _releases(admin: Admin) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["releases"], responses=_FAULTS)

    @router.get("/releases", summary="Every registered release")
    async def list_releases(after: str = "", limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Page:
        return await releases.page(admin.store, None, after, limit)

    @router.get("/releases/{model}", summary="The releases of one model, and which is active")
    async def model_releases(
        model: str, after: str = "", limit: Annotated[int, Query(ge=1, le=1000)] = 100
    ) -> ModelReleases:
        found = await releases.page(admin.store, model, after, limit)
        current = await releases.active(admin.store, model)
        if not found.releases and current is None and not after:
            raise NotFound(f"no release of {model} is known; register one first (POST /v1/releases)")
        return ModelReleases(model=model, active=current, releases=found.releases, next=found.next)

    @router.post("/releases", status_code=201, summary="Verify a release folder and make it known")
    async def register_release(body: Register) -> KnownRelease:
        release = await releases.register(admin.store, await admin.register(body.folder))
        _log.info("registered release %s from folder %s", release.id, release.folder)
        return release

    @router.get("/health", tags=["health"], summary="Can the state store be reached?")
    async def health() -> Health:
        began = time.perf_counter()
        await admin.store.get(_PROBE_KEY)
        took_ms = round((time.perf_counter() - began) * 1000, 2)
        kind = getattr(admin.store, "kind", type(admin.store).__name__)
        return Health(status="ok", version=weir_version(), store=StoreHealth(kind=kind, answered_in_ms=took_ms))

    return router


def _models(admin: Admin) -> APIRouter:
    router = APIRouter(prefix="/v1/models", tags=["models"], responses=_FAULTS)

    @router.get("/{model}/active", summary="The active release of a model")
    async def get_active(model: str, response: Response) -> ActiveRelease:
        current = await releases.active(admin.store, model)
        if current is None:
            raise NotFound(f"no release of {model} is active; activate one (PUT /v1/models/{model}/active)")
        response.headers["etag"] = f'"{current.version}"'
        return current

    @router.put("/{model}/active", summary="Make a known release the active one; edges follow")
    async def put_active(
        model: str, body: Activate, response: Response, if_match: Annotated[str | None, Header()] = None
    ) -> ActiveRelease:
        expected = _expected(body.expected, if_match)
        written = await releases.activate(
            admin.store, model, body.release, by=body.by, now=admin.clock(), expected=expected
        )
        _log.info(
            "%s is the active release of %s, set by %s, version %d", written.release, model, written.by, written.version
        )
        response.headers["etag"] = f'"{written.version}"'
        return written

    return router


def _expected(field_value: int | None, if_match: str | None) -> int | None:
    """The version a change is conditional on, from the body or from If-Match."""
    if if_match is None:
        return field_value
    match = _ETAG.fullmatch(if_match.strip())
    if match is None:
        raise InvalidRequest(
            f'If-Match is {if_match[:80]!r}; send the etag of the active release, such as "1764432000000000"'
        )
    version = int(match[1])
    if field_value is not None and field_value != version:
        raise InvalidRequest(f"expected is {field_value} and If-Match is {version}: give one of them")
    return version
