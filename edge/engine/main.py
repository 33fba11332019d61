"""The engine process of a decoder: edge.engine.serving's process around an EngineService."""

from __future__ import annotations

from collections.abc import Callable

from edge.engine.config import EngineConfig
from edge.engine.model import Opener, open_model
from edge.engine.room import Memory
from edge.engine.service import EngineService
from edge.engine.serving import EngineProcess, Faces, serve_engine


async def serve(config: EngineConfig, opener: Opener = open_model, look: Callable[[], Memory] | None = None) -> int:
    """Serves until a signal or a broken model; returns the exit code. See Weights for `look`."""

    def make(broken: Callable[[str], None]) -> tuple[EngineProcess, Faces]:
        service = EngineService(config, broken=broken, opener=opener, look=look)
        return service, Faces(scores=service)

    return await serve_engine(config, make)
