"""A node's trust: what is refused and why, what stays known, and how versions start anew."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from release.repository.ceremony import rotate
from release.trust.catalogue import precedence, read_offers, target_path
from release.trust.client import Catalogue, TrustClient
from release.trust.errors import (
    Absent,
    BadRoot,
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
from tests.fakes.disk import QuickDisk, Steps, every_cut, full
from tests.fakes.repository import NOON, Site
from tests.fakes.tamper import State, flipped, state_of


class Offered:
    """A source over a state, with lies by path; counts what is asked for."""

    def __init__(self, state: State, **lies: Callable[[bytes], bytes]) -> None:
        self.state, self.lies = state, {f"metadata/{name.replace('__', '.')}.json": lie for name, lie in lies.items()}
        self.asked: list[str] = []

    def __call__(self, path: str, most_bytes: int) -> bytes:
        self.asked.append(path)
        if path not in self.state:
            raise Absent(f"no {path}")
        content = self.state[path]
        for name, lie in self.lies.items():
            if path.endswith(name.removeprefix("metadata/")):
                content = lie(content)
        return content


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.publish()
    return made


def names(catalogue: Catalogue | None) -> list[str]:
    return [] if catalogue is None else [f"{offer.model} {offer.version}" for offer in catalogue.offers]


def test_a_node_learns_what_is_offered_and_fetches_nothing_twice(site: Site) -> None:
    node = site.node()
    assert node.known(site.now) is None
    assert names(node.refresh(site.source(), site.now)) == ["tiny 1.0.0"]
    again = Offered(state_of(site.repository))
    assert names(node.refresh(again, site.now)) == ["tiny 1.0.0"]
    assert again.asked == ["metadata/2.root.json", "metadata/timestamp.json"]
    site.publish("1.1.0")
    assert names(node.refresh(site.source(), site.now)) == ["tiny 1.0.0", "tiny 1.1.0"]
    assert names(site.node().known(site.now)) == ["tiny 1.0.0", "tiny 1.1.0"]


def test_the_manifest_is_held_against_its_signature(site: Site) -> None:
    offer = site.node().refresh(site.source(), site.now).offers[0]
    content = (site.repository / offer.path).read_bytes()
    assert offer.manifest(content).id == offer.release
    for wrong in (flipped(content, len(content) // 2), content[:-1], content + b" ", b""):
        with pytest.raises(Damaged, match="not the one signed"):
            offer.manifest(wrong)


@pytest.mark.parametrize("name", ["timestamp", "snapshot", "targets", "root"])
def test_one_flipped_byte_is_refused_with_a_reason(site: Site, name: str) -> None:
    """A flip may leave the meaning whole (the case of a signature's digit); then so is the catalogue."""
    node = site.node()
    before = node.refresh(site.source(), site.now)
    site.publish("1.1.0")
    rotate(site.desk, ["root"], keep=True)
    state = state_of(site.repository)
    path = {"timestamp": "timestamp", "snapshot": "3.snapshot", "targets": "3.targets", "root": "2.root"}[name]
    size = len(state[f"metadata/{path}.json"])
    dice = random.Random(7)
    refused = 0
    for at in sorted(dice.sample(range(size), 80)):

        def lie(content: bytes, at: int = at) -> bytes:
            return flipped(content, at, dice.randrange(8))

        trial = TrustClient(site.folder / f"trial-{at}", site.first_root, QuickDisk())
        try:
            after = trial.refresh(Offered(state, **{path.replace(".", "__"): lie}), site.now)
        except (Damaged, Malformed, WrongSignature, MixedMetadata, Replayed) as error:
            assert len(str(error)) > 40
            refused += 1
        else:
            assert names(after) == ["tiny 1.0.0", "tiny 1.1.0"], at
    assert refused > 55
    assert names(node.known(site.now)) == names(before)
    assert names(node.refresh(Offered(state), site.now)) == ["tiny 1.0.0", "tiny 1.1.0"]


def _deep(_: bytes) -> bytes:
    return b"[" * 60_000


def _spec(content: bytes) -> bytes:
    return content.replace(b'"spec_version":"1.0.31"', b'"spec_version":"2.0.31"')


@pytest.mark.parametrize(
    ("lie", "kinds"),
    [
        (lambda content: content[: len(content) // 2], (Malformed, Damaged)),
        (lambda content: b"", (Malformed, Damaged)),
        (lambda content: b"<html>captive portal</html>", (Malformed, Damaged)),
        (lambda content: b"\xff\xfe\x00", (Malformed, Damaged)),
        (lambda content: b"[]", (Malformed, Damaged)),
        (lambda content: b'{"signed":{},"signatures":[]}', (Malformed, Damaged)),
        (_deep, (Malformed, TooLong)),
        (_spec, (Malformed, Damaged)),
        (lambda content: content.replace(b'"version":', b'"version":1'), (WrongSignature, Damaged, Malformed, TooLong)),
        (lambda content: content + b" " * (6 << 20), (TooLong,)),
    ],
    ids=["cut", "empty", "html", "binary", "list", "hollow", "deep", "spec", "version", "endless"],
)
@pytest.mark.parametrize("name", ["timestamp", "3__snapshot", "3__targets", "2__root"])
def test_what_is_no_metadata_is_refused_and_the_last_catalogue_stays(
    site: Site, name: str, lie: Callable[[bytes], bytes], kinds: tuple[type[TrustError], ...]
) -> None:
    node = site.node()
    node.refresh(site.source(), site.now)
    site.publish("1.1.0")
    rotate(site.desk, ["root"], keep=True)
    with pytest.raises(kinds) as caught:
        node.refresh(Offered(state_of(site.repository), **{name: lie}), site.now)
    assert ":" in str(caught.value)
    assert names(node.known(site.now)) == ["tiny 1.0.0"]
    assert names(node.refresh(site.source(), site.now)) == ["tiny 1.0.0", "tiny 1.1.0"]


def test_metadata_of_another_publisher_is_refused(site: Site, tmp_path: Path) -> None:
    node = site.node()
    node.refresh(site.source(), site.now)
    thief = Site(tmp_path / "thief")
    for _ in range(3):
        thief.refresh()
    with pytest.raises(WrongSignature, match="not signed by 1 of the 1"):
        node.refresh(thief.source(), site.now)
    rotate(thief.desk, ["root"], keep=True)
    with pytest.raises(WrongSignature, match="root 2"):
        node.refresh(thief.source(), site.now)
    assert names(node.known(site.now)) == ["tiny 1.0.0"]


def test_a_role_cannot_sign_for_another(site: Site) -> None:
    state = state_of(site.repository)
    swapped = {**state, "metadata/timestamp.json": state["metadata/2.snapshot.json"]}
    with pytest.raises(Malformed, match="role snapshot"):
        site.node().refresh(Offered(swapped), site.now)


def test_an_older_state_is_refused_and_says_what_was_seen(site: Site) -> None:
    node = site.node()
    old = state_of(site.repository)
    site.publish("1.1.0")
    node.refresh(site.source(), site.now)
    with pytest.raises(Replayed, match=r"version 2, seen was 3.*--seen timestamp=3,snapshot=3,targets=3"):
        node.refresh(Offered(old), site.now)
    assert names(node.known(site.now)) == ["tiny 1.0.0", "tiny 1.1.0"]


def test_an_older_state_is_refused_even_after_a_refresh_that_came_half_way(site: Site) -> None:
    """The timestamp counts as soon as it is verified, whatever happens to the rest."""
    node = site.node()
    node.refresh(site.source(), site.now)
    old = state_of(site.repository)
    site.publish("1.1.0")
    half = {path: content for path, content in state_of(site.repository).items() if "3.snapshot" not in path}
    with pytest.raises(Absent):
        node.refresh(Offered(half), site.now)
    with pytest.raises(Replayed):
        node.refresh(Offered(old), site.now)
    assert names(node.known(site.now)) == ["tiny 1.0.0"]


def test_a_fork_with_the_same_number_is_refused(site: Site, tmp_path: Path) -> None:
    node = site.node()
    backup = state_of(site.repository)
    site.publish("1.1.0")
    node.refresh(site.source(), site.now)
    for newer in (site.repository / "metadata").glob("3.*"):
        newer.unlink()
    for path, content in backup.items():
        (site.repository / path).write_bytes(content)
    (site.keys.folder / "signed.json").unlink()
    site.later(hours=1)
    site.refresh()
    with pytest.raises(Replayed, match="another timestamp of the version 3"):
        node.refresh(site.source(), site.now)


def test_states_that_do_not_belong_together_are_refused(site: Site) -> None:
    node = site.node()
    node.refresh(site.source(), site.now)
    old = state_of(site.repository)
    site.publish("1.1.0")
    new = state_of(site.repository)
    for lie in ("snapshot", "targets"):
        mixed = {**new, f"metadata/3.{lie}.json": old[f"metadata/2.{lie}.json"]}
        with pytest.raises(MixedMetadata, match="two states"):
            node.refresh(Offered(mixed), site.now)
    assert names(node.known(site.now)) == ["tiny 1.0.0"]


def test_a_frozen_repository_is_noticed_when_its_date_passes(site: Site) -> None:
    node = site.node()
    frozen = Offered(state_of(site.repository))
    node.refresh(frozen, site.now)
    node.refresh(frozen, site.now + timedelta(days=6))
    with pytest.raises(Expired, match=r"the timestamp was good until 2026-03-08.*weir keys refresh") as caught:
        node.refresh(frozen, site.now + timedelta(days=8))
    assert not isinstance(caught.value, ClockWrong)
    assert names(node.known(site.now + timedelta(days=8))) == ["tiny 1.0.0"]
    site.later(days=8)
    site.refresh()
    assert names(node.refresh(site.source(), site.now)) == ["tiny 1.0.0"]


@pytest.mark.parametrize(("days", "what"), [(91, "targets"), (366, "root")])
def test_every_role_ends(site: Site, days: int, what: str) -> None:
    node = site.node()
    site.later(days=days)
    (site.keys.folder / "targets-hidden").mkdir()
    for path in site.keys.folder.glob("targets-*.pem"):
        path.rename(site.keys.folder / "targets-hidden" / path.name)
    site.refresh()
    with pytest.raises(Expired, match=f"{what} .*was good until"):
        node.refresh(site.source(), site.now)


def test_a_clock_in_1970_is_survived_with_a_reason(site: Site) -> None:
    node, epoch = site.node(), datetime(1970, 1, 1, tzinfo=UTC)
    catalogue = node.refresh(site.source(), epoch)
    assert names(catalogue) == ["tiny 1.0.0"]
    assert "1970-01-01" in catalogue.clock and "2026-03-01" in catalogue.clock
    assert site.node().known(epoch).clock == catalogue.clock  # type: ignore[union-attr]
    assert node.known(site.now).clock == ""  # type: ignore[union-attr]


def test_a_clock_in_1970_does_not_let_old_metadata_pass(site: Site) -> None:
    """The newest signed time counts on, for metadata that a later one has not replaced."""
    node, epoch = site.node(), datetime(1970, 1, 1, tzinfo=UTC)
    site.later(days=6)
    stale = state_of(site.repository)
    site.refresh()
    node.refresh(site.source(), epoch)
    site.later(days=6)
    site.refresh()
    node.refresh(site.source(), epoch)
    assert node.seen.floor == site.now
    with pytest.raises(Replayed):
        node.refresh(Offered(stale), epoch)


def test_a_clock_in_2099_stops_updates_only_and_is_named(site: Site) -> None:
    node, late = site.node(), datetime(2099, 1, 1, tzinfo=UTC)
    node.refresh(site.source(), site.now)
    with pytest.raises(ClockWrong, match=r"2099-01-01.*signed last: 2026-03-01.*set the clock.*serving goes on"):
        node.refresh(site.source(), late)
    assert names(node.known(late)) == ["tiny 1.0.0"]
    site.later(days=1)
    site.refresh()
    assert names(node.refresh(site.source(), site.now)) == ["tiny 1.0.0"]


def test_a_time_needs_its_zone(site: Site) -> None:
    with pytest.raises(ValueError, match="zone"):
        site.node().refresh(site.source(), datetime(2026, 3, 1))  # noqa: DTZ001


def test_a_source_that_fails_is_no_refusal(site: Site) -> None:
    def down(path: str, most_bytes: int) -> bytes:
        raise FetchFailed("HTTP 503")

    node = site.node()
    node.refresh(site.source(), site.now)
    with pytest.raises(FetchFailed):
        node.refresh(down, site.now)
    assert names(node.known(site.now)) == ["tiny 1.0.0"]


def test_roots_are_followed_one_by_one_from_an_old_pin(site: Site) -> None:
    for _ in range(4):
        rotate(site.desk, ["root"])
    node = site.node()
    assert node.refresh(site.source(), site.now).versions["root"] == 5
    gap = {path: content for path, content in state_of(site.repository).items() if path != "metadata/3.root.json"}
    with pytest.raises(TrustError):
        TrustClient(site.folder / "gap", site.first_root).refresh(
            Offered({**gap, "metadata/3.root.json": gap["metadata/4.root.json"]}), site.now
        )
    assert site.node().refresh(site.source(), site.now).versions["root"] == 5


def test_no_more_roots_are_followed_than_one_refresh_may(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from release.trust import client

    monkeypatch.setattr(client, "MOST_ROTATIONS", 2)
    for _ in range(3):
        rotate(site.desk, ["root"], keep=True)
    assert site.node().refresh(site.source(), site.now).versions["root"] == 3
    assert site.node().refresh(site.source(), site.now).versions["root"] == 4


def test_a_pinned_root_that_is_none_is_refused(tmp_path: Path, site: Site) -> None:
    damaged = json.loads(site.first_root)
    damaged["signed"]["version"] = 7
    for content in (b"", b"{}", json.dumps(damaged).encode(), site.first_root[:-9]):
        with pytest.raises(BadRoot, match="export-root"):
            TrustClient(tmp_path / "new", content)


def test_another_pin_begins_anew(site: Site, tmp_path: Path) -> None:
    site.refresh()
    site.node().refresh(site.source(), site.now)
    other = Site(tmp_path / "other")
    other.publish(name="other")
    node = site.node(root=other.first_root)
    assert node.known(site.now) is None
    assert names(node.refresh(other.source(), site.now)) == ["other 1.0.0"]


def test_a_sibling_verifies_against_what_a_node_keeps(site: Site) -> None:
    """A node's metadata folder is a source like any other."""
    rotate(site.desk, ["timestamp"])
    first = site.node("first")
    first.refresh(site.source(), site.now)
    kept = Offered({f"metadata/{path.name}": path.read_bytes() for path in first.metadata.iterdir()})
    assert names(site.node("second").refresh(kept, site.now)) == ["tiny 1.0.0"]


def test_damage_on_the_nodes_own_disk_costs_a_fetch_and_no_more(site: Site) -> None:
    node = site.node()
    node.refresh(site.source(), site.now)
    for path in node.metadata.iterdir():
        if "root" not in path.name:
            path.write_bytes(flipped(path.read_bytes(), 40))
    fresh = site.node()
    assert fresh.known(site.now) is None
    assert fresh.seen.timestamp == 2
    assert names(fresh.refresh(site.source(), site.now)) == ["tiny 1.0.0"]


@pytest.mark.parametrize("damage", [b"\0\0\0", b"[]", b'{"issued": "yesterday"}', b'{"timestamp": "9"}', b"[" * 9999])
def test_lost_notes_of_what_was_seen_are_read_from_the_set(site: Site, damage: bytes) -> None:
    old = state_of(site.repository)
    site.publish("1.1.0")
    site.node().refresh(site.source(), site.now)
    (site.folder / "node" / "seen.json").write_bytes(damage)
    with pytest.raises(Replayed):
        site.node().refresh(Offered(old), site.now)
    assert site.node().refresh(site.source(), site.now).versions["timestamp"] == 3


def test_an_old_root_offered_as_the_next_one_is_refused(site: Site) -> None:
    state = state_of(site.repository)
    with pytest.raises(Replayed, match="root 1 again"):
        site.node().refresh(Offered({**state, "metadata/2.root.json": state["metadata/1.root.json"]}), site.now)


def test_an_engine_needs_no_tuf() -> None:
    """What reads a release folder must start without the packages that sign."""
    code = (
        "import sys, release.folder, release.listing, release.store, release.trust.errors, release.repository.errors; "
    )
    told = subprocess.run(
        [sys.executable, "-c", code + "print('tuf' in sys.modules, 'cryptography' in sys.modules)"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert told.stdout.split() == ["False", "False"]


def test_a_power_cut_at_any_write_leaves_a_catalogue_and_no_way_back(site: Site) -> None:
    old = state_of(site.repository)
    TrustClient(site.folder / "cut", site.first_root).refresh(Offered(old), NOON)
    rotate(site.desk, ["root"], keep=True)
    site.publish("1.1.0")
    new = state_of(site.repository)

    def work(steps: Steps) -> None:
        TrustClient(site.folder / "cut", site.first_root, QuickDisk(steps)).refresh(Offered(new), NOON)

    cuts = 0
    for _ in every_cut(work):
        cuts += 1
        node = site.node("cut")
        assert names(node.known(NOON))[0] == "tiny 1.0.0"
    assert cuts >= 8
    node = site.node("cut")
    assert names(node.known(NOON)) == ["tiny 1.0.0", "tiny 1.1.0"]
    with pytest.raises(Replayed):
        node.refresh(Offered(old), NOON)


def test_a_full_disk_at_any_write_leaves_the_catalogue(site: Site) -> None:
    old = state_of(site.repository)
    TrustClient(site.folder / "full", site.first_root).refresh(Offered(old), NOON)
    site.publish("1.1.0")
    new = state_of(site.repository)
    for step in range(100):
        steps = Steps(step, full)
        try:
            TrustClient(site.folder / "full", site.first_root, QuickDisk(steps)).refresh(Offered(new), NOON)
        except OSError:
            assert names(site.node("full").known(NOON))[0] == "tiny 1.0.0"
            continue
        break
    assert names(site.node("full").known(NOON)) == ["tiny 1.0.0", "tiny 1.1.0"]


def test_the_newest_is_the_highest_version_and_what_is_withdrawn_is_not_offered(site: Site) -> None:
    from release.repository.publish import withdraw

    site.publish("1.10.0")
    site.publish("1.9.0")
    node = site.node()
    catalogue = node.refresh(site.source(), site.now)
    newest = catalogue.newest("tiny")
    assert newest is not None and newest.version == "1.10.0"
    withdraw(site.desk, newest.release, "answers in riddles")
    after = node.refresh(site.source(), site.now)
    assert after.withdrawn == {newest.release}
    assert after.newest("tiny").version == "1.9.0"  # type: ignore[union-attr]
    assert after.newest("unknown") is None


def test_versions_have_the_order_of_semver() -> None:
    ordered = [
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0",
        "1.0.1",
        "1.10.0",
    ]
    assert sorted(ordered, key=precedence) == ordered
    assert precedence(ordered[0]) < precedence(ordered[-1])


@pytest.mark.parametrize("version", ["9" * 5000 + ".0.0", "1.0.0-" + "9" * 5000, "newest"])
def test_a_signed_version_that_cannot_be_compared_is_refused(version: str) -> None:
    said: dict[str, object] = {"model": "tiny", "version": version, "release": "tiny@x", "precisions": [4], "bytes": 1}
    said["published"] = NOON.isoformat()
    with pytest.raises(Malformed, match="version"):
        read_offers([(target_path("tiny", "tiny@x"), 10, {"sha256": "0" * 64}, said)])
