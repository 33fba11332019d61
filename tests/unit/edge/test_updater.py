"""The updater against servers that misbehave, disks that are full, releases that are wrong: over real sockets."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from edge.updater.parts import UpdaterSettings
from edge.updater.sources import Bounds, HttpSource
from release.folder import describe_file, open_release
from release.manifest import MANIFEST_NAME, PLANE_HI, PLANE_LO, Manifest, read, write
from release.repository.publish import publish, withdraw
from router.transfer import TransferSettings
from tests.fakes.range_server import FAULTS, RangeServer
from tests.fakes.releases import write_release
from tests.fakes.repository import Site
from tests.fakes.updating import UpdatingNode, http

CHUNK = 4096


@dataclasses.dataclass
class Shop:
    """A signed repository of releases without a model, in small chunks."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.site = Site(self.folder, datetime.now(UTC))
        self.root = self.folder / "root.json"
        self.root.write_bytes(self.site.first_root)

    @property
    def repository(self) -> Path:
        return self.site.repository

    def publish(self, version: str = "1.0.0", like: str = "", precisions: tuple[int, ...] = (4, 8)) -> Manifest:
        """`like` is a version whose planes it has."""
        folder = self.folder / "built" / version
        manifest = write_release(folder, version=version)
        for name, size in ((PLANE_HI, 10 * CHUNK - 7), (PLANE_LO, 5 * CHUNK + 1)):
            (folder / name).write_bytes(random.Random(f"{like or version} {name}").randbytes(size))
        files = tuple(describe_file(folder / entry.name, CHUNK) for entry in manifest.files)
        (folder / MANIFEST_NAME).write_text(write(dataclasses.replace(manifest, files=files, precisions=precisions)))
        publish(self.site.desk, folder, allow_unmeasured=True)
        return read((folder / MANIFEST_NAME).read_bytes())


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop")


@pytest.fixture
def server(shop: Shop) -> Iterator[RangeServer]:
    with RangeServer(shop.repository).running() as running:
        yield running


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def node(tmp_path: Path, shop: Shop, *sources: object, **given: object) -> UpdatingNode:
    return UpdatingNode(tmp_path / "store", shop.root, sources, **given)  # type: ignore[arg-type]


async def test_a_release_is_fetched_in_two_parts_and_offered(tmp_path: Path, shop: Shop, server: RangeServer) -> None:
    manifest = shop.publish()
    made = node(tmp_path, shop, http(server.url))
    await made.run_until(lambda: len(made.events.of("TransferFinished")) == 2 and made.slots.trial == manifest.id)
    assert made.holds(manifest)
    assert open_release(made.store.folder(manifest.id)).precisions == (4, 8)
    assert [asked.end - asked.first for asked in server.objects() if asked.end - asked.first > CHUNK] == []
    assert [event.part for event in made.events.of("TransferFinished")] == ["four", "eight"]  # type: ignore[union-attr]


async def test_a_folder_is_a_repository_too(tmp_path: Path, shop: Shop) -> None:
    manifest = shop.publish()
    made = node(tmp_path, shop, str(shop.repository))
    await made.run_until(lambda: made.holds(manifest))


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_server_that_misbehaves_with_files_is_survived(
    tmp_path: Path, shop: Shop, server: RangeServer, fault: str
) -> None:
    """From such a sibling nothing comes, or what comes is right; the repository brings the rest."""
    manifest = shop.publish()
    odd = RangeServer(shop.repository, fault=lambda path: fault if "/objects/" in path else "")
    with odd.running():
        made = node(tmp_path, shop, http(odd.url, costs=False), http(server.url))
        await made.run_until(lambda: made.holds(manifest), 60)
    assert open_release(made.store.folder(manifest.id)).precisions == (4, 8)
    refused = {event.source for event in made.events.of("TransferRefused")}  # type: ignore[union-attr]
    assert odd.url in refused or fault in ("no_range", "absent", "truncated", "endless")


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_server_that_misbehaves_with_metadata_is_survived(
    tmp_path: Path, shop: Shop, server: RangeServer, fault: str
) -> None:
    manifest = shop.publish()
    odd = RangeServer(shop.repository, fault=lambda path: fault if "/metadata/" in path else "")
    with odd.running():
        made = node(tmp_path, shop, http(server.url), http(odd.url))  # metadata is asked of the last one first
        await made.run_until(lambda: made.holds(manifest), 60)
    refused = [event.error for event in made.events.of("CatalogueRefused")]  # type: ignore[union-attr]
    assert refused or fault in ("no_range", "wrong_range", "trickle", "endless")


