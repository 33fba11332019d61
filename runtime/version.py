"""Which Weir this is, as every tier reports it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def weir_version() -> str:
    """The installed distribution's version; "source" when run from a checkout that is not installed."""
    try:
        return version("weir-inference")
    except PackageNotFoundError:
        return "source"
