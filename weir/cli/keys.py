"""`weir keys`: the keys of a signed repository. See docs/publishing.md for which drill is for what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli import report
from weir.cli.desk import (
    HttpSource,
    Json,
    KeyFolder,
    Repository,
    RootFolders,
    TrustClock,
    desk,
    is_url,
    key_folders,
    numbers,
)
from weir.cli.extras import require

if TYPE_CHECKING:
    from release.repository.ceremony import Changed
    from release.repository.record import Versions

keys = typer.Typer(name="keys", no_args_is_help=True, help="Keys of a signed repository of releases.")

_ONLINE = "online"


@keys.command("init")
def init(
    repository: Repository,
    folder: KeyFolder,
    root_keys: RootFolders = None,
    root_count: Annotated[int | None, typer.Option(min=1, max=16, help="Root keys; default: one per folder.")] = None,
    root_threshold: Annotated[int, typer.Option(min=1, max=16, help="Root keys needed to change anything.")] = 1,
    root_days: Annotated[int, typer.Option(min=1, max=3650)] = 365,
    targets_days: Annotated[int, typer.Option(min=1, max=3650)] = 90,
    snapshot_days: Annotated[int, typer.Option(min=1, max=3650)] = 7,
    timestamp_days: Annotated[int, typer.Option(min=1, max=3650)] = 7,
    as_json: Json = False,
) -> None:
    """Make keys and an empty, signed repository."""
    require("publish", "weir keys")
    from release.repository.ceremony import begin
    from release.repository.record import Days

    count = root_count or max(1, len(root_keys or ()))
    if root_threshold > count:
        raise report.BadUse(
            f"--root-threshold {root_threshold} needs at least as many root keys, and there are {count}"
        )
    days = Days(root_days, targets_days, snapshot_days, timestamp_days)
    changed = begin(desk(repository, folder, root_keys), days, count, root_threshold)
    _told(changed, as_json, "begun")
    if not as_json:
        _hint(f"pin nodes to: weir keys export-root --repository {repository} --out root.json")
        _hint("sign anew every day: weir keys refresh (docs/publishing.md has a timer)")
        _hint(f"back up {folder} now" + ("" if root_keys else ", and move its root-*.pem to a disk kept apart"))


@keys.command("status")
def status(repository: Repository, folder: KeyFolder, root_keys: RootFolders = None, as_json: Json = False) -> None:
    """Versions, dates, which private keys are here, and what needs seeing to."""
    require("publish", "weir keys")
    from release.document import plain
    from release.repository.status import status as read

    found = read(repository, key_folders(folder, root_keys), datetime.now(UTC))
    if as_json:
        roles = [
            {**plain({field: getattr(role, field) for field in ("name", "version", "threshold", "keys", "here")}),
             "expires": role.expires.isoformat(), "days_left": round(role.days_left, 2)}
            for role in found.roles
        ]  # fmt: skip
        report.emit({"roles": roles, "signed": plain(found.signed), "warnings": list(found.warnings)})
        return
    for role in found.roles:
        report.out().print(
            f"{role.name:<10} version {role.version:<5} until {role.expires:%Y-%m-%d} ({role.days_left:.1f} days)  "
            f"{role.threshold} of {len(role.keys)} key(s), {len(role.here)} here",
            soft_wrap=True, markup=False,
        )  # fmt: skip
    for warning in found.warnings:
        report.err().print(f"! {warning}", style="yellow", soft_wrap=True, markup=False)


@keys.command("refresh")
def refresh(repository: Repository, folder: KeyFolder, trust_clock: TrustClock = False, as_json: Json = False) -> None:
    """Sign the timestamp anew, and what else is due. For a timer: every day, or more often."""
    require("publish", "weir keys")
    from release.document import plain
    from release.repository.publish import refresh as sign

    done = sign(desk(repository, folder, trust_clock=trust_clock))
    if as_json:
        expires = {role: moment.isoformat() for role, moment in done.expires.items()}
        report.emit({"signed": list(done.signed), "expires": expires, "versions": plain(done.versions),
                     "notes": list(done.notes)})  # fmt: skip
        return
    first = min(done.expires.values())
    report.out().print(f"signed {', '.join(done.signed)}; good until {first:%Y-%m-%d %H:%M} UTC", markup=False)
    _notes(done.notes)


@keys.command("rotate")
def rotate(
    roles: Annotated[list[str], typer.Argument(help="root, targets, snapshot, timestamp, or online for the last two.")],
    repository: Repository,
    folder: KeyFolder,
    root_keys: RootFolders = None,
    drop: Annotated[list[str] | None, typer.Option(help="Key id, or its beginning, to replace; default: all.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="root: replace no key, only renew its date.")] = False,
    root_count: Annotated[int | None, typer.Option(min=1, max=16, help="root: how many keys from now on.")] = None,
    root_threshold: Annotated[int | None, typer.Option(min=1, max=16, help="root: how many must sign.")] = None,
    trust_clock: TrustClock = False,
    as_json: Json = False,
) -> None:
    """Replace keys, signed by the root keys; nodes follow at their next refresh."""
    require("publish", "weir keys")
    from release.repository.ceremony import ONLINE, ROLES
    from release.repository.ceremony import rotate as change

    wanted = list(dict.fromkeys(role for name in roles for role in (ONLINE if name == _ONLINE else (name,))))
    if unknown := [role for role in wanted if role not in ROLES]:
        raise report.BadUse(f"no role {', '.join(unknown)}: name root, targets, snapshot, timestamp or online")
    if wanted != ["root"] and (keep or root_count or root_threshold):
        raise report.BadUse("--keep, --root-count and --root-threshold are for `weir keys rotate root` alone")
    at = desk(repository, folder, root_keys, trust_clock)
    changed = change(
        at, wanted, drop=tuple(drop or ()), keep=keep, root_threshold=root_threshold, root_count=root_count
    )  # fmt: skip
    _told(changed, as_json, "rotated")


@keys.command("recover")
def recover(
    repository: Repository,
    folder: KeyFolder,
    root_keys: RootFolders = None,
    seen: Annotated[str, typer.Option(help="Versions that nodes name: timestamp=9,snapshot=7,targets=5.")] = "",
    node: Annotated[str, typer.Option(help="Read them from a node: its store folder, or http://NODE/repository.")] = "",
    new_online_keys: Annotated[bool, typer.Option("--new-online-keys", help="They were lost or stolen too.")] = False,
    trust_clock: TrustClock = False,
    as_json: Json = False,
) -> None:
    """Bring a repository that was lost, or restored from a backup, past all that nodes have seen."""
    require("publish", "weir keys")
    from release.repository.ceremony import recover as bring
    from release.repository.record import Versions

    given = Versions(**numbers(seen, ("timestamp", "snapshot", "targets", "root")))
    roots: Mapping[int, bytes] = {}
    if node:
        read, roots = _seen_by(node)
        given = given.highest(read)
    changed = bring(
        desk(repository, folder, root_keys, trust_clock), given, new_online_keys=new_online_keys, node_roots=roots
    )  # fmt: skip
    _told(changed, as_json, "recovered")


@keys.command("export-root")
def export_root(
    repository: Annotated[Path | None, typer.Option(envvar="WEIR_REPOSITORY", help="Folder of the repository.")] = None,
    folder: Annotated[Path | None, typer.Option("--keys", envvar="WEIR_KEYS", help="Folder of keys.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: printed.")] = None,
    as_json: Json = False,
) -> None:
    """The newest root, to pin nodes to (an edge's `trusted_root`). It is public; how it gets to a node must be safe."""
    require("publish", "weir keys")
    from release.repository.ceremony import trusted_root

    place = folder or repository
    if place is None:
        raise report.BadUse("name a folder of keys with --keys, or a repository with --repository")
    version, content = trusted_root(place)
    if out is not None:
        out.write_bytes(content)
    if as_json:
        report.emit({"version": version, "out": str(out) if out else None, "root": json.loads(content)})
    elif out is None:
        typer.echo(content.decode())
    else:
        report.out().print(f"root {version} written to {out}", markup=False, soft_wrap=True)


def _seen_by(node: str) -> tuple[Versions, Mapping[int, bytes]]:
    """The versions and roots that a node has, as its store or its HTTP port shows them."""
    from release.disk import Disk
    from release.repository.record import Versions
    from release.repository.seen import seen_at
    from release.trust.kept import Kept
    from release.trust.source import FolderSource

    if is_url(node):
        source = HttpSource(node)
        try:
            return seen_at(source)
        finally:
            source.close()
    store = Path(node)
    for folder in (store / "trust", store):
        if (folder / "metadata").is_dir():
            versions, roots = seen_at(FolderSource(folder))
            noted = Kept(folder, Disk()).seen()  # may be ahead: of a refresh that came only half way
            targets = max(noted.promised, noted.targets)
            return versions.highest(Versions(0, noted.timestamp, noted.snapshot, targets)), roots
    raise report.BadUse(f"--node {node}: no store of a node (it has trust/metadata/)")


def _told(changed: Changed, as_json: bool, word: str) -> None:
    from release.document import plain

    if as_json:
        report.emit({word: True, "keys": plain(changed.keys), "versions": plain(changed.versions),
                     "notes": list(changed.notes)})  # fmt: skip
        return
    versions = changed.versions
    report.out().print(
        f"{word}: root {versions.root}, timestamp {versions.timestamp}, snapshot {versions.snapshot}, "
        f"targets {versions.targets}",
        markup=False,
    )
    for role, ids in changed.keys.items():
        for keyid in ids:
            _hint(f"new {role} key {keyid[:16]}")
    _notes(changed.notes)


def _notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        report.err().print(f"! {note}", style="yellow", soft_wrap=True, markup=False)


def _hint(text: str) -> None:
    report.err().print(text, style="dim", soft_wrap=True, markup=False)
