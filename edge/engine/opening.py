"""What opening a release for serving takes whatever its model's task, and how its refusals are told.

Must not know: what runs a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from release.errors import ReleaseError
from release.folder import Release, open_release, precisions_here
from release.manifest import PLANE_LO, graph_name
from runtime.ort.session import GraphError
from runtime.tokenizer import TokenizerError
from wire.description import ModelInfo
from wire.errors import NotFound, Overloaded, PreconditionFailed


@contextmanager
def refusals() -> Iterator[None]:
    """What opening or loading a release can raise, as what a caller of the engine is told."""
    try:
        yield
    except (ReleaseError, GraphError, TokenizerError, OSError) as error:
        raise PreconditionFailed(str(error)) from error
    except MemoryError as error:
        raise Overloaded(f"there is too little memory for these weights: {error}") from error


def opened(directory: Path, precision: int, task: str = "") -> Release:
    """The release in a folder, verified as far as `precision` needs it. Takes a while: not in the event loop.

    Where `task` is said it must be made for that. Raises NotFound, PreconditionFailed.
    """
    if not directory.is_dir():
        raise NotFound(f"there is no release folder {directory}")
    other = frozenset({graph_name(8), PLANE_LO}) if precision == 4 else frozenset({graph_name(4)})
    with refusals():
        release = open_release(directory, skip=other)
    if task and release.manifest.task != task:
        raise PreconditionFailed(f"release {release.id} is made to {release.manifest.task}, not to {task}")
    if precision not in release.precisions:
        have = ", ".join(map(str, release.precisions)) or "none"
        raise PreconditionFailed(f"release {release.id} has no {precision}-bit weights here (it has: {have})")
    return release


def described(release: Release, precision: int, weight_digest: str, name: str) -> ModelInfo:
    """What is told of a loaded model by its release alone. `name` is the served one; empty: the release's own."""
    manifest = release.manifest
    return ModelInfo(
        name=name or manifest.name,
        release=release.id,
        precision=precision,
        weight_format=f"nested-{precision}",
        weight_digest=weight_digest,
        precisions_available=release.precisions,
        calibration_id=next((c.id for c in manifest.calibrations if c.precision == precision), ""),
    )


def here(release: Release) -> Callable[[], tuple[int, ...]]:
    """Tells the precisions that lie in the folder now."""
    # Not the release itself: it holds maps of its files.
    return partial(precisions_here, release.path, release.manifest)
