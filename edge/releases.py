"""Which of the releases in a folder a node starts with, and where a named one lies."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from release.errors import ReleaseError
from release.listing import Found, list_releases

GENERATE, CLASSIFY = "generate", "classify"  # a manifest's task: the model writes text, or labels it
SERVED_TASKS = (GENERATE, CLASSIFY)
_NUMBERS = re.compile(r"\d+")


def start_with(root: Path, model: str, *, named: bool = False) -> Found:
    """The newest release of `model` in `root`; with an empty name there must be one model only.

    A lone release is taken whatever it is called, unless it must be `named` so. Raises ReleaseError saying
    what lies there.
    """
    listing = list_releases(root)
    if not listing.found:
        broken = "; ".join(listing.broken.values())
        raise ReleaseError(f"no release in {root}: {broken or 'build one with `weir quantize`'}")
    servable = [found for found in listing.found if found.manifest.task in SERVED_TASKS]
    if not servable:
        tasks = ", ".join(sorted({found.manifest.task for found in listing.found}))
        raise ReleaseError(f"{root} holds releases made to {tasks}, which this version does not serve: update Weir")
    names = sorted({found.manifest.name for found in servable})
    matching = [found for found in servable if not model or found.manifest.name == model]
    if not matching and len(servable) == 1 and not named:
        return servable[0]  # `model` is then a served name of the operator's choice
    if not matching:
        raise ReleaseError(f"no release of {model!r} in {root}; there are {', '.join(names)}")
    if not model and len(names) > 1:
        raise ReleaseError(f"{root} holds releases of {', '.join(names)}; say which with `model`")
    return max(matching, key=_newness)


def find(root: Path, release: str) -> Found | None:
    """The release of that id in `root`; None when it is not there. Raises ReleaseError for no folder."""
    return next((found for found in list_releases(root).found if found.manifest.id == release), None)


def precisions_here(found: Found) -> tuple[int, ...]:
    """The precisions whose graph and planes lie in the folder. A node may hold 4-bit alone."""
    manifest = found.manifest
    return tuple(
        bits
        for bits in manifest.precisions
        if all((found.path / name).is_file() for name in manifest.weight_files(bits))
    )


def newest(found: Iterable[Found]) -> Found | None:
    """The one of the highest semantic version."""
    return max(found, key=_newness, default=None)


def model_among(names: Collection[str], wanted: str, *, named: bool = False) -> str:
    """Whose releases a node that is to serve `wanted` takes: a lone model may be served under any name.

    Not where it must be `named` so. Empty where that cannot be told.
    """
    if wanted in names or named:
        return wanted if wanted in names else ""
    return next(iter(names)) if len(names) == 1 else ""


def _newness(found: Found) -> tuple[tuple[tuple[int, ...], bool], str]:
    return _age(found.manifest.version), found.manifest.id


def _age(version: str) -> tuple[tuple[int, ...], bool]:
    """For comparing semantic versions: numbers first, and a pre-release before its release."""
    core, dash, _ = version.partition("-")
    return tuple(int(number) for number in _NUMBERS.findall(core)), not dash
