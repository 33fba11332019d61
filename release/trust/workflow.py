"""The client workflow of TUF (specification 1.0, section 5), in steps that neither fetch nor store.

Rules:
 * Order: root, each version once and one after another, then timestamp, snapshot, targets. Each step
   takes the verified results of those before it, so that none can be skipped.
 * A new root is signed by enough keys of the root before it and by enough of its own (5.3.4). The age of
   a root counts only after the last one (5.3.10).
 * Versions never go down: not a role's own, and not those it names of others (5.4.3, 5.5.5). They start
   anew only for keys that a root has replaced (5.3.11), since whoever stole them could have signed any
   number. Targets that were verified count on while their own keys stay.
 * An equal timestamp is the same timestamp; another one of the same number is a fork and refused.
 * Snapshot and targets are compared with the length and hash that was signed before they are parsed,
   and have the version they were announced with (5.5.2, 5.5.4, 5.6.2, 5.6.4).
 * Nothing is past its date (5.4.4, 5.5.6, 5.6.5), by release.trust.clock.

Must not know folders, networks or clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from tuf.api.exceptions import LengthOrHashMismatchError, UnsignedMetadataError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, Targets, Timestamp
from tuf.api.serialization import DeserializationError, SerializationError

from release.trust.catalogue import instant
from release.trust.clock import Clock
from release.trust.errors import (
    BadRoot,
    Damaged,
    Malformed,
    MixedMetadata,
    Replayed,
    TrustError,
    WrongSignature,
)

MOST_BYTES: Mapping[str, int] = {"root": 512 << 10, "timestamp": 64 << 10, "snapshot": 1 << 20, "targets": 5 << 20}
MOST_ROTATIONS = 256
ISSUED = "x-weir-issued"

_SNAPSHOT, _TARGETS = "snapshot.json", "targets.json"
_RESTORED = (
    "this is an older state of the repository, replayed or restored from a backup; if you restored it, "
    "run `weir keys recover --seen {seen}` there"
)

T = TypeVar("T", Root, Timestamp, Snapshot, Targets)


@dataclass(frozen=True, slots=True)
class Seen:
    """The highest versions verified so far; `promised` is the targets version that a snapshot named.

    `online` and `offline` tell the keys they hold for: of timestamp and snapshot, and of targets.
    """

    timestamp: int = 0
    snapshot: int = 0
    promised: int = 0
    targets: int = 0
    issued: str = ""
    online: str = ""
    offline: str = ""

    def __post_init__(self) -> None:
        if self.issued:
            instant(self.issued)  # ValueError for a record that was damaged

    @property
    def floor(self) -> datetime | None:
        """The newest time that was signed."""
        return instant(self.issued) if self.issued else None

    @property
    def words(self) -> str:
        """As `weir keys recover --seen` takes them."""
        return f"timestamp={self.timestamp},snapshot={self.snapshot},targets={max(self.promised, self.targets)}"

    def under(self, root: Root) -> Seen:
        """What still counts after `root`: nothing that replaced keys could have signed."""
        online, offline = fingerprint(root, "timestamp", "snapshot"), fingerprint(root, "targets")
        same, kept = self.online == online, self.offline == offline
        return Seen(
            timestamp=self.timestamp if same else 0,
            snapshot=self.snapshot if same else 0,
            promised=self.promised if same else 0,
            targets=self.targets if kept else 0,
            issued=self.issued if same else issued_text(root),
            online=online,
            offline=offline,
        )

    def after(self, signed: Timestamp | Snapshot | Targets) -> Seen:
        """With the versions of something that was verified; never lower."""
        match signed:
            case Timestamp():
                snapshot, issued = signed.snapshot_meta.version, issued_at(signed)
                newer = issued is not None and (self.floor is None or issued > self.floor)
                return replace(
                    self,
                    timestamp=max(self.timestamp, signed.version),
                    snapshot=max(self.snapshot, snapshot),
                    issued=issued_text(signed) if newer else self.issued,
                )
            case Snapshot():
                return replace(self, promised=max(self.promised, signed.meta[_TARGETS].version))
        return replace(self, targets=max(self.targets, signed.version))


def fingerprint(root: Root, *roles: str) -> str:
    """The keys and thresholds of some roles, as text that changes with them."""
    said = [(root.roles[role].threshold, sorted(root.roles[role].keyids)) for role in roles]
    return ";".join(f"{threshold}:{','.join(keys)}" for threshold, keys in said)


def parse(kind: type[T], content: bytes, what: str) -> Metadata[T]:
    """Metadata of that role in `content`, not verified yet. Raises Malformed."""
    try:
        found = Metadata[T].from_bytes(content)
    except DeserializationError as error:
        cause = error.__cause__ or error
        raise Malformed(
            f"{what} cannot be read ({type(cause).__name__}: {str(cause)[:200]}): it is truncated, damaged, or of "
            "another version of the format; fetch it again"
        ) from error
    if not isinstance(found.signed, kind):
        raise Malformed(f"{what} is metadata of the role {found.signed.type}: the source mixes up its files")
    if type(found.signed.version) is not int:
        raise Malformed(f"{what} has no whole number as its version")
    return found


def verify(root: Root, found: Metadata[T], what: str) -> T:
    """The signed part, if enough keys of that role signed it. Raises WrongSignature."""
    role = found.signed.type
    try:
        root.verify_delegate(role, found.signed_bytes, found.signatures)
    except (UnsignedMetadataError, SerializationError, ValueError, TypeError) as error:
        needed, keys = root.roles[role].threshold, len(root.roles[role].keyids)
        raise WrongSignature(
            f"{what} is not signed by {needed} of the {keys} key(s) that root {root.version} names for {role}: it was "
            "altered, or signed by somebody else"
        ) from error
    return found.signed


def first_root(content: bytes) -> Root:
    """The root that is trusted because it was pinned. Raises BadRoot."""
    try:
        found = parse(Root, content, "the trusted root")
        return _usable(verify(found.signed, found, "the trusted root"))
    except (Malformed, WrongSignature) as error:
        raise BadRoot(f"{error}; export it anew with `weir keys export-root`") from error


def next_root(root: Root, content: bytes) -> Root:
    """The root after `root`. Raises Malformed, WrongSignature, Replayed, MixedMetadata or BadRoot."""
    what = f"root {root.version + 1}"
    found = parse(Root, content, what)
    verify(root, found, what)
    verify(found.signed, found, what)
    if found.signed.version <= root.version:
        raise Replayed(f"{what} turned out to be root {found.signed.version} again: ask another source")
    if found.signed.version != root.version + 1:
        raise MixedMetadata(f"{what} turned out to be root {found.signed.version}: the source mixes up its files")
    return _usable(found.signed)


def next_timestamp(root: Root, content: bytes, seen: Seen, held: Timestamp | None, clock: Clock) -> Timestamp:
    """The timestamp in `content`; `held` is the one before it, if that still counts. Raises a TrustError."""
    found = verify(root, parse(Timestamp, content, "the timestamp"), "the timestamp")
    if found.version < seen.timestamp:
        raise Replayed(f"the timestamp has version {found.version}, seen was {seen.timestamp} ({_restored(seen)})")
    if held is not None and found.version == held.version and found != held:
        raise Replayed(f"another timestamp of the version {found.version} was seen before ({_restored(seen)})")
    if found.snapshot_meta.version < seen.snapshot:
        raise Replayed(
            f"the timestamp names snapshot {found.snapshot_meta.version}, seen was {seen.snapshot} ({_restored(seen)})"
        )
    issued = issued_at(found)
    if issued is None or issued >= found.expires:
        raise Malformed(f"the timestamp does not say in {ISSUED} when it was signed: it was not made by Weir")
    clock.seen(issued).demand("the timestamp", found.expires)
    return found


def next_snapshot(root: Root, content: bytes, timestamp: Timestamp, seen: Seen, clock: Clock) -> Snapshot:
    """The snapshot that `timestamp` names, in `content`. Raises a TrustError."""
    what = f"snapshot {timestamp.snapshot_meta.version}"
    _demand_bytes(root, Snapshot, timestamp.snapshot_meta, content, what)
    found = verify(root, parse(Snapshot, content, what), what)
    if found.version != timestamp.snapshot_meta.version:
        raise MixedMetadata(f"{what} turned out to be snapshot {found.version}: the repository is between two states")
    if (meta := found.meta.get(_TARGETS)) is None:
        raise Malformed(f"{what} names no targets: it was not made by Weir")
    if meta.version < max(seen.promised, seen.targets):
        raise Replayed(
            f"{what} names targets {meta.version}, seen was {max(seen.promised, seen.targets)} ({_restored(seen)})"
        )
    clock.demand(what, found.expires)
    return found


def next_targets(root: Root, content: bytes, snapshot: Snapshot, clock: Clock) -> Targets:
    """The targets that `snapshot` names, in `content`. Raises a TrustError."""
    meta = snapshot.meta[_TARGETS]
    what = f"targets {meta.version}"
    _demand_bytes(root, Targets, meta, content, what)
    found = verify(root, parse(Targets, content, what), what)
    if found.version != meta.version:
        raise MixedMetadata(f"{what} turned out to be targets {found.version}: the repository is between two states")
    clock.demand(what, found.expires)
    return found


def most_bytes(role: str, meta: MetaFile) -> int:
    """How many bytes of a file may be read: what was signed, within the bound."""
    return MOST_BYTES[role] if meta.length is None else min(meta.length, MOST_BYTES[role])


def fits(meta: MetaFile, content: bytes) -> bool:
    """Whether `content` has the length and hash that was signed."""
    try:
        meta.verify_length_and_hashes(content)
    except LengthOrHashMismatchError:
        return False
    return bool(meta.hashes)


def issued_text(signed: Root | Timestamp) -> str:
    """When something was signed, as written in it; empty where nothing readable is."""
    text = signed.unrecognized_fields.get(ISSUED, "")
    try:
        instant(text)
    except (TypeError, ValueError):
        return ""
    return str(text)


def issued_at(signed: Root | Timestamp) -> datetime | None:
    """When something was signed."""
    text = issued_text(signed)
    return instant(text) if text else None


def _usable(root: Root) -> Root:
    if not root.consistent_snapshot:
        raise BadRoot("the root does not use consistent snapshots: it was not made by Weir")
    return root


def _demand_bytes(root: Root, kind: type[T], meta: MetaFile, content: bytes, what: str) -> None:
    if not meta.hashes or meta.length is None:
        raise Malformed(f"{what} is named without length and hash: it was not made by Weir")
    if fits(meta, content):
        return
    if _is_signed(root, kind, content):
        raise MixedMetadata(
            f"{what} is signed, but not the one that belongs here: the source mixes two states of the repository"
        )
    raise Damaged(
        f"{what} has other bytes than were signed for ({len(content)} of {meta.length}): it was truncated, damaged or "
        "altered; fetch it again, from another source if it stays so"
    )


def _is_signed(root: Root, kind: type[T], content: bytes) -> bool:
    """Only to choose the words of a refusal."""
    try:
        verify(root, parse(kind, content, ""), "")
    except TrustError:
        return False
    return True


def _restored(seen: Seen) -> str:
    return _RESTORED.format(seen=seen.words)
