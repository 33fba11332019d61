"""Releases into a repository and out of it again; timers' work.

A release is published when its files are objects and its manifest is a signed target. It is refused
without quality figures and self-tests, since nodes rely on both, and under a version that another build
has. Withdrawing keeps the files: nodes that serve the release learn that they should not, and still have
the one before.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tuf.api.metadata import TargetFile, Targets

from release.document import plain
from release.errors import ReleaseError
from release.listing import read_manifest
from release.manifest import MANIFEST_NAME, File, Manifest, read
from release.repository.errors import KeyMissing, NotFit
from release.repository.record import Versions
from release.repository.session import Desk, Session, opened, stamp
from release.repository.shelf import Shelf, Told
from release.trust.catalogue import MOST_MANIFEST_BYTES, Custom, target_path

_WEIGHT_ERROR = "relative_weight_error"
_RENEW_AT = 1 / 3  # of a role's life left: what needs a key that is not always there is renewed early
_WARN_DAYS = 30


@dataclass(frozen=True, slots=True)
class Published:
    """What publishing did, in bytes. `already`: it was offered before, and nothing was signed."""

    release: str
    model: str
    version: str
    total_bytes: int
    stored_bytes: int
    shared_bytes: int
    already: bool
    versions: Versions
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refreshed:
    """Which roles were signed anew, when each one ends, and what a person should see to."""

    signed: tuple[str, ...]
    expires: Mapping[str, datetime]
    versions: Versions
    notes: tuple[str, ...] = ()


def publish(
    desk: Desk, folder: Path, *, allow_unmeasured: bool = False, link: bool = False, told: Told = lambda _: None
) -> Published:
    """Verifies a release folder in full and offers it. `told` hears of bytes as they are done.

    Raises RepositoryError, ReleaseError or OSError; then the repository is as it was.
    """
    manifest = read_manifest(folder)
    content = (folder / MANIFEST_NAME).read_bytes()
    _demand_fit(manifest, content, allow_unmeasured)
    with opened(desk) as session:
        before = session.published()
        _demand_free_version(session, manifest)
        sources = {folder / file.name: file for file in manifest.files}
        text = File(
            "manifest", len(content), hashlib.sha256(content).hexdigest(), len(content),
            (hashlib.sha256(content).hexdigest(),),
        )  # fmt: skip
        placed = Shelf(desk.repository, desk.disk).place({**sources, folder / MANIFEST_NAME: text}, told, link)
        path = target_path(manifest.name, manifest.id)
        standing = before.targets.targets.get(path)
        total = sum(file.bytes for file in manifest.files)
        already = standing is not None and not _custom(standing).get("withdrawn", False)
        if already:
            versions = before.versions
        else:
            targets = copy.deepcopy(before.targets)
            custom = Custom(
                manifest.name, manifest.version, manifest.id, manifest.precisions, total, stamp(desk.now),
                task=manifest.task,
            )  # fmt: skip
            targets.targets[path] = TargetFile(len(content), {"sha256": text.sha256}, path, {"custom": plain(custom)})
            try:
                versions = session.lay(targets=targets)
            except BaseException:
                placed.undo()
                raise
        return Published(
            manifest.id, manifest.name, manifest.version, total, placed.stored_bytes, placed.shared_bytes, already,
            versions, tuple(session.notes),
        )  # fmt: skip


def withdraw(desk: Desk, release: str, reason: str = "") -> Versions:
    """Marks a release as one that nodes should leave. Raises NotFit where none of that id is offered."""
    with opened(desk) as session:
        targets = copy.deepcopy(session.published().targets)
        found = [file for file in targets.targets.values() if _custom(file).get("release") == release]
        if not found:
            offered = sorted(str(_custom(file).get("release")) for file in targets.targets.values())
            raise NotFit(f"no release {release} is published here; published: {', '.join(offered) or 'none'}")
        for file in found:
            file.unrecognized_fields["custom"] = {**_custom(file), "withdrawn": True, "withdrawn_reason": reason}
        return session.lay(targets=targets)


def refresh(desk: Desk) -> Refreshed:
    """Signs the timestamp anew, and whatever else has little of its life left and its key at hand. For a timer."""
    with opened(desk) as session:
        state = session.published()
        notes: list[str] = []
        targets: Targets | None = None
        if _due(session, "targets", state.targets.expires):
            keys = [session.root.keys[keyid] for keyid in session.root.roles["targets"].keyids]
            try:
                desk.keys.signers("targets", keys, session.root.roles["targets"].threshold)
                targets = copy.deepcopy(state.targets)
            except KeyMissing as error:
                notes.append(f"targets end on {_day(state.targets.expires)} and their key is not here: {error}")
        snapshot = targets is not None or _due(session, "snapshot", state.snapshot.expires, 0.5)
        versions = session.lay(targets=targets, snapshot=snapshot)
        if (session.root.expires - desk.now.astimezone(UTC)).days < _WARN_DAYS:
            notes.append(
                f"the root ends on {_day(session.root.expires)}: run `weir keys rotate root --keep` with the root keys "
                "before then, or every node stops taking updates"
            )
        signed = ("timestamp", *(("snapshot",) if snapshot else ()), *(("targets",) if targets is not None else ()))
        expires = {
            "root": session.root.expires,
            "targets": targets.expires if targets is not None else state.targets.expires,
            "snapshot": session.expires("snapshot") if snapshot else state.snapshot.expires,
            "timestamp": session.expires("timestamp"),
        }
        return Refreshed(signed, expires, versions, (*notes, *session.notes))


def _due(session: Session, role: str, expires: datetime, share: float = _RENEW_AT) -> bool:
    return expires - session.desk.now.astimezone(UTC) < session.days.life(role) * share


def _demand_fit(manifest: Manifest, content: bytes, allow_unmeasured: bool) -> None:
    if len(content) > MOST_MANIFEST_BYTES:
        raise NotFit(
            f"the manifest of {manifest.id} has {len(content)} bytes, {MOST_MANIFEST_BYTES} at most may be signed"
        )
    if read(content).id != manifest.id:
        raise ReleaseError(f"the manifest of {manifest.id} changed while it was read")
    if allow_unmeasured:
        return
    # How far weights moved is known without running anything, and says nothing about answers.
    measured = {figure.precision for figure in manifest.quality if figure.name != _WEIGHT_ERROR}
    tested = {test.precision for test in manifest.self_tests}
    lacking = [
        *(f"quality figures of {bits} bits" for bits in manifest.precisions if bits not in measured),
        *(f"a self-test of {bits} bits" for bits in manifest.precisions if bits not in tested),
    ]
    if lacking:
        raise NotFit(
            f"{manifest.id} lacks {', '.join(lacking)}: build it with `weir quantize`, which measures, or say "
            "--allow-unmeasured to publish it as it is"
        )


def _demand_free_version(session: Session, manifest: Manifest) -> None:
    state = session.state
    for offer in state.offers()[0] if state else ():
        if (offer.model, offer.version) == (manifest.name, manifest.version) and offer.release != manifest.id:
            raise NotFit(
                f"version {manifest.version} of {manifest.name} is published already, as {offer.release}: give this "
                "build another version (weir quantize --version), or withdraw that one first"
            )


def _custom(file: TargetFile) -> dict[str, object]:
    custom = file.custom
    return custom if isinstance(custom, dict) else {}


def _day(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d")
