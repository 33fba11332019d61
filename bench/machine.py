"""What a figure depends on besides the code: versions of packages, and the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import psutil

from runtime.cpu import cpu_class
from runtime.version import weir_version


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Of Weir, Python and the packages that are installed."""
    found = {"weir": weir_version(), "python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The box, and how busy it is: figures of a machine that others use are to be read with care."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_class": cpu_class(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }
