"""`weir publish`, `weir releases`, `weir withdraw` and `weir bundle`: releases into a repository, out of it, along."""

from __future__ import annotations

import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli import report
from weir.cli.desk import HttpSource, Json, KeyFolder, Repository, TrustClock, desk, is_url
from weir.cli.extras import require

if TYPE_CHECKING:
    from release.trust.catalogue import Offer

bundle = typer.Typer(name="bundle", no_args_is_help=True, help="A repository in one file, carried by hand.")

_ROOT_HELP = "Root to hold everything against (weir keys export-root)."


def publish(
    folder: Annotated[Path, typer.Argument(help="A release folder.", show_default=False)],
    repository: Repository,
    keys: KeyFolder,
    allow_unmeasured: Annotated[
        bool, typer.Option("--allow-unmeasured", help="Even without quality figures or self-tests.")
    ] = False,
    link: Annotated[
        bool, typer.Option("--link", help="Hard links instead of copies: never change the folder after.")
    ] = False,
    trust_clock: TrustClock = False,
    as_json: Json = False,
) -> None:
    """Verify a release in full, store what is new of it, and sign it."""
    require("publish", "weir publish")
    from release.document import plain
    from release.listing import read_manifest
    from release.repository.publish import publish as offer
    from weir.cli.progress import Bars

    total = sum(file.bytes for file in read_manifest(folder).files)
    at = desk(repository, keys, trust_clock=trust_clock)
    with Bars(report.err(), quiet=as_json) as bars:
        bars.start("publish", total, "bytes")
        done = offer(
            at, folder, allow_unmeasured=allow_unmeasured, link=link,
            told=lambda count: bars.advance("publish", count),
        )  # fmt: skip
        bars.finish("publish")
    if as_json:
        report.emit(plain(done))
        return
    report.out().print(done.release, markup=False)
    if done.already:
        _note("it was published already: nothing was signed")
    _note(
        f"{done.stored_bytes:,} bytes stored, {done.shared_bytes:,} shared with earlier releases; targets "
        f"{done.versions.targets}, timestamp {done.versions.timestamp}"
    )
    for note in done.notes:
        _note(f"! {note}")


def releases(
    repository: Annotated[
        str, typer.Option("--repository", envvar="WEIR_REPOSITORY", help="Folder or URL.", show_default=False)
    ],
    root: Annotated[Path | None, typer.Option(help=_ROOT_HELP)] = None,
    as_json: Json = False,
) -> None:
    """What a repository offers."""
    require("publish", "weir releases")
    if is_url(repository):
        offers, withdrawn, issued = _remote(repository, root)
        here: dict[str, bool] = {}
    else:
        offers, withdrawn, issued, here = _local(Path(repository), root)
    rows = [
        {"release": offer.release, "model": offer.model, "version": offer.version, "precisions": list(offer.precisions),
         "bytes": offer.total_bytes, "published": offer.published.isoformat(), **_present(here, offer)}
        for offer in offers
    ]  # fmt: skip
    if as_json:
        report.emit({"releases": rows, "withdrawn": sorted(withdrawn), "issued": issued, "pinned": root is not None})
        return
    for row in rows:
        missing = "" if row.get("here", True) else "  (files not here)"
        report.out().print(
            f"{row['release']}  {'+'.join(map(str, row['precisions']))} bit  {row['bytes']:,} bytes  "
            f"published {row['published'][:16]}{missing}",
            soft_wrap=True, markup=False,
        )  # fmt: skip
    for name in sorted(withdrawn):
        report.out().print(f"{name}  withdrawn", soft_wrap=True, markup=False)
    _note(f"signed {issued}" + ("" if root else "; held against the repository's own root only: --root FILE pins one"))


def withdraw(
    release: Annotated[str, typer.Argument(help="A release id.", show_default=False)],
    repository: Repository,
    keys: KeyFolder,
    reason: Annotated[str, typer.Option(help="Signed with it, for those who ask.")] = "",
    trust_clock: TrustClock = False,
    as_json: Json = False,
) -> None:
    """Tell nodes to leave a release. Its files stay."""
    require("publish", "weir withdraw")
    from release.document import plain
    from release.repository.publish import withdraw as mark

    versions = mark(desk(repository, keys, trust_clock=trust_clock), release, reason)
    if as_json:
        report.emit({"withdrawn": release, "versions": plain(versions)})
        return
    report.out().print(f"{release} is withdrawn; nodes learn of it at their next refresh", markup=False, soft_wrap=True)


