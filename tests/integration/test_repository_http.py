"""A repository behind real sockets: an honest one through the gateway's port, and one that lies."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from release.repository.ceremony import rotate
from release.trust.client import Catalogue, TrustClient
from release.trust.errors import (
    Absent,
    ClockWrong,
    Damaged,
    Expired,
    FetchFailed,
    Malformed,
    MixedMetadata,
    Replayed,
    TooLong,
    TrustError,
    WrongSignature,
)
from tests.fakes.disk import QuickDisk
from tests.fakes.repository import Site, measured_release
from tests.fakes.tamper import TamperingServer, flipped
from weir.cli.desk import HttpSource
from weir.cli.main import app, main


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.publish("1.0.0")
    return made


@pytest.fixture
def server(site: Site) -> Iterator[TamperingServer]:
    with TamperingServer().running() as running:
        running.take(site.repository)
        yield running


class Node:
    """A trust client that asks the server; `known` must survive whatever it is told."""

    def __init__(self, site: Site, server: TamperingServer) -> None:
        self.site, self.server = site, server
        self.client = TrustClient(site.folder / "node", site.first_root, QuickDisk())

    def refresh(self, **span: float) -> Catalogue:
        with closing(HttpSource(self.server.url)) as source:
            return self.client.refresh(source, self.site.now + timedelta(**span))

    def refused(self, kind: type[TrustError], said: str, **span: float) -> None:
        before = self.client.known(self.site.now)
        with pytest.raises(kind, match=said) as caught:
            self.refresh(**span)
        assert type(caught.value) is kind
        assert self.client.known(self.site.now) == before


def test_every_lie_has_its_own_refusal_and_the_truth_is_taken_after(site: Site, server: TamperingServer) -> None:
    node = Node(site, server)
    assert len(node.refresh().offers) == 1
    old = server.state
    site.publish("1.1.0")
    new = server.take(site.repository)
    timestamp, snapshot, targets = "metadata/timestamp.json", "metadata/3.snapshot.json", "metadata/3.targets.json"

    server.down = True
    node.refused(FetchFailed, "HTTP 503")
    server.honest()
    server.absent = {snapshot}
    node.refused(Absent, "does not exist")
    for path in (timestamp, snapshot, targets):
        server.honest()
        server.lies[path] = lambda content: flipped(content, content.index(b'"expires"') + 12)
        node.refused(WrongSignature if path == timestamp else Damaged, "altered")
        server.lies[path] = lambda content: content[:-20]
        node.refused(Malformed if path == timestamp else Damaged, "truncated")
        server.lies[path] = lambda content: b"[" * 300
        node.refused(Malformed if path == timestamp else Damaged, "truncated")
        server.honest()
        server.endless = {path}
        began = time.monotonic()
        node.refused(TooLong, "sends more than")
        assert time.monotonic() - began < 10
        assert server.sent[path] < 64 << 20
    server.honest()
    server.state = {**new, snapshot: old["metadata/2.snapshot.json"]}
    node.refused(MixedMetadata, "two states")
    server.state = {**new, targets: old["metadata/2.targets.json"]}
    node.refused(MixedMetadata, "two states")
    server.state = new
    node.refused(ClockWrong, "set the clock", days=30_000)
    node.refused(Expired, "weir keys refresh", days=9)
    assert [offer.version for offer in node.refresh().offers] == ["1.0.0", "1.1.0"]
    server.state = old
    node.refused(Replayed, "seen was 3")


def test_a_repository_of_somebody_else_is_refused(site: Site, server: TamperingServer, tmp_path: Path) -> None:
    node = Node(site, server)
    node.refresh()
    thief = Site(tmp_path / "thief")
    rotate(thief.desk, ["root"], keep=True)
    thief.publish("9.0.0")
    server.take(thief.repository)
    node.refused(WrongSignature, "root 2 is not signed")
    server.absent = {"metadata/2.root.json"}
    node.refused(WrongSignature, "the timestamp is not signed")


def test_an_endless_root_is_cut_off(site: Site, server: TamperingServer) -> None:
    node = Node(site, server)
    server.endless = {"metadata/2.root.json"}
    with pytest.raises(TooLong):
        node.refresh()
    assert server.sent["metadata/2.root.json"] < 64 << 20


def test_an_endless_object_is_cut_off(site: Site, server: TamperingServer) -> None:
    offer = Node(site, server).refresh().offers[0]
    server.endless = {offer.path}
    with closing(HttpSource(server.url)) as source, pytest.raises(TooLong):
        source(offer.path, offer.bytes)


def test_the_command_line_from_keys_to_a_mirror(tmp_path: Path, server: TamperingServer) -> None:
    """What docs/publishing.md tells an operator to type."""

    def weir(*arguments: str, code: int = 0) -> dict[str, object]:
        result = CliRunner().invoke(app, [*arguments, "--json"])
        assert result.exit_code == code or result.exception, result.output
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return dict(json.loads(result.stdout.strip().splitlines()[-1]))

    repository, keys = str(tmp_path / "repo"), str(tmp_path / "everyday")
    at = ("--repository", repository, "--keys", keys)
    holders = [value for name in ("anna", "ben", "cem") for value in ("--root-keys", str(tmp_path / name))]
    assert weir("keys", "init", *at, *holders, "--root-threshold", "2")["versions"]["root"] == 1  # type: ignore[index]
    root = str(tmp_path / "root.json")
    weir("keys", "export-root", "--repository", repository, "--out", root)
    measured_release(tmp_path / "one", "tiny", "1.0.0", b"shared" * 100)
    measured_release(tmp_path / "two", "tiny", "1.1.0", b"shared" * 100)
    first = weir("publish", str(tmp_path / "one"), *at)
    assert weir("publish", str(tmp_path / "two"), *at)["shared_bytes"] == 600
    weir("keys", "refresh", *at)
    weir("keys", "rotate", "online", *at, *holders[:4])
    assert weir("keys", "status", *at)["warnings"] == []

    server.take(Path(repository))
    listed = weir("releases", "--repository", server.url, "--root", root)
    assert [row["version"] for row in listed["releases"]] == ["1.0.0", "1.1.0"]  # type: ignore[index]
    bundle, mirror = str(tmp_path / "b.tar"), str(tmp_path / "mirror")
    weir("bundle", "export", str(first["release"]), "--repository", repository, "--out", bundle)
    assert weir("bundle", "import", bundle, "--repository", mirror, "--root", root)["releases"] == [first["release"]]
    here = weir("releases", "--repository", mirror, "--root", root)
    assert [row["here"] for row in here["releases"]] == [True, False]  # type: ignore[index]

    weir("withdraw", str(first["release"]), *at, "--reason", "drill")
    recovered = weir("keys", "recover", *at, "--seen", "timestamp=40,snapshot=30")
    assert recovered["versions"]["timestamp"] == 41  # type: ignore[index]
    server.take(Path(repository))
    again = weir("keys", "recover", *at, "--node", server.url)
    assert again["versions"]["timestamp"] == 42  # type: ignore[index]
    assert weir("releases", "--repository", repository, "--root", root)["withdrawn"] == [first["release"]]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("keys", "recover", "--seen", "nonsense=1"), 2, "write timestamp=9"),
        (("keys", "rotate", "everything"), 2, "name root, targets"),
        (("keys", "rotate", "timestamp", "--keep"), 2, "weir keys rotate root"),
        (("keys", "refresh"), 1, "weir keys init"),
        (("keys", "init", "--root-threshold", "2"), 2, "at least as many root keys"),
    ],
)
def test_bad_use_and_failures_have_their_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    at = ("--repository", str(tmp_path / "r"), "--keys", str(tmp_path / "k"), "--json")
    assert main([*arguments, *at]) == code
    assert said in json.loads(capsys.readouterr().out)["error"]["message"]
