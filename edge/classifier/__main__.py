"""`python -m edge.classifier CONFIG_JSON`: started by the edge launcher, which restarts it."""

from __future__ import annotations

import os
import sys

from pydantic import ValidationError

from edge.classifier.config import ClassifierConfig
from runtime.child import die_with_parent

# Their own thread pools would compete with the session's.
_NO_POOLS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def main(arguments: list[str]) -> int:
    """Runs one engine process; returns its exit code."""
    die_with_parent()
    if len(arguments) != 1:
        raise SystemExit("usage: python -m edge.classifier CONFIG_JSON")
    try:
        config = ClassifierConfig.model_validate_json(arguments[0])
    except ValidationError as error:
        raise SystemExit(f"the engine's configuration is wrong: {error}") from error
    os.environ.update(_NO_POOLS)
    from edge.classifier.main import run  # numpy and tokenizers read the environment when they are imported

    return run(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