@bundle.command("export")
def export(
    wanted: Annotated[list[str], typer.Argument(metavar="RELEASE...", help="Release ids.", show_default=False)],
    repository: Repository,
    out: Annotated[Path, typer.Option("--out", help="The file to write.", show_default=False)],
    root: Annotated[Path | None, typer.Option(help=_ROOT_HELP)] = None,
    as_json: Json = False,
) -> None:
    """Write releases with their signatures into one file."""
    require("publish", "weir bundle")
    from release.repository.carry import write_bundle
    from weir.cli.progress import Bars

    trusted = root.read_bytes() if root else None
    with Bars(report.err(), quiet=as_json) as bars:
        bars.start("bundle", None, "bytes")
        done, expires = write_bundle(
            repository, wanted, out, trusted, told=lambda count: bars.advance("bundle", count)
        )  # fmt: skip
        bars.finish("bundle")
    if as_json:
        report.emit({"out": str(out), "releases": list(done.releases), "files": done.files, "bytes": done.bytes,
                     "expires": expires.isoformat()})  # fmt: skip
        return
    report.out().print(str(out), markup=False, soft_wrap=True)
    _note(f"{done.bytes:,} bytes, good until {expires:%Y-%m-%d %H:%M} UTC: import it before, or export it again")


@bundle.command("import")
def take(
    file: Annotated[Path, typer.Argument(help="A bundle.", show_default=False)],
    root: Annotated[Path, typer.Option(help=_ROOT_HELP, show_default=False)],
    repository: Annotated[
        Path | None, typer.Option(envvar="WEIR_REPOSITORY", help="A folder that nodes are served from.")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="A node's own store_dir; the node may run.")] = None,
    as_json: Json = False,
) -> None:
    """Check a bundle as a node would, and lay it into a folder to serve, or into one node's store."""
    require("publish", "weir bundle")
    from release import intake
    from release.bundle import opened
    from release.repository import mirror
    from release.store import Store
    from weir.cli.progress import Bars

    if store is None and repository is None:
        raise report.BadUse("say where to: --repository DIR (to serve it) or --store DIR (one node's)")
    done: mirror.Imported | intake.Taken
    with opened(file) as source, Bars(report.err(), quiet=as_json) as bars:
        bars.start("import", None, "bytes")
        content, now = root.read_bytes(), datetime.now(UTC)
        told = lambda count: bars.advance("import", count)  # noqa: E731
        if store is not None:
            done = intake.take_in(Store(store, writer="import"), source, content, now, told=told)
        elif repository is not None:
            done = mirror.take_in(source, repository, content, now, told=told)
        bars.finish("import")
    if as_json:
        report.emit({"releases": list(done.releases), "stored_bytes": done.stored_bytes,
                     "shared_bytes": done.shared_bytes, "expires": done.catalogue.expires.isoformat(),
                     "clock": done.catalogue.clock})  # fmt: skip
        return
    for release in done.releases:
        report.out().print(release, markup=False)
    _note(f"{done.stored_bytes:,} bytes stored, {done.shared_bytes:,} were here")
    if done.catalogue.clock:
        _note(f"! {done.catalogue.clock}")


def _local(repository: Path, root: Path | None) -> tuple[list[Offer], frozenset[str], str, dict[str, bool]]:
    from release.repository.carry import complete
    from release.repository.status import listed
    from release.trust.workflow import issued_text

    state, offers, withdrawn = listed(repository, root.read_bytes() if root else None)
    here = {offer.release: complete(repository, offer) for offer in offers}
    return offers, withdrawn, issued_text(state.timestamp), here


def _remote(url: str, root: Path | None) -> tuple[list[Offer], frozenset[str], str]:
    from release.trust.client import TrustClient
    from release.trust.workflow import MOST_BYTES

    with closing(HttpSource(url)) as source, tempfile.TemporaryDirectory(prefix="weir-trust-") as folder:
        pinned = root.read_bytes() if root else source("metadata/1.root.json", MOST_BYTES["root"])
        found = TrustClient(Path(folder), pinned).refresh(source, datetime.now(UTC))
    return list(found.offers), found.withdrawn, found.issued.isoformat()


def _present(here: dict[str, bool], offer: Offer) -> dict[str, Any]:
    return {"here": here[offer.release]} if offer.release in here else {}


def _note(text: str) -> None:
    report.err().print(text, style="dim", soft_wrap=True, markup=False)
