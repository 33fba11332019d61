"""How an engine process begins, whatever its model's task: `python -m MODULE CONFIG_JSON`, started by the launcher.

Processors and thread pools are settled before anything is imported that computes. Must not know: models, services.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pydantic import ValidationError

from edge.engine.config import ProcessConfig
from runtime.child import begin
from runtime.processors import keep_to

# Their own thread pools would compete with the session's.
_NO_POOLS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

C = TypeVar("C", bound=ProcessConfig)


def run(arguments: list[str], module: str, kind: type[C], serve: Callable[[C], Coroutine[Any, Any, int]]) -> int:
    """Blocks until the process should end; returns its exit code.

    `serve` imports what it serves with: numpy and tokenizers read the environment when they are imported.
    """
    begin()
    if len(arguments) != 1:
        raise SystemExit(f"usage: python -m {module} CONFIG_JSON")
    try:
        config = kind.model_validate_json(arguments[0])
    except ValidationError as error:
        raise SystemExit(f"the engine's configuration is wrong: {error}") from error
    os.environ.update(_NO_POOLS)
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(name)s %(levelname)s %(message)s")
    keep_to(config.cpus)  # before there are threads to compute with
    return asyncio.run(serve(config))
