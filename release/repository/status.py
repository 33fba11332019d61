"""How a repository and its keys stand: versions, dates, which private keys are here, what a person should see to.

Reads only, takes no lock, opens no key.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from release.disk import Disk
from release.repository.errors import NoRepository
from release.repository.keys import Keys, open_to_others
from release.repository.record import Record, Versions
from release.repository.state import State, follow, read_state, roots_in
from release.trust.catalogue import Offer

_WARN_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """One role. `keys` are its key ids, `here` those whose private half is at hand."""

    name: str
    version: int
    expires: datetime
    days_left: float
    threshold: int
    keys: tuple[str, ...]
    here: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """All roles, what the keys have signed so far, and warnings."""

    roles: tuple[RoleStatus, ...]
    signed: Versions
    warnings: tuple[str, ...]


def status(repository: Path, keys: Keys, now: datetime) -> Status:
    """Raises NoRepository."""
    record = Record(keys.folder, Disk())
    mine = record.roots()
    if not mine:
        raise NoRepository(f"{keys.folder} holds no keys of a repository: name their folder, or `weir keys init`")
    there = roots_in(repository)
    roots = follow({**{version: content for version, content in there.items() if version > min(mine)}, **mine})
    state = read_state(repository, roots)
    if state is None:
        raise NoRepository(f"{repository} holds no metadata: run `weir keys recover`")
    root, days = roots[-1], record.days()
    roles, warnings = [], []
    parts = {"root": root, "targets": state.targets, "snapshot": state.snapshot, "timestamp": state.timestamp}
    for name, part in parts.items():
        left = (part.expires - now.astimezone(UTC)).total_seconds() / 86400
        role = root.roles[name]
        here = tuple(keyid for keyid in role.keyids if keys.has(name, root.keys[keyid]))
        roles.append(RoleStatus(name, part.version, part.expires, left, role.threshold, tuple(role.keyids), here))
        if left < days.life(name).days * _WARN_SHARE:
            warnings.append(f"{name} {'ended' if left < 0 else 'ends'} on {part.expires:%Y-%m-%d}: {_renewal(name)}")
    signed = record.signed()
    standing = Versions(max(there, default=0), *(parts[name].version for name in ("timestamp", "snapshot", "targets")))
    if behind := standing.behind(signed.highest(Versions(root=root.version))):
        warnings.append(f"the repository has gone back in time ({', '.join(behind)}): run `weir keys recover`")
    for version, content in mine.items():
        if there.get(version) not in (content, None):
            warnings.append(f"root {version} in the repository is not the one signed: run `weir keys recover`")
    exposed = open_to_others((keys.folder, *keys.root_folders))
    warnings.extend(f"{path} may be read by others: chmod 600 it" for path in exposed)
    if len({keys.folder.resolve(), *(folder.resolve() for folder in keys.root_folders)}) == 1 and roles[0].here:
        warnings.append("root keys lie beside the everyday keys: move them to a disk that is kept apart (--root-keys)")
    return Status(tuple(roles), signed, tuple(warnings))


def listed(repository: Path, trusted: bytes | None = None) -> tuple[State, list[Offer], frozenset[str]]:
    """What a repository in a folder says it offers, whatever its dates; `trusted` is a root to hold it against.

    Without one its own oldest root is believed. Raises NoRepository, TrustError.
    """
    contents = roots_in(repository)
    if trusted is not None:
        version = follow({0: trusted})[0].version
        contents = {**{number: content for number, content in contents.items() if number > version}, version: trusted}
    state = read_state(repository, follow(contents)) if contents else None
    if state is None:
        raise NoRepository(f"{repository} holds no signed repository")
    return state, *state.offers()


def _renewal(role: str) -> str:
    return "run `weir keys rotate root --keep` with the root keys" if role == "root" else "run `weir keys refresh`"
