"""The state of a repository on disk, verified but for its dates: a publisher may come back after they have passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuf.api.metadata import Root, Snapshot, Targets, Timestamp

from release.objects import METADATA
from release.repository.errors import NoRepository
from release.repository.record import Versions
from release.trust.catalogue import Offer, read_offers
from release.trust.errors import TrustError
from release.trust.kept import Files
from release.trust.workflow import MOST_BYTES, first_root, fits, next_root, parse, verify


@dataclass(frozen=True, slots=True)
class State:
    """What is published now, with the bytes it was read from."""

    root: Root
    timestamp: Timestamp
    snapshot: Snapshot
    targets: Targets
    files: Files

    @property
    def versions(self) -> Versions:
        return Versions(self.root.version, self.timestamp.version, self.snapshot.version, self.targets.version)

    def offers(self) -> tuple[list[Offer], frozenset[str]]:
        """What is offered, and the ids of what was withdrawn. Raises Malformed."""
        return read_offers((path, file.length, file.hashes, file.custom) for path, file in self.targets.targets.items())


def follow(contents: Mapping[int, bytes]) -> list[Root]:
    """The roots in `contents` from the lowest on, each verified by the one before. Raises NoRepository."""
    if not contents:
        return []
    try:
        roots = [first_root(contents[min(contents)])]
        while (content := contents.get(roots[-1].version + 1)) is not None:
            roots.append(next_root(roots[-1], content))
    except TrustError as error:
        raise NoRepository(f"the roots do not follow one another: {error}") from error
    return roots


def roots_in(repository: Path) -> dict[int, bytes]:
    """The root files of a repository, by version; unverified."""
    found: dict[int, bytes] = {}
    for path in (repository / METADATA).glob("*.root.json"):
        number = path.name.removesuffix(".root.json")
        if number.isdecimal() and path.stat().st_size <= MOST_BYTES["root"]:
            found[int(number)] = path.read_bytes()
    return dict(sorted(found.items()))


def read_state(repository: Path, roots: Sequence[Root]) -> State | None:
    """What is published, under the newest root that vouches for it; None where nothing is. Raises NoRepository."""
    reason = ""
    for root in reversed(roots):
        try:
            return _under(repository / METADATA, root)
        except TrustError as error:
            reason = reason or str(error)
    raise NoRepository(f"{repository} holds metadata that these keys have not signed: {reason}")


def _under(metadata: Path, root: Root) -> State | None:
    content = _read(metadata / "timestamp.json", "timestamp")
    if content is None:
        return None
    timestamp = verify(root, parse(Timestamp, content, "the timestamp"), "the timestamp")
    meta = timestamp.snapshot_meta
    snapshot_bytes = _read(metadata / f"{meta.version}.snapshot.json", "snapshot")
    if snapshot_bytes is None or not fits(meta, snapshot_bytes):
        raise NoRepository(
            f"{metadata} lacks snapshot {meta.version}, which its timestamp names: run `weir keys recover`"
        )
    snapshot = verify(root, parse(Snapshot, snapshot_bytes, "the snapshot"), "the snapshot")
    meta = snapshot.meta["targets.json"]
    targets_bytes = _read(metadata / f"{meta.version}.targets.json", "targets")
    if targets_bytes is None or not fits(meta, targets_bytes):
        raise NoRepository(
            f"{metadata} lacks targets {meta.version}, which its snapshot names: run `weir keys recover`"
        )
    targets = verify(root, parse(Targets, targets_bytes, "the targets"), "the targets")
    return State(
        root,
        timestamp,
        snapshot,
        targets,
        Files(content, snapshot_bytes, targets_bytes, snapshot.version, targets.version),
    )


def _read(path: Path, role: str) -> bytes | None:
    try:
        with path.open("rb") as handle:
            content = handle.read(MOST_BYTES[role] + 1)
    except FileNotFoundError:
        return None
    return content if len(content) <= MOST_BYTES[role] else None
