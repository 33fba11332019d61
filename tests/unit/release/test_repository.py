"""A publisher's side: what is stored and shared, what is refused, and that nothing is ever half done."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from release.errors import CorruptRelease, OutOfSpace
from release.manifest import MANIFEST_NAME, PLANE_LO, graph_name, read, write
from release.repository.ceremony import begin, recover, rotate, trusted_root
from release.repository.errors import (
    Busy,
    ClockDoubtful,
    KeyMissing,
    NoRepository,
    NotFit,
    RepositoryError,
    Restored,
)
from release.repository.keys import Keys
from release.repository.publish import publish, refresh, withdraw
from release.repository.record import Days, Versions
from release.repository.session import locked
from release.repository.status import listed, status
from release.trust.errors import Replayed, TrustError, WrongSignature
from tests.fakes.disk import QuickDisk, Steps, every_cut, full
from tests.fakes.releases import write_release
from tests.fakes.repository import Site, measured_release
from tests.fakes.tamper import flipped, state_of

SHARED = b"residual " * 1000


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def released(site: Site) -> list[str]:
    return [offer.version for offer in site.node("reader").refresh(site.source(), site.now).offers]


def test_what_two_releases_share_is_stored_once(site: Site) -> None:
    first = site.publish("1.0.0", shared=SHARED)
    second = site.publish("1.1.0", shared=SHARED)
    assert first.shared_bytes == 0
    assert second.shared_bytes == len(SHARED)
    assert second.stored_bytes < second.total_bytes - len(SHARED) + 10_000
    objects = [content for path, content in state_of(site.repository).items() if path.startswith("objects/")]
    assert objects.count(SHARED) == 1
    assert released(site) == ["1.0.0", "1.1.0"]


def test_publishing_again_signs_nothing(site: Site) -> None:
    site.publish()
    before = state_of(site.repository)
    again = publish(site.desk, site.folder / "releases" / "tiny-1.0.0")
    assert again.already and again.stored_bytes == 0
    assert state_of(site.repository) == before


def test_bytes_are_told_as_they_are_done(site: Site) -> None:
    told: list[int] = []
    done = publish(site.desk, site.release(shared=SHARED), told=told.append)
    assert sum(told) == done.stored_bytes + done.shared_bytes >= done.total_bytes


def test_an_unmeasured_release_is_refused_unless_told(site: Site) -> None:
    folder = site.folder / "raw"
    write_release(folder)
    with pytest.raises(NotFit, match=r"lacks quality figures of 4 bits.*self-test of 8 bits.*--allow-unmeasured"):
        publish(site.desk, folder)
    assert not publish(site.desk, folder, allow_unmeasured=True).already


def test_how_far_weights_moved_is_no_measurement(site: Site) -> None:
    folder = site.release()
    manifest = read((folder / MANIFEST_NAME).read_bytes())
    moved = tuple(dataclasses.replace(figure, name="relative_weight_error") for figure in manifest.quality)
    (folder / MANIFEST_NAME).write_text(write(dataclasses.replace(manifest, quality=moved)))
    with pytest.raises(NotFit, match="lacks quality figures of 4 bits, quality figures of 8 bits: "):
        publish(site.desk, folder)


@pytest.mark.parametrize("link", [False, True])
def test_a_damaged_release_is_refused_and_nothing_changes(site: Site, link: bool) -> None:
    site.publish("1.0.0", shared=SHARED)
    folder = site.release("1.1.0", shared=SHARED)
    before = state_of(site.repository)
    for name in (PLANE_LO, graph_name(4)):
        sound = (folder / name).read_bytes()
        for damaged in (flipped(sound, 3), sound[:-1], sound + b"x"):
            (folder / name).write_bytes(damaged)
            with pytest.raises(CorruptRelease, match=name.replace(".", r"\.")):
                publish(site.desk, folder, link=link)
        (folder / name).unlink()
        with pytest.raises((CorruptRelease, OSError)):
            publish(site.desk, folder, link=link)
        (folder / name).write_bytes(sound)
    assert state_of(site.repository) == before
    assert not (site.repository / ".staging").exists()


def test_a_damaged_object_is_replaced_by_a_sound_one(site: Site) -> None:
    site.publish("1.0.0", shared=SHARED)
    path = next(site.repository / path for path, content in state_of(site.repository).items() if content == SHARED)
    path.write_bytes(flipped(SHARED, 7))
    assert site.publish("1.1.0", shared=SHARED).shared_bytes == 0
    assert path.read_bytes() == SHARED


def test_links_share_the_bytes(site: Site) -> None:
    folder = site.release(shared=SHARED)
    publish(site.desk, folder, link=True)
    place = next(site.repository / path for path, content in state_of(site.repository).items() if content == SHARED)
    assert place.samefile(folder / PLANE_LO)


def test_a_version_names_one_build(site: Site) -> None:
    first = site.publish("1.0.0")
    other = site.folder / "other"
    measured_release(other, "tiny", "1.0.0", b"another build")
    with pytest.raises(NotFit, match=r"version 1\.0\.0 of tiny is published already, as tiny@1\.0\.0\+"):
        publish(site.desk, other)
    withdraw(site.desk, first.release)
    assert not publish(site.desk, other).already


def test_what_is_withdrawn_can_be_published_again(site: Site) -> None:
    first = site.publish("1.0.0")
    with pytest.raises(NotFit, match="published: tiny@"):
        withdraw(site.desk, "tiny@9.9.9+000000000000")
    withdraw(site.desk, first.release, "wrong tokenizer")
    assert released(site) == []
    assert listed(site.repository)[2] == {first.release}
    publish(site.desk, site.folder / "releases" / "tiny-1.0.0")
    assert released(site) == ["1.0.0"]


def test_publishers_take_turns(site: Site) -> None:
    folders = [site.release(f"1.{number}.0", shared=SHARED) for number in range(4)]
    faults: list[BaseException] = []

    def work(folder: Path) -> None:
        try:
            publish(site.desk, folder)
        except BaseException as error:  # noqa: BLE001 - told below
            faults.append(error)

    threads = [threading.Thread(target=work, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not faults
    assert released(site) == ["1.0.0", "1.1.0", "1.2.0", "1.3.0"]


def test_a_repository_that_is_busy_says_so(site: Site) -> None:
    with locked(site.repository, 1.0), pytest.raises(Busy, match="another publisher"):
        publish(dataclasses.replace(site.desk, wait_s=0.2), site.release())


def test_a_full_disk_at_any_write_leaves_the_repository_as_it_was(site: Site) -> None:
    site.publish("1.0.0", shared=SHARED)
    folder = site.release("1.1.0", shared=SHARED)
    before = state_of(site.repository)
    for step in range(200):
        site.disk = QuickDisk(Steps(step, full))
        try:
            publish(site.desk, folder)
        except OutOfSpace:
            site.disk = QuickDisk()
            now = state_of(site.repository)
            if now != before:  # the timestamp was in place already: then it is published
                assert released(site) == ["1.0.0", "1.1.0"]
                break
            assert released(site) == ["1.0.0"]
            continue
        break
    assert step > 10
    site.disk = QuickDisk()
    publish(site.desk, folder)
    assert released(site) == ["1.0.0", "1.1.0"]


def test_no_room_is_noticed_before_anything_is_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = site.release()
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("release.repository.shelf.shutil.disk_usage", lambda _: usage)
    before = state_of(site.repository)
    with pytest.raises(OutOfSpace, match="1000 are free"):
        publish(site.desk, folder)
    assert state_of(site.repository) == before


def test_a_power_cut_at_any_write_leaves_what_nodes_can_read(site: Site) -> None:
    site.publish("1.0.0", shared=SHARED)
    folder = site.release("1.1.0", shared=SHARED)

    def work(steps: Steps) -> None:
        site.disk = QuickDisk(steps)
        publish(site.desk, folder)

    for _ in every_cut(work):
        assert released(site)[0] == "1.0.0"
    assert released(site) == ["1.0.0", "1.1.0"]
    assert not (site.repository / ".staging").exists()


def test_a_power_cut_while_keys_change_leaves_a_repository_that_can_be_signed(site: Site) -> None:
    site.publish()

    def work(steps: Steps) -> None:
        site.disk = QuickDisk(steps)
        desk = dataclasses.replace(site.desk, keys=dataclasses.replace(site.keys, disk=QuickDisk(steps)))
        rotate(desk, ["timestamp", "snapshot"])

    cuts = 0
    for _ in every_cut(work):
        cuts += 1
        site.disk = QuickDisk()
        try:
            refresh(site.desk)
        except Restored:
            recover(site.desk, Versions())
        assert released(site) == ["1.0.0"]
    assert cuts > 10


# --- keys


def test_private_keys_are_for_their_owner_alone_and_never_shown(site: Site) -> None:
    secret = "correct horse battery staple"
    keys = dataclasses.replace(site.keys, folder=site.folder / "sealed", root_folders=(), passphrase=secret)
    desk = dataclasses.replace(site.desk, keys=keys, repository=site.folder / "sealed-repository")
    begin(desk, Days())
    files = list(keys.folder.glob("*.pem"))
    assert len(files) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE(keys.folder.stat().st_mode) == 0o700
    assert all(b"ENCRYPTED" in path.read_bytes() for path in files)
    assert secret not in repr(keys) + repr(desk)
    for wrong in (None, "guess"):
        with pytest.raises(KeyMissing, match="WEIR_KEY_PASSPHRASE") as caught:
            refresh(dataclasses.replace(desk, keys=dataclasses.replace(keys, passphrase=wrong)))
        assert secret not in str(caught.value) and "guess" not in str(caught.value)
    assert refresh(desk).versions.timestamp == 2


def test_a_key_that_lies_open_is_not_used(site: Site) -> None:
    path = next(site.keys.folder.glob("timestamp-*.pem"))
    path.chmod(0o644)
    assert any("may be read by others" in warning for warning in status(site.repository, site.keys, site.now).warnings)
    with pytest.raises(KeyMissing, match="chmod 600"):
        site.refresh()


def test_keys_of_another_repository_sign_nothing(site: Site, tmp_path: Path) -> None:
    other = Site(tmp_path / "other")
    with pytest.raises(NoRepository, match="not signed"):
        refresh(dataclasses.replace(site.desk, keys=other.keys))
    with pytest.raises(NoRepository, match="already"):
        begin(site.desk, Days())
    with pytest.raises(NoRepository, match="weir keys init"):
        refresh(dataclasses.replace(site.desk, keys=Keys(tmp_path / "nothing")))


def test_metadata_that_was_tampered_with_is_not_signed_again(site: Site) -> None:
    """Whoever can write to the folder must not have their entry signed by the next publisher."""
    site.publish()
    path = site.repository / "metadata" / "2.targets.json"
    document = json.loads(path.read_bytes())
    document["signed"]["targets"]["evil/evil@1.0.0+0/manifest.json"] = {"length": 1, "hashes": {"sha256": "0" * 64}}
    path.write_text(json.dumps(document))
    with pytest.raises(RepositoryError):
        site.publish("1.1.0")


def test_a_root_of_several_holders_needs_enough_of_them(tmp_path: Path) -> None:
    site = Site(tmp_path)
    holders = [tmp_path / name for name in ("anna", "ben", "cem", "dina")]
    keys = Keys(tmp_path / "k", tuple(holders[:3]), disk=QuickDisk())
    desk = dataclasses.replace(site.desk, repository=tmp_path / "r", keys=keys)
    begin(desk, Days(), 3, 2)
    assert [len(list(holder.glob("root-*.pem"))) for holder in holders[:3]] == [1, 1, 1]
    pinned = trusted_root(tmp_path / "r")[1]

    def at(*present: Path) -> object:
        return dataclasses.replace(desk, keys=dataclasses.replace(keys, root_folders=present))

    before = state_of(tmp_path / "r")
    with pytest.raises(KeyMissing, match="needs 2 of its 3"):
        rotate(at(holders[0]), ["timestamp"])  # type: ignore[arg-type]
    assert state_of(tmp_path / "r") == before
    rotate(at(holders[0], holders[2]), ["timestamp"])  # type: ignore[arg-type]
    # Cem leaves, Dina comes: the new root needs two of the old holders and two of the new.
    gone = next(holders[2].glob("root-*.pem")).name.removeprefix("root-").removesuffix(".pem")
    changed = rotate(at(holders[0], holders[1], holders[3]), ["root"], drop=[gone])  # type: ignore[arg-type]
    assert changed.versions.root == 3
    assert len(list(holders[3].glob("root-*.pem"))) == 1
    with pytest.raises(KeyMissing):
        rotate(at(holders[2]), ["timestamp"])  # type: ignore[arg-type]
    rotate(at(holders[0], holders[1], holders[3]), ["root"], keep=True, root_threshold=3)  # type: ignore[arg-type]
    site.repository = tmp_path / "r"
    assert site.node("pinned-long-ago", pinned).refresh(site.source(), site.now).versions["root"] == 4
    with pytest.raises(KeyMissing, match="needs 3 of its 3"):
        rotate(at(holders[1], holders[3]), ["timestamp"])  # type: ignore[arg-type]


def test_a_threshold_nobody_can_reach_is_refused(site: Site) -> None:
    for count, threshold in ((1, 2), (17, 1)):
        with pytest.raises(KeyMissing):
            begin(dataclasses.replace(site.desk, repository=site.folder / "x", keys=Keys(site.folder / "y")),
                  Days(), count, threshold)  # fmt: skip
    with pytest.raises(KeyMissing, match="--root-count"):
        rotate(site.desk, ["root"], keep=True, root_threshold=2)
    with pytest.raises(KeyMissing, match="no root key begins with"):
        rotate(site.desk, ["root"], drop=["zz"])


# --- refreshing


def test_a_timer_signs_what_is_due(site: Site) -> None:
    site.publish()
    node = site.node()
    for day in range(3, 200, 3):
        site.later(days=3)
        done = refresh(site.desk)
        assert done.signed[0] == "timestamp"
        assert node.refresh(site.source(), site.now).offers, day
    assert done.versions.targets > 3
    assert not done.notes
    site.later(days=140)
    assert any("rotate root --keep" in note for note in refresh(site.desk).notes)
    rotate(site.desk, ["root"], keep=True)
    assert not refresh(site.desk).notes
    assert node.refresh(site.source(), site.now).offers


def test_old_states_are_cleared_away_and_roots_are_not(site: Site) -> None:
    for _ in range(25):
        rotate(site.desk, ["root"], keep=True)
        site.later(days=4)
        site.refresh()
    names = [path.name for path in (site.repository / "metadata").iterdir()]
    assert sum("snapshot" in name for name in names) == 20
    assert sum("root" in name for name in names) == 26
    assert site.node().refresh(site.source(), site.now).versions["root"] == 26


def test_a_timer_without_the_targets_key_says_when_it_is_needed(site: Site) -> None:
    site.publish()
    key = next(site.keys.folder.glob("targets-*.pem"))
    key.rename(site.folder / key.name)
    site.later(days=70)
    done = refresh(site.desk)
    assert "targets" not in done.signed
    assert any("their key is not here" in note for note in done.notes)
    (site.folder / key.name).rename(key)
    assert "targets" in refresh(site.desk).signed


def test_a_clock_that_cannot_be_right_signs_nothing(site: Site) -> None:
    """What is signed is a time that nodes believe."""
    site.publish()
    before = state_of(site.repository)
    for wrong in (datetime(1970, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)):
        with pytest.raises(ClockDoubtful, match="--trust-clock"):
            refresh(dataclasses.replace(site.desk, now=wrong))
    assert state_of(site.repository) == before
    refresh(dataclasses.replace(site.desk, now=datetime(2028, 1, 1, tzinfo=UTC), trust_clock=True))


def test_status_says_what_needs_seeing_to(site: Site) -> None:
    assert status(site.repository, site.keys, site.now).warnings == ()
    later = status(site.repository, site.keys, datetime(2026, 3, 7, tzinfo=UTC))
    assert [warning.split()[0] for warning in later.warnings] == ["snapshot", "timestamp"]
    beside = dataclasses.replace(site.keys, root_folders=())
    for path in site.keys.root_folders[0].glob("*.pem"):
        path.rename(site.keys.folder / path.name)
    assert any("kept apart" in warning for warning in status(site.repository, beside, site.now).warnings)


# --- drills (docs/publishing.md)


def test_drill_online_keys_stolen(site: Site) -> None:
    """Nodes that the thief brought to an absurd version follow the new keys at their next refresh."""
    site.publish("1.0.0")
    honest = state_of(site.repository)
    node = site.node()
    node.refresh(site.source(), site.now)
    # The thief signs a timestamp and a snapshot far ahead; targets they cannot sign.
    thief = dataclasses.replace(site.desk, trust_clock=True, now=datetime(2026, 3, 2, tzinfo=UTC))
    from release.repository.session import opened

    with opened(thief) as session:
        session.lay(snapshot=True, floor=Versions(timestamp=2**40, snapshot=2**40))
    assert node.refresh(site.source(), site.now).versions["timestamp"] == 2**40 + 1
    for path in (site.repository / "metadata").iterdir():
        path.unlink()
    for path, content in honest.items():
        (site.repository / path).write_bytes(content)
    (site.keys.folder / "signed.json").unlink()
    with pytest.raises(Replayed):
        node.refresh(site.source(), site.now)
    # The step of the drill.
    rotate(site.desk, ["timestamp", "snapshot"])
    catalogue = node.refresh(site.source(), site.now)
    assert catalogue.versions == {"root": 2, "timestamp": 3, "snapshot": 3, "targets": 2}
    assert [offer.version for offer in catalogue.offers] == ["1.0.0"]
    # The stolen keys are worth nothing now.
    with pytest.raises((WrongSignature, TrustError)):
        node.refresh(lambda path, most: honest.get(path) or site.source()(path, most), site.now)


def test_drill_a_thief_who_signed_a_far_date_is_forgotten(site: Site) -> None:
    site.publish()
    node = site.node()
    far = dataclasses.replace(site.desk, trust_clock=True, now=datetime(2098, 1, 1, tzinfo=UTC))
    refresh(far)
    assert node.refresh(site.source(), site.now).clock != ""
    rotate(dataclasses.replace(site.desk, trust_clock=True), ["timestamp", "snapshot", "targets"])
    assert node.refresh(site.source(), site.now).clock == ""


def test_drill_online_key_lost(site: Site) -> None:
    site.publish("1.0.0")
    node = site.node()
    node.refresh(site.source(), site.now)
    for role in ("timestamp", "snapshot"):
        next(site.keys.folder.glob(f"{role}-*.pem")).unlink()
    with pytest.raises(KeyMissing, match="timestamp-"):
        site.refresh()
    rotate(site.desk, ["timestamp", "snapshot"])
    site.publish("1.1.0")
    assert len(node.refresh(site.source(), site.now).offers) == 2


def test_drill_targets_key_stolen(site: Site) -> None:
    site.publish("1.0.0")
    node = site.node()
    node.refresh(site.source(), site.now)
    rotate(site.desk, ["targets", "snapshot", "timestamp"])
    assert node.refresh(site.source(), site.now).versions == {"root": 2, "timestamp": 3, "snapshot": 3, "targets": 3}


def _restore(site: Site, backup: dict[str, bytes]) -> None:
    for path in (site.repository / "metadata").iterdir():
        path.unlink()
    for path, content in backup.items():
        (site.repository / path).write_bytes(content)


@pytest.mark.parametrize("keys_too", [False, True], ids=["keys-kept", "keys-from-the-backup-too"])
def test_drill_registry_restored_from_an_old_backup(site: Site, keys_too: bool) -> None:
    site.publish("1.0.0")
    backup = state_of(site.repository)
    signed = (site.keys.folder / "signed.json").read_bytes()
    site.publish("1.1.0")
    site.later(days=1)
    site.refresh()
    node = site.node()
    node.refresh(site.source(), site.now)

    _restore(site, backup)
    if keys_too:
        (site.keys.folder / "signed.json").write_bytes(signed)
        site.refresh()
    else:  # the publisher's own box notices
        with pytest.raises(Restored, match=r"gone back in time.*timestamp 2 \(signed: 4\).*weir keys recover"):
            site.refresh()
        with pytest.raises(Restored):
            site.publish("1.2.0")
        assert any("gone back in time" in warning for warning in status(site.repository, site.keys, site.now).warnings)
    with pytest.raises(Replayed, match="--seen timestamp=4,snapshot=3,targets=3"):
        node.refresh(site.source(), site.now)
    assert len(node.known(site.now).offers) == 2  # type: ignore[union-attr]

    recover(site.desk, Versions(timestamp=4, snapshot=3, targets=3) if keys_too else Versions())
    assert [offer.version for offer in node.refresh(site.source(), site.now).offers] == ["1.0.0"]
    publish(site.desk, site.folder / "releases" / "tiny-1.1.0")
    assert len(node.refresh(site.source(), site.now).offers) == 2


def test_drill_registry_restored_to_before_a_change_of_keys(site: Site) -> None:
    site.publish("1.0.0")
    backup = state_of(site.repository)
    rotate(site.desk, ["root"])
    rotate(site.desk, ["timestamp", "snapshot"])
    node = site.node()
    node.refresh(site.source(), site.now)
    _restore(site, backup)
    with pytest.raises(Restored, match=r"root 1 \(signed: 3\)"):
        site.refresh()
    recover(site.desk, Versions())
    assert node.refresh(site.source(), site.now).versions["root"] == 3
    assert site.node("new").refresh(site.source(), site.now).versions["root"] == 3


def test_drill_roots_lost_with_the_keys_folder_come_back_from_a_node(site: Site) -> None:
    site.publish("1.0.0")
    backup, old_keys = state_of(site.repository), {path.name for path in site.keys.folder.iterdir()}
    rotate(site.desk, ["root"], keep=True)
    node = site.node()
    node.refresh(site.source(), site.now)
    _restore(site, backup)
    for path in site.keys.folder.iterdir():
        if path.is_file() and path.name not in old_keys:
            path.unlink()
    (site.keys.folder / "signed.json").unlink()
    with pytest.raises(NoRepository, match=r"2\.root\.json from a node"):
        recover(site.desk, Versions(root=2, timestamp=3))
    from release.repository.seen import seen_at

    kept = {f"metadata/{path.name}": path.read_bytes() for path in node.metadata.iterdir()}
    versions, roots = seen_at(_Kept(kept))
    recover(site.desk, versions, node_roots=roots)
    assert node.refresh(site.source(), site.now).versions["root"] == 2


def test_drill_repository_lost_altogether(site: Site) -> None:
    site.publish("1.0.0")
    node = site.node()
    node.refresh(site.source(), site.now)
    for path in state_of(site.repository):
        (site.repository / path).unlink()
    changed = recover(site.desk, Versions())
    assert any("publish every release again" in note for note in changed.notes)
    publish(site.desk, site.folder / "releases" / "tiny-1.0.0")
    assert len(node.refresh(site.source(), site.now).offers) == 1


def test_recovering_does_not_leap_where_a_thief_leads(site: Site) -> None:
    with pytest.raises(NoRepository, match="--new-online-keys"):
        recover(site.desk, Versions(timestamp=2**40))


class _Kept:
    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def __call__(self, path: str, most_bytes: int) -> bytes:
        from release.trust.errors import Absent

        if path not in self.files:
            raise Absent(path)
        return self.files[path]


def test_a_folder_of_keys_that_cannot_be_written_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(operation: str, path: Path) -> None:
        if path.parent == site.keys.folder:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    site.disk = QuickDisk(forbid)
    done = publish(site.desk, site.release())
    assert any("will not be noticed" in note for note in done.notes)
