"""`python -m edge.engine CONFIG_JSON`: started by the edge launcher, which restarts it."""

from __future__ import annotations

import sys

from edge.engine.config import EngineConfig
from edge.engine.process import run


async def _serve(config: EngineConfig) -> int:
    from edge.engine.main import serve  # not before the environment is settled: see edge.engine.process

    return await serve(config)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], "edge.engine", EngineConfig, _serve))
