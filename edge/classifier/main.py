"""The engine process of a classifier: edge.engine.serving's process around a ClassifierService."""

from __future__ import annotations

from collections.abc import Callable

from edge.classifier.config import ClassifierConfig
from edge.classifier.model import Opener, open_classifier
from edge.classifier.service import ClassifierService
from edge.engine.room import Memory
from edge.engine.serving import EngineProcess, Faces, serve_engine


async def serve(
    config: ClassifierConfig, opener: Opener = open_classifier, look: Callable[[], Memory] | None = None
) -> int:
    """Serves until a signal or a broken model; returns the exit code. See Weights for `look`."""

    def make(broken: Callable[[str], None]) -> tuple[EngineProcess, Faces]:
        service = ClassifierService(config, broken=broken, opener=opener, look=look)
        return service, Faces(classifies=service)

    return await serve_engine(config, make)
