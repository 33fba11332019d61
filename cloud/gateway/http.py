"""The gateway's HTTP port: whether it lives and whether it can answer.

GET /healthz    200 while the process runs
GET /readyz     200 when a request could be answered now, else 503; the body says why
GET /repository/…  with Range: a signed repository for nodes to update from, where `repository_dir` names one
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from release.objects import METADATA, OBJECTS
from runtime.repository_files import repository_route
from runtime.version import weir_version
from wire.deadline import Deadline
from wire.service import Call, InferenceService

_TIMEOUT_S = 5.0


def build_app(service: InferenceService, node: str, repository: Path | None = None) -> FastAPI:
    """The HTTP face of a gateway."""
    app = FastAPI(title="Weir gateway", version=weir_version(), docs_url=None, redoc_url=None)

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok", "node": node})

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        description = await service.describe(Call(Deadline.after(_TIMEOUT_S)))
        body = {
            "ready": description.ready,
            "reason": description.not_ready_reason,
            "models": [info.name for info in description.models],
            "active_releases": dict(description.active_releases),
        }
        return JSONResponse(body, 200 if description.ready else 503)

    if repository is not None:
        app.router.routes.append(repository_route(repository / METADATA, repository / OBJECTS))
    return app
