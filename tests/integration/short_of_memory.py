"""`python -m tests.integration.short_of_memory CONFIG_JSON`: an engine that sees room for one session only.

A release small enough for quick tests takes too little memory for a true budget to tell one session from two.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from edge.engine.config import EngineConfig
from edge.engine.main import serve
from edge.engine.model import open_model
from edge.engine.room import Memory
from runtime.child import die_with_parent

MODULE = "tests.integration.short_of_memory"


def look() -> Memory:
    return Memory(resident=100 << 20, freed=100 << 20, free=1 << 40, budget=101 << 20)


if __name__ == "__main__":
    die_with_parent()
    logging.basicConfig(level="INFO")
    sys.exit(asyncio.run(serve(EngineConfig.model_validate_json(sys.argv[1]), open_model, look)))
