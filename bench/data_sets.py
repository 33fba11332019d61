"""Where the public data sets lie that some benchmarks measure with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def data_folder(given: Path | None, environment: Mapping[str, str] | None = None) -> Path | None:
    """The data sets' folder: what was given, else WEIR_DATA; None where neither is set."""
    if given is not None:
        return given
    named = (os.environ if environment is None else environment).get("WEIR_DATA", "")
    return Path(named) if named else None
