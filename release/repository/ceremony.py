"""What needs the root keys: beginning a repository, changing keys, renewing the root; and recovering it.

A new root is signed by enough of the keys before it and by enough of its own, so that nodes follow it
step by step. New private keys are on disk before anything names them; replaced ones are set aside after.
Replacing an online key makes nodes forget the versions that it could have signed (TUF 5.3.11).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from securesystemslib.signer import Key, Signer
from tuf.api.metadata import Role, Root, Targets

from release.disk import Disk
from release.repository.errors import KeyMissing, NoRepository
from release.repository.record import Days, Record, Versions
from release.repository.session import Desk, Session, locked, opened, signed_bytes, stamp
from release.repository.state import follow, roots_in
from release.trust.errors import TrustError
from release.trust.workflow import ISSUED, next_root

ONLINE = ("timestamp", "snapshot")
ROLES = ("root", "targets", *ONLINE)
MOST_LEAP = 1_000_000  # versions that `recover` may jump: a wrong figure would otherwise be for ever
_READING = Disk()


@dataclass(frozen=True, slots=True)
class Changed:
    """What a ceremony did: new key ids by role, the versions now, and what is left to do."""

    keys: Mapping[str, tuple[str, ...]]
    versions: Versions
    notes: tuple[str, ...] = ()


def begin(desk: Desk, days: Days, root_count: int = 1, root_threshold: int = 1) -> Changed:
    """Makes keys and an empty, signed repository. Raises NoRepository where either folder has one already."""
    if not 1 <= root_threshold <= root_count <= 16:
        raise KeyMissing(f"{root_count} root key(s) with a threshold of {root_threshold}: it must be 1 to {root_count}")
    record = Record(desk.keys.folder, desk.disk)
    with locked(desk.repository, desk.wait_s):
        if roots_in(desk.repository) or record.roots():
            raise NoRepository(
                f"{desk.repository} or {desk.keys.folder} has a repository's roots already: begin another one in new "
                "folders"
            )
        made = {role: desk.keys.make(role, root_count if role == "root" else 1) for role in ROLES}
        record.keep_days(days)
        root = Root(
            version=1,
            expires=None,
            keys={key.keyid: key for keys in made.values() for key in keys},
            roles={
                role: Role([key.keyid for key in keys], root_threshold if role == "root" else 1)
                for role, keys in made.items()
            },
            consistent_snapshot=True,
        )
        session = Session(desk, [root], None)
        content = _sign_root(session, root, [(root, root_threshold)])
        versions = session.lay(root=root, root_bytes=content, targets=Targets())
    return Changed(_ids(made), versions, tuple(session.notes))


def rotate(
    desk: Desk,
    roles: Sequence[str],
    *,
    drop: Sequence[str] = (),
    keep: bool = False,
    root_threshold: int | None = None,
    root_count: int | None = None,
) -> Changed:
    """New keys for `roles`, signed by the root keys.

    For the root: `drop` names (beginnings of) key ids to replace, all of them by default; `keep` replaces none and
    only renews its date. Raises RepositoryError.
    """
    with opened(desk) as session:
        session.published()
        return _rotate(session, roles, drop=drop, keep=keep, threshold=root_threshold, count=root_count)


def recover(
    desk: Desk,
    seen: Versions,
    *,
    new_online_keys: bool = False,
    node_roots: Mapping[int, bytes] | None = None,
) -> Changed:
    """Brings a repository past every version that nodes have seen, so that they accept it again.

    For one restored from an old backup or lost: `seen` is what nodes say they saw. `node_roots` are roots that a
    node kept and this box lost. With `new_online_keys` the keys of timestamp and snapshot are replaced as well:
    for keys that were lost or stolen. Raises RepositoryError.
    """
    with opened(desk, damaged=True) as session:
        _take_roots(session, node_roots or {})
        if seen.root > session.root.version:
            raise NoRepository(
                f"nodes have seen root {seen.root}, and the newest here is {session.root.version}: copy "
                f"{seen.root}.root.json from a node's store (trust/metadata/) with --node, or from a backup of the keys"
            )
        floor = session.record.signed().highest(seen)
        for role in ("timestamp", "snapshot", "targets"):
            if getattr(floor, role) > getattr(session.versions, role) + MOST_LEAP:
                raise NoRepository(
                    f"{role}={getattr(floor, role)} is more than {MOST_LEAP} versions ahead: somebody who had its "
                    "key may have signed that; replace the keys with --new-online-keys instead"
                )
        targets = copy.deepcopy(session.state.targets) if session.state else Targets()
        notes = [] if session.state else ["the catalogue is empty now: publish every release again"]
        if new_online_keys:
            changed = _rotate(session, ONLINE, floor=floor, targets=targets)
            return Changed(changed.keys, changed.versions, (*notes, *changed.notes))
        versions = session.lay(targets=targets, floor=floor)
        return Changed({}, versions, (*notes, *session.notes))


def _rotate(
    session: Session,
    roles: Sequence[str],
    *,
    drop: Sequence[str] = (),
    keep: bool = False,
    threshold: int | None = None,
    count: int | None = None,
    floor: Versions | None = None,
    targets: Targets | None = None,
) -> Changed:
    old = session.root
    root = copy.deepcopy(old)
    # Before new keys are made: a ceremony that lacks a holder should leave nothing behind.
    session.desk.keys.signers("root", _keys_of(old, "root"), old.roles["root"].threshold)
    made: dict[str, list[Key]] = {}
    replaced: dict[str, list[Key]] = {}
    for role in roles:
        before = _keys_of(old, role)
        leaving = (
            [] if keep else [key for key in before if not drop or any(key.keyid.startswith(part) for part in drop)]
        )
        if drop and not leaving:
            raise KeyMissing(
                f"no {role} key begins with {', '.join(drop)}; it has {', '.join(k.keyid for k in before)}"
            )
        wanted = (count or len(before)) if role == "root" else len(before)
        made[role] = session.desk.keys.make(role, max(0, wanted - len(before) + len(leaving)))
        replaced[role] = leaving
        for key in leaving:
            root.revoke_key(key.keyid, role)
        for key in made[role]:
            root.add_key(key, role)
    if threshold is not None:
        root.roles["root"].threshold = threshold
    if root.roles["root"].threshold > len(root.roles["root"].keyids):
        raise KeyMissing(f"a threshold of {root.roles['root'].threshold} needs as many root keys: raise --root-count")
    root.version = old.version + 1
    needs = [(old, old.roles["root"].threshold), (root, root.roles["root"].threshold)]
    content = _sign_root(session, root, needs)
    versions = session.lay(root=root, root_bytes=content, targets=targets, floor=floor)
    for role, keys in replaced.items():
        session.desk.keys.retire(role, keys)
    return Changed(_ids(made), versions, tuple(session.notes))


def _sign_root(session: Session, root: Root, needs: Sequence[tuple[Root, int]]) -> bytes:
    """The root, signed by enough keys of each of `needs`."""
    root.expires = session.expires("root")
    root.unrecognized_fields[ISSUED] = stamp(session.desk.now)
    signers: dict[str, Signer] = {}
    for holder, threshold in needs:
        for signer in session.desk.keys.signers("root", _keys_of(holder, "root"), threshold):
            signers[signer.public_key.keyid] = signer
    return signed_bytes(root, list(signers.values()))


def _take_roots(session: Session, node_roots: Mapping[int, bytes]) -> None:
    """Adds roots that a node kept, each verified by the one before, and lays down those the repository lacks."""
    while (content := node_roots.get(session.root.version + 1)) is not None:
        try:
            root = next_root(session.root, content)
        except TrustError as error:
            raise NoRepository(f"the node's root does not follow this repository's: {error}") from error
        session.record.keep_root(root.version, content)
        session.roots.append(root)
    there = roots_in(session.desk.repository)
    for version, content in session.record.roots().items():
        if there.get(version) != content:
            session.write_root(version, content)


def trusted_root(keys_or_repository: Path) -> tuple[int, bytes]:
    """The newest root in a folder of keys or a repository, for nodes to be pinned to. Raises NoRepository."""
    for contents in (Record(keys_or_repository, _READING).roots(), roots_in(keys_or_repository)):
        if roots := follow(contents):
            return roots[-1].version, contents[roots[-1].version]
    raise NoRepository(f"{keys_or_repository} holds no roots: name a folder of keys, or a repository")


def _keys_of(root: Root, role: str) -> list[Key]:
    return [root.keys[keyid] for keyid in root.roles[role].keyids]


def _ids(made: Mapping[str, Sequence[Key]]) -> dict[str, tuple[str, ...]]:
    return {role: tuple(key.keyid for key in keys) for role, keys in made.items()}
