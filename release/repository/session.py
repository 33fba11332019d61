"""One change of a repository, under its lock: what stands now, what is signed next, laid down in a safe order.

Order on disk: targets, snapshot, root, timestamp. Readers begin with the timestamp, and until it is
renamed into place they see the state before; files of other versions do not disturb them. A change of
keys shows for the moment between root and timestamp as a wrong signature, which nodes meet by asking
again. Nothing is signed for a repository that went back in time, nor with a clock that cannot be right:
nodes take the time from what is signed here.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from securesystemslib.signer import Signer
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, Targets, Timestamp

from release.disk import Disk
from release.objects import METADATA
from release.repository.errors import Busy, ClockDoubtful, NoRepository, Restored
from release.repository.keys import Keys
from release.repository.record import Days, Record, Versions
from release.repository.shelf import room
from release.repository.state import State, follow, read_state, roots_in
from release.trust.errors import TrustError
from release.trust.workflow import ISSUED, issued_at, parse, verify

T = TypeVar("T", Root, Timestamp, Snapshot, Targets)

LOCK = ".lock"
_LOCK_POLL_S = 0.1
_SKEW = timedelta(minutes=5)
_LEAP = timedelta(days=400)
_KEPT_STATES = 20


@dataclass(frozen=True, slots=True)
class Desk:
    """What every change needs. `wait_s`: how long for another publisher. `trust_clock`: sign whatever the time."""

    repository: Path
    keys: Keys
    now: datetime
    trust_clock: bool = False
    wait_s: float = 60.0
    disk: Disk = field(default_factory=Disk)


class Session:
    """Made by `opened`."""

    def __init__(self, desk: Desk, roots: list[Root], state: State | None) -> None:
        self.desk, self.roots, self.state = desk, roots, state
        self.record = Record(desk.keys.folder, desk.disk)
        self.days: Days = self.record.days()
        self.notes: list[str] = []

    @property
    def root(self) -> Root:
        return self.roots[-1]

    @property
    def versions(self) -> Versions:
        """What stands in the repository."""
        return self.state.versions if self.state else Versions()

    def published(self) -> State:
        """Raises NoRepository where nothing is published, Restored where something is missing."""
        self.demand_current()
        if self.state is None:
            raise NoRepository(
                f"{self.desk.repository} holds no metadata: run `weir keys recover`, or `weir keys init`"
            )
        return self.state

    def demand_current(self) -> None:
        """Raises Restored when the repository is behind what these keys have signed."""
        in_repository = max(roots_in(self.desk.repository), default=0)
        mine = Versions(in_repository, self.versions.timestamp, self.versions.snapshot, self.versions.targets)
        known = self.record.signed().highest(Versions(root=self.root.version))
        if behind := mine.behind(known):
            raise Restored(
                f"{self.desk.repository} has gone back in time: it holds {', '.join(behind)}. It was restored from a "
                "backup, or another copy of it is meant. Nodes refuse it as it is: run `weir keys recover`, then "
                "publish again what is missing (docs/publishing.md)"
            )

    def expires(self, role: str) -> datetime:
        return self.desk.now.astimezone(UTC) + self.days.life(role)

    def write_root(self, version: int, content: bytes) -> None:
        """Lays down a root that the repository has lost."""
        self._write([(f"{version}.root.json", content)])

    def lay(
        self,
        *,
        root: Root | None = None,
        root_bytes: bytes = b"",
        targets: Targets | None = None,
        snapshot: bool = False,
        floor: Versions | None = None,
    ) -> Versions:
        """Signs and writes what changes.

        `targets` are signed when given, the snapshot with them or when asked for, and both when their keys have
        changed since. Every new version is above the one that stands and above `floor`. Raises KeyMissing,
        ClockDoubtful, OutOfSpace, OSError.
        """
        self._demand_clock()
        floor = (floor or Versions()).highest(self.versions)
        acting = root or self.root
        files: list[tuple[str, bytes]] = []
        new_snapshot, snapshot_bytes = self._kept_snapshot(acting)
        if targets is None and self.state is not None and not _vouches(acting, self.state.files.targets, Targets):
            targets = copy.deepcopy(self.state.targets)
        if targets is not None:
            targets.version, targets.expires = floor.targets + 1, self.expires("targets")
            content = self._sign(acting, targets)
            files.append((f"{targets.version}.targets.json", content))
            new_snapshot.meta["targets.json"] = _meta(targets, content)
        if targets is not None or snapshot or not snapshot_bytes:
            new_snapshot.version, new_snapshot.expires = floor.snapshot + 1, self.expires("snapshot")
            snapshot_bytes = self._sign(acting, new_snapshot)
            files.append((f"{new_snapshot.version}.snapshot.json", snapshot_bytes))
        if root is not None:
            files.append((f"{root.version}.root.json", root_bytes))
        timestamp = Timestamp(floor.timestamp + 1, None, self.expires("timestamp"), _meta(new_snapshot, snapshot_bytes))
        timestamp.unrecognized_fields[ISSUED] = stamp(self.desk.now)
        files.append(("timestamp.json", self._sign(acting, timestamp)))

        self._write(files)
        self._prune()
        if root is not None:
            self.record.keep_root(root.version, root_bytes)
        laid = Versions(
            acting.version, timestamp.version, new_snapshot.version, new_snapshot.meta["targets.json"].version
        )
        if told := self.record.note(laid):
            self.notes.append(told)
        return laid

    def _write(self, files: list[tuple[str, bytes]]) -> None:
        metadata = self.desk.repository / METADATA
        written: list[Path] = []
        with room(self.desk.repository):
            try:
                self.desk.disk.folder(metadata)
                for name, content in files:
                    if not (metadata / name).exists():
                        written.append(metadata / name)
                    self.desk.disk.write(metadata / name, content)
            except OSError:
                drafts = list(metadata.glob(".*.new"))
                stands = _read(metadata / files[-1][0]) == files[-1][1]
                for path in drafts if stands else (*drafts, *written):
                    with contextlib.suppress(OSError):
                        path.unlink()
                raise

    def _prune(self) -> None:
        """Removes states that no reader is in the middle of; roots stay for ever."""
        for role in ("snapshot", "targets"):
            found = (self.desk.repository / METADATA).glob(f"*.{role}.json")
            numbered = sorted((int(path.name.split(".")[0]), path) for path in found if path.name[0] in "123456789")
            for _, path in numbered[:-_KEPT_STATES]:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _kept_snapshot(self, root: Root) -> tuple[Snapshot, bytes]:
        """The snapshot that stands, to be changed; without bytes where it needs another signature."""
        if self.state is None:
            return Snapshot(), b""
        content = self.state.files.snapshot
        return copy.deepcopy(self.state.snapshot), content if _vouches(root, content, Snapshot) else b""

    def _sign(self, root: Root, signed: T) -> bytes:
        role = root.roles[signed.type]
        keys = [root.keys[keyid] for keyid in role.keyids]
        return signed_bytes(signed, self.desk.keys.signers(signed.type, keys, role.threshold))

    def _demand_clock(self) -> None:
        """Raises ClockDoubtful when the time does not go on from the last signature."""
        last = issued_at(self.state.timestamp) if self.state else None
        if last is None or self.desk.trust_clock or last - _SKEW <= self.desk.now <= last + _LEAP:
            return
        raise ClockDoubtful(
            f"this box's clock says {stamp(self.desk.now)}, and the repository was signed last at {stamp(last)}: set "
            "the clock, since nodes take the time from what is signed; if it is right, say --trust-clock"
        )


@contextlib.contextmanager
def opened(desk: Desk, damaged: bool = False) -> Iterator[Session]:
    """The repository under its lock; a `damaged` one may have lost its metadata. Raises Busy, NoRepository."""
    with locked(desk.repository, desk.wait_s):
        mine = Record(desk.keys.folder, desk.disk).roots()
        if not mine:
            raise NoRepository(
                f"{desk.keys.folder} holds no keys of a repository: name their folder, or `weir keys init`"
            )
        theirs = {version: content for version, content in roots_in(desk.repository).items() if version > min(mine)}
        roots = follow({**theirs, **mine})
        try:
            state, note = read_state(desk.repository, roots), ""
        except NoRepository as error:
            if not damaged:
                raise
            state, note = None, str(error)
        session = Session(desk, roots, state)
        session.notes.extend([note] if note else [])
        yield session


@contextlib.contextmanager
def locked(repository: Path, wait_s: float, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """One writer at a time. Raises Busy."""
    repository.mkdir(parents=True, exist_ok=True)
    with (repository / LOCK).open("a") as handle:
        for attempt in range(max(1, int(wait_s / _LOCK_POLL_S))):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt + 1 == max(1, int(wait_s / _LOCK_POLL_S)):
                    raise Busy(
                        f"{repository} has been locked by another publisher for {wait_s:.0f} s: wait for it and try "
                        "again"
                    ) from None
                sleep(_LOCK_POLL_S)
        yield


def signed_bytes(signed: T, signers: Sequence[Signer]) -> bytes:
    """Metadata as it lies on disk, signed by all of `signers`."""
    metadata = Metadata(signed)
    for signer in signers:
        metadata.sign(signer, append=True)
    return metadata.to_bytes()


def stamp(moment: datetime) -> str:
    """A moment as it is signed."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S+00:00")


def _vouches(root: Root, content: bytes, kind: type[T]) -> bool:
    try:
        verify(root, parse(kind, content, ""), "")
    except TrustError:
        return False
    return True


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _meta(signed: Snapshot | Targets, content: bytes) -> MetaFile:
    return MetaFile(signed.version, len(content), {"sha256": hashlib.sha256(content).hexdigest()})
