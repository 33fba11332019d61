"""Which of the releases in a folder a node starts with, and where a named one lies."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from release.errors import ReleaseError
from release.listing import Found, list_releases

GENERATE = "generate"  # a manifest's task, where the model writes text
_NUMBERS = re.compile(r"\d+")


def start_with(root: Path, model: str) -> Found:
    """The newest release of `model` in `root`; with an empty name there must be one model only.

    Raises ReleaseError saying what lies there.
    """
    listing = list_releases(root)
    if not listing.found:
        broken = "; ".join(listing.broken.values())
        raise ReleaseError(f"no release in {root}: {broken or 'build one with `weir quantize`'}")
    writing = [found for found in listing.found if found.manifest.task == GENERATE]
    if not writing:
        raise ReleaseError(
            f"{root} holds classifiers only, which a node does not serve yet: point to one that writes text"
        )
    names = sorted({found.manifest.name for found in writing})
    matching = [found for found in writing if not model or found.manifest.name == model]
    if not matching and len(writing) == 1:
        return writing[0]  # `model` is then a served name of the operator's choice
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


def model_among(names: Collection[str], wanted: str) -> str:
    """Whose releases a node that is to serve `wanted` takes: a lone model may be served under any name.

    Empty where that cannot be told.
    """
    if wanted in names:
        return wanted
    return next(iter(names)) if len(names) == 1 else ""


def _newness(found: Found) -> tuple[tuple[tuple[int, ...], bool], str]:
    return _age(found.manifest.version), found.manifest.id


def _age(version: str) -> tuple[tuple[int, ...], bool]:
    """For comparing semantic versions: numbers first, and a pre-release before its release."""
    core, dash, _ = version.partition("-")
    return tuple(int(number) for number in _NUMBERS.findall(core)), not dash
