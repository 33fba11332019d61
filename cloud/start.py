"""How a cloud process started with `python -m` finds its settings and reports that they are wrong."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from runtime.child import begin
from runtime.config import ConfigError, S, load

EXIT_BAD_USE = 2


def start(kind: type[S], run: Callable[[S], int]) -> int:
    """Loads `kind` from --config and the environment and runs with it; returns the exit status."""
    begin()
    parser = argparse.ArgumentParser(description=f"Serves with the [{kind.section}] settings.")
    parser.add_argument("--config", type=Path, help="a TOML file; WEIR_<SECTION>__<KEY> overrides it")
    arguments = parser.parse_args()
    try:
        config = load(kind, arguments.config).value
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_BAD_USE
    return run(config)