@pytest.mark.parametrize("fault", ["busy", "truncated", "no_range", "silent"])
async def test_a_lone_server_with_lapses_brings_it_all_the_same(tmp_path: Path, shop: Shop, fault: str) -> None:
    manifest, lapses = shop.publish(), random.Random(5)
    odd = RangeServer(
        shop.repository, fault=lambda path: fault if "/objects/" in path and lapses.random() < 0.3 else ""
    )
    with odd.running():
        made = node(tmp_path, shop, http(odd.url))
        await made.run_until(lambda: made.holds(manifest), 60)
    assert open_release(made.store.folder(manifest.id)).precisions == (4, 8)


def _flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def _names(manifest: Manifest) -> list[str]:
    return [entry.name for entry in manifest.files]


@pytest.mark.parametrize("spoil", [_flip, lambda content: content[:-1]], ids=["a flipped byte", "truncated"])
@pytest.mark.parametrize("index", range(7))
async def test_no_file_that_was_changed_is_ever_linked(tmp_path: Path, shop: Shop, index: int, spoil: object) -> None:
    """Each file of a release in turn, and its manifest. What served before is still wanted, with a reason told."""
    old = shop.publish("1.0.0")
    made = node(tmp_path, shop, str(shop.repository))
    await made.run_until(lambda: made.holds(old))
    new = shop.publish("2.0.0")
    names = [*_names(new), MANIFEST_NAME]
    text = (shop.folder / "built" / "2.0.0" / MANIFEST_NAME).read_bytes()
    digest = {MANIFEST_NAME: hashlib.sha256(text).hexdigest()}
    digest |= {entry.name: entry.sha256 for entry in new.files}
    wrong = RangeServer(
        shop.repository,
        changed=lambda path, content: spoil(content) if path.endswith(digest[names[index]]) else content,  # type: ignore[operator]
    )
    with wrong.running() as server:
        made = node(tmp_path, shop, http(server.url), serving=old.id)
        made.slot_file.change("tiny", lambda slots: slots.proved(old.id, 4))
        second = names[index] in (PLANE_LO, "graph.8.onnx")
        reached = new.id if second else old.id
        await made.run_until(lambda: bool(made.events.of("ReleaseKept")) and made.engine.model.release == reached, 30)
    assert made.holds(new, all_of_it=False) is second
    for found in made.store.found():
        assert open_release(found.path).precisions == ((4, 8) if found.manifest.id == old.id else (4,))
    assert "ReleaseReturned" not in {type(event).__name__ for event in made.events.seen}
    assert names[index] in made.events.of("ReleaseKept")[0].message or names[index] == MANIFEST_NAME  # type: ignore[union-attr]


async def test_siblings_are_asked_first_and_the_repository_for_what_they_lack(
    tmp_path: Path, shop: Shop, server: RangeServer
) -> None:
    manifest = shop.publish()
    lacking = manifest.file(PLANE_HI).sha256
    sibling = RangeServer(shop.repository, fault=lambda path: "absent" if path.endswith(lacking) else "")
    with sibling.running():
        made = node(tmp_path, shop, http(sibling.url, costs=False), http(server.url))
        await made.run_until(lambda: made.holds(manifest))
    assert {asked.path.rpartition("/")[2] for asked in server.objects()} == {lacking}
    # Only what came over the link to the repository is spent.
    objects = sum(asked.sent for asked in server.objects())
    metadata = sum(asked.sent for asked in server.asked if "/metadata/" in asked.path)
    assert objects <= made.updater.status.spent_today_bytes <= objects + metadata


