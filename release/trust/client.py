"""A node's side of a signed repository: what is offered, verified, and nothing older than seen.

    client = TrustClient(folder, pinned_root)
    catalogue = client.refresh(fetch, datetime.now(UTC))    # raises TrustError, with what to do
    catalogue = client.known()                              # verified last; no source is asked

Blocking, and pure of network and clock: the source and the time are arguments. The rules are in
release.trust.workflow, the disk is release.trust.kept. Whatever a refresh raises, what `known` returns
stays what it was. OSError means that the folder could not be written.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from tuf.api.metadata import MetaFile, Root, Snapshot, Targets, Timestamp

from release.disk import Disk
from release.trust.catalogue import Catalogue, Offer, read_offers
from release.trust.clock import Clock
from release.trust.errors import Absent, TooLong, TrustError
from release.trust.kept import Files, Kept
from release.trust.source import Fetch, FolderSource
from release.trust.workflow import (
    MOST_BYTES,
    MOST_ROTATIONS,
    Seen,
    first_root,
    fits,
    issued_at,
    most_bytes,
    next_root,
    next_snapshot,
    next_targets,
    next_timestamp,
    parse,
    verify,
)

__all__ = ["Catalogue", "Fetch", "FolderSource", "Offer", "TrustClient"]


@dataclass(frozen=True, slots=True)
class _State:
    """One verified set, with its bytes and the root it was verified under."""

    root: Root
    timestamp: Timestamp
    snapshot: Snapshot
    targets: Targets
    files: Files

    @property
    def seen(self) -> Seen:
        return Seen().under(self.root).after(self.timestamp).after(self.snapshot).after(self.targets)


class TrustClient:
    """`folder` keeps what was verified; `root` is the first root that is trusted. Raises BadRoot and OSError.

    Another pinned root begins anew: what its keys did not sign counts no longer.
    """

    def __init__(self, folder: Path, root: bytes, disk: Disk | None = None) -> None:
        self._kept = Kept(folder, disk or Disk())
        self._roots = [first_root(root)]
        if self._kept.root(self._roots[0].version) != root:
            self._kept.keep_root(self._roots[0].version, root)
        self._take_kept_roots()

    @property
    def metadata(self) -> Path:
        """The folder of verified metadata, in a repository's own names: siblings may be given it."""
        return self._kept.metadata

    @property
    def seen(self) -> Seen:
        """The highest versions verified so far, under the newest root."""
        return self._seen(self._held()).under(self._roots[-1])

    def known(self, now: datetime) -> Catalogue | None:
        """What was verified last, however long ago, without asking a source; None before the first time."""
        held = self._held()
        return None if held is None else _catalogue(held, Clock(now, self._seen(held).floor))

    def refresh(self, fetch: Fetch, now: datetime) -> Catalogue:
        """Asks a source for what is new. Raises TrustError; what was known before stays known."""
        held = self._held()
        root = self._newest_root(fetch)
        seen = self._seen(held).under(root)
        clock = Clock(now, seen.floor)
        clock.demand(f"root {root.version}", root.expires)

        timestamp_bytes = _get(fetch, "metadata/timestamp.json", MOST_BYTES["timestamp"])
        before = held.timestamp if held is not None and held.timestamp.version == seen.timestamp else None
        timestamp = next_timestamp(root, timestamp_bytes, seen, before, clock)
        seen = self._note(seen.after(timestamp))
        clock = clock.seen(issued_at(timestamp))

        snapshot_bytes = self._get(fetch, "snapshot", timestamp.snapshot_meta)
        snapshot = next_snapshot(root, snapshot_bytes, timestamp, seen, clock)
        seen = self._note(seen.after(snapshot))

        targets_bytes = self._get(fetch, "targets", snapshot.meta["targets.json"])
        targets = next_targets(root, targets_bytes, snapshot, clock)
        self._note(seen.after(targets))

        files = Files(timestamp_bytes, snapshot_bytes, targets_bytes, snapshot.version, targets.version)
        catalogue = _catalogue(_State(root, timestamp, snapshot, targets, files), clock)
        self._kept.keep(files, held.files if held else None)
        return catalogue

    def _take_kept_roots(self) -> None:
        """Follows the roots on disk; what does not follow is of another repository, or damaged, and goes."""
        for _ in range(MOST_ROTATIONS):
            content = self._kept.root(self._roots[-1].version + 1)
            if content is None:
                return
            try:
                self._roots.append(next_root(self._roots[-1], content))
            except TrustError:
                self._kept.drop_roots_after(self._roots[-1].version)
                return

    def _newest_root(self, fetch: Fetch) -> Root:
        for _ in range(MOST_ROTATIONS):
            version = self._roots[-1].version + 1
            try:
                content = _get(fetch, f"metadata/{version}.root.json", MOST_BYTES["root"])
            except Absent:
                break
            root = next_root(self._roots[-1], content)
            self._kept.keep_root(version, content)
            self._roots.append(root)
        return self._roots[-1]

    def _held(self) -> _State | None:
        """The set on disk, if a root that was trusted then or is now still vouches for it."""
        for root in reversed(self._roots):
            try:
                return self._held_under(root)
            except TrustError:
                continue
        return None

    def _held_under(self, root: Root) -> _State | None:
        content = self._kept.timestamp()
        if content is None:
            return None
        timestamp = verify(root, parse(Timestamp, content, "the timestamp"), "the timestamp")
        meta = timestamp.snapshot_meta
        snapshot_bytes = self._kept.snapshot(meta.version)
        if snapshot_bytes is None or not fits(meta, snapshot_bytes):
            return None
        snapshot = verify(root, parse(Snapshot, snapshot_bytes, "the snapshot"), "the snapshot")
        meta = snapshot.meta["targets.json"]
        targets_bytes = self._kept.targets(meta.version)
        if targets_bytes is None or not fits(meta, targets_bytes):
            return None
        targets = verify(root, parse(Targets, targets_bytes, "the targets"), "the targets")
        files = Files(content, snapshot_bytes, targets_bytes, snapshot.version, targets.version)
        return _State(root, timestamp, snapshot, targets, files)

    def _seen(self, held: _State | None) -> Seen:
        """What was noted; where that is lost, what the set on disk shows."""
        noted = self._kept.seen()
        return held.seen if held is not None and not noted.online else noted

    def _note(self, seen: Seen) -> Seen:
        if seen != self._kept.seen():
            self._kept.note(seen)
        return seen

    def _get(self, fetch: Fetch, role: Literal["snapshot", "targets"], meta: MetaFile) -> bytes:
        """The bytes that were signed for, from disk where they already lie there."""
        kept = self._kept.snapshot(meta.version) if role == "snapshot" else self._kept.targets(meta.version)
        if kept is not None and fits(meta, kept):
            return kept
        return _get(fetch, f"metadata/{meta.version}.{role}.json", most_bytes(role, meta))


def _get(fetch: Fetch, path: str, most: int) -> bytes:
    """A source is not believed to stop by itself."""
    content = fetch(path, most)
    if len(content) > most:
        raise TooLong(f"{path} is longer than the {most} bytes it may have: the source sends too much; ask another")
    return content


def _catalogue(state: _State, clock: Clock) -> Catalogue:
    entries = ((path, file.length, file.hashes, file.custom) for path, file in state.targets.targets.items())
    offers, withdrawn = read_offers(entries)
    signed = (state.root, state.timestamp, state.snapshot, state.targets)
    return Catalogue(
        issued=issued_at(state.timestamp) or state.timestamp.expires,
        expires=min(part.expires for part in signed),
        offers=tuple(offers),
        withdrawn=withdrawn,
        versions={part.type: part.version for part in signed},
        clock=clock.note,
    )
