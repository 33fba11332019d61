"""Which of a node's models can answer: GET /readyz/{model}, 200 while that one can, 503 while it cannot."""

from __future__ import annotations

from typing import Protocol

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response


class Readiness(Protocol):
    """Knows which models can answer now, by whichever tier: edge.node.EdgeNode."""

    def model_ready(self, name: str) -> bool:
        """Raises NotFound."""
        ...


def add_readiness(app: FastAPI, node: Readiness) -> None:
    """Adds the route."""

    async def ready(name: str) -> Response:
        there = node.model_ready(name)
        return JSONResponse({"model": name, "ready": there}, 200 if there else 503)

    app.add_api_route("/readyz/{name:path}", ready, methods=["GET"], response_model=None)
