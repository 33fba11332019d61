"""`python -m edge [--config FILE] [KEY=VALUE ...]`: an edge node, as `weir edge serve` starts it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from edge.config import EdgeConfig
from edge.launcher import run
from runtime.config import ConfigError, load


def main() -> int:
    """Returns the exit code: 2 for bad use."""
    parser = argparse.ArgumentParser(prog="python -m edge", description=__doc__)
    parser.add_argument("--config", type=Path, help="a TOML file with an [edge] table")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings that override it")
    given = parser.parse_args()
    flags = dict(entry.partition("=")[::2] for entry in given.settings)
    try:
        config = load(EdgeConfig, given.config, flags).value
    except ConfigError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    return run(config)


if __name__ == "__main__":
    sys.exit(main())
