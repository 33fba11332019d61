"""The engine process of a classifier: edge.engine.main's process around a ClassifierService."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from edge.classifier.config import ClassifierConfig
from edge.classifier.model import open_classifier
from edge.classifier.service import ClassifierService, Opener
from edge.engine.main import EngineProcess, Faces, serve_engine
from edge.engine.room import Memory
from runtime.processors import keep_to


async def serve(
    config: ClassifierConfig, opener: Opener = open_classifier, look: Callable[[], Memory] | None = None
) -> int:
    """Serves until a signal or a broken model; returns the exit code. See Weights for `look`."""

    def make(broken: Callable[[str], None]) -> tuple[EngineProcess, Faces]:
        service = ClassifierService(config, broken=broken, opener=opener, look=look)
        return service, Faces(classifies=service)

    return await serve_engine(config, make)


def run(config: ClassifierConfig) -> int:
    """Blocks until the process should end; returns its exit code."""
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(name)s %(levelname)s %(message)s")
    keep_to(config.cpus)  # before there are threads to compute with
    return asyncio.run(serve(config))