async def test_the_days_budget_ends_a_download_until_the_next_day(
    tmp_path: Path, shop: Shop, server: RangeServer
) -> None:
    manifest = shop.publish()
    settings = UpdaterSettings(transfer=TransferSettings(bytes_per_day=24 * CHUNK), interval_s=60)
    day = [datetime.now(UTC)]
    made = node(tmp_path, shop, http(server.url), settings=settings, now=lambda: day[0])
    made.updater._parts.ledger.add(16 * CHUNK)  # spent earlier today
    await made.run_until(lambda: "budget_spent" in made.updater.status.plan)
    assert sum(asked.sent for asked in server.objects()) <= 8 * CHUNK
    again = node(tmp_path, shop, http(server.url), settings=settings, now=lambda: day[0])
    assert again.updater.status.spent_today_bytes >= 20 * CHUNK
    day[0] += timedelta(days=1)
    await again.run_until(lambda: again.holds(manifest, all_of_it=False))


async def test_a_server_without_range_cannot_spend_more_than_the_days_budget(tmp_path: Path, shop: Shop) -> None:
    manifest = shop.publish()
    plain = RangeServer(shop.repository, fault=lambda path: "no_range" if "/objects/" in path else "")
    largest = max(entry.bytes for entry in manifest.files)
    settings = UpdaterSettings(transfer=TransferSettings(bytes_per_day=largest // 2), interval_s=60)
    with plain.running() as server:
        made = node(tmp_path, shop, http(server.url), settings=settings)
        await made.run_until(lambda: bool(made.events.of("TransferRefused")))
        assert "knows no Range" in made.events.of("TransferRefused")[0].message  # type: ignore[union-attr]
    assert made.updater.status.spent_today_bytes <= largest // 2
    assert not made.holds(manifest, all_of_it=False)


async def test_what_comes_twice_from_a_server_without_range_is_spent_twice() -> None:
    content, passed = bytes(range(100)), []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + content)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    source = HttpSource(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    got = [data async for data in source.read("objects/aa/x", 60, 70, 100, Bounds(None, passed.append))]
    assert b"".join(got) == content[60:]
    assert sum(passed) == 60
    await source.close()
    server.close()


async def test_a_clock_in_1970_is_not_believed(tmp_path: Path, shop: Shop, server: RangeServer) -> None:
    manifest = shop.publish()
    made = node(tmp_path, shop, http(server.url), now=lambda: datetime(1970, 1, 1, tzinfo=UTC))
    await made.run_until(lambda: made.holds(manifest))
    assert made.updater.status.clock
    assert made.events.of("CatalogueTaken")[0].clock  # type: ignore[union-attr]


async def test_a_clock_in_2099_stops_updates_and_nothing_else(tmp_path: Path, shop: Shop, server: RangeServer) -> None:
    old = shop.publish()
    made = node(tmp_path, shop, http(server.url))
    await made.run_until(lambda: made.holds(old))
    shop.publish("2.0.0")
    made = node(tmp_path, shop, http(server.url), serving=old.id, now=lambda: datetime(2099, 1, 1, tzinfo=UTC))
    await made.run_until(lambda: bool(made.events.of("CatalogueRefused")))
    (refused, *_) = made.events.of("CatalogueRefused")
    assert (refused.error, "clock" in refused.message) == ("ClockWrong", True)  # type: ignore[union-attr]
    assert made.updater.status.wanted == old.id
    assert made.local.available


async def test_what_other_keys_signed_is_refused_and_what_served_stays(
    tmp_path: Path, shop: Shop, server: RangeServer
) -> None:
    old = shop.publish()
    made = node(tmp_path, shop, http(server.url))
    await made.run_until(lambda: made.holds(old) and made.slots.trial == old.id)
    thief = Shop(tmp_path / "thief")
    thief.publish("9.0.0")
    server.root = thief.repository
    made = node(tmp_path, shop, http(server.url), serving=old.id)
    await made.run_until(lambda: bool(made.events.of("CatalogueRefused")) and made.slots.current == old.id)
    assert made.updater.status.wanted == old.id
    assert {found.manifest.id for found in made.store.found()} == {old.id}


async def test_a_withdrawn_release_is_left(tmp_path: Path, shop: Shop) -> None:
    old, new = shop.publish("1.0.0"), shop.publish("2.0.0")
    made = node(tmp_path, shop, str(shop.repository), serving=old.id)
    made.slot_file.change("tiny", lambda slots: slots.proved(old.id, 4))
    await made.run_until(lambda: made.slots.current == new.id)
    withdraw(shop.site.desk, new.id)
    await made.run_until(lambda: made.slots.current == old.id)
    assert made.slots.previous == new.id


async def test_a_release_of_eight_bits_alone_is_one_part(tmp_path: Path, shop: Shop, server: RangeServer) -> None:
    manifest = shop.publish(precisions=(8,))
    made = node(tmp_path, shop, http(server.url))
    await made.run_until(lambda: made.holds(manifest) and bool(made.events.of("TransferFinished")))
    assert [event.part for event in made.events.of("TransferFinished")] == ["eight"]  # type: ignore[union-attr]


async def test_four_pinned_never_fetches_the_rest(tmp_path: Path, shop: Shop, server: RangeServer) -> None:
    manifest = shop.publish()
    settings = UpdaterSettings(transfer=TransferSettings(pinned=4))
    made = node(tmp_path, shop, http(server.url), settings=settings, pinned=4)
    await made.run_until(lambda: "pinned_four" in made.updater.status.plan)
    assert open_release(made.store.folder(manifest.id)).precisions == (4,)
    assert server.sent_of(manifest.file(PLANE_LO).sha256) == 0


async def test_what_is_not_urgent_takes_a_share_of_the_time(tmp_path: Path, shop: Shop) -> None:
    manifest, began = shop.publish(), time.monotonic()
    rate = 60_000
    with RangeServer(shop.repository, rate=lambda path: rate if "/objects/" in path else None).running() as server:
        settings = UpdaterSettings(transfer=TransferSettings(bandwidth_share=0.25))
        made = node(tmp_path, shop, http(server.url), settings=settings)
        await made.run_until(lambda: len(made.events.of("TransferFinished")) == 2, 60)
        lo = manifest.file(PLANE_LO).bytes
        (four, eight) = made.events.of("TransferFinished")
        assert eight.seconds > 3 * lo / rate  # type: ignore[union-attr]
        assert four.seconds < time.monotonic() - began  # type: ignore[union-attr]


async def test_several_models_ask_for_a_word(tmp_path: Path, shop: Shop) -> None:
    shop.publish()
    shop.site.publish("1.0.0", "other")
    made = node(tmp_path, shop, str(shop.repository))
    await made.run_until(lambda: "other, tiny" in made.updater.status.problem)
    settings = UpdaterSettings(model="tiny")
    made = node(tmp_path, shop, str(shop.repository), settings=settings)
    await made.run_until(lambda: bool(made.store.found()))
    assert made.updater.status.model == "tiny"


async def test_wrong_bytes_are_asked_for_ever_less_often(tmp_path: Path, shop: Shop) -> None:
    """A lone server that lies costs bytes at every try: what came and did not stand is no progress."""
    shop.publish()
    spoiling = RangeServer(shop.repository, changed=_spoilt)
    with spoiling.running():
        made = node(tmp_path, shop, http(spoiling.url))
        began = time.monotonic()
        await made.run_until(lambda: time.monotonic() - began > 2.0)
    assert made.updater._bringer.moved_bytes > 5 * CHUNK
    assert made.fetcher.kept_bytes < CHUNK / 4  # the small files


def _spoilt(path: str, content: bytes) -> bytes:
    large = "/objects/" in path and len(content) > 1000 and not content.startswith(b"{")
    return bytes(byte ^ 1 for byte in content) if large else content
