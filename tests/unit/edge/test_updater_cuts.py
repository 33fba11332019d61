"""The updater's process dies at any moment: what served serves, and little is ever fetched twice."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from release.folder import open_release
from release.manifest import PLANE_HI, Manifest
from tests.fakes.disk import CUT, QuickDisk, Steps, in_a_process, power_cut
from tests.fakes.range_server import RangeServer
from tests.fakes.updating import UpdatingNode, http
from tests.unit.edge.test_updater import CHUNK, Shop, no_proxy, node, shop

__all__ = ["no_proxy", "shop"]  # fixtures

SEED, KILLS = 20, 20


def refetched(server: RangeServer, since: int, had: dict[str, int]) -> int:
    """Bytes of objects sent after request number `since` that had been sent before. Updates `had`."""
    twice = 0
    for asked in server.asked[since:]:
        if "/objects/" in asked.path:
            upto = had.get(asked.path, 0)
            twice += max(0, min(upto, asked.first + asked.sent) - asked.first)
            had[asked.path] = max(upto, asked.first + asked.sent)
    return twice


def test_killed_at_twenty_offsets_it_completes_and_refetches_at_most_a_chunk_each_time(
    tmp_path: Path, shop: Shop
) -> None:
    manifest = shop.publish()
    total = sum(entry.bytes for entry in manifest.files)
    offsets = sorted(random.Random(SEED).randrange(1, total) for _ in range(KILLS))
    had: dict[str, int] = {}
    most = 0
    with RangeServer(shop.repository, rate=lambda path: 100_000 if "/objects/" in path else None).running() as server:
        for offset in offsets:
            since = len(server.asked)
            child = started(lambda: run(tmp_path, shop, server.url, manifest))
            killed_when(child, lambda at=offset: sum(one.sent for one in server.objects()) >= at)  # type: ignore[misc]
            most = max(most, refetched(server, since, had))
        since = len(server.asked)
        assert in_a_process(lambda: run(tmp_path, shop, server.url, manifest)) == 0
        most = max(most, refetched(server, since, had))
    store = node(tmp_path, shop).store
    assert open_release(store.folder(manifest.id)).precisions == (4, 8)
    assert most <= CHUNK


def run(tmp_path: Path, shop: Shop, url: str, manifest: Manifest) -> None:
    made = node(tmp_path, shop, http(url))
    asyncio.run(made.run_until(lambda: made.holds(manifest), 60))


def started(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def killed_when(child: int, there: Callable[[], bool]) -> None:
    """SIGKILL as soon as `there`; a child that got through before is none the worse."""
    reaped = threading.Event()
    while not there():
        ended, _ = os.waitpid(child, os.WNOHANG)
        if ended:
            return
        reaped.wait(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def standing(root: Path) -> list[str]:
    """The releases that can serve, verified; every object has its hash."""
    made = UpdatingNode(root, None, ())
    for path in root.glob("objects/*/*"):
        assert path.name.startswith(".") or hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    return [open_release(found.path).id for found in made.store.found()]


def test_a_cut_at_any_step_of_an_update_leaves_a_serving_node(tmp_path: Path, shop: Shop) -> None:
    """Law: after a cut before any write, what the slots would start is whole, and the update then goes through."""
    old = shop.publish("1.0.0")
    root = tmp_path / "store"

    def updated(disk: QuickDisk, manifest: Manifest, serving: str) -> None:
        made = UpdatingNode(root, shop.root, [str(shop.repository)], serving=serving, disk=disk)
        if serving:
            made.slot_file.change("tiny", lambda slots: slots.proved(serving, 4) if not slots.current else slots)
        done = lambda: made.holds(manifest) and made.slots.current in ("", manifest.id) and not settling(made)  # noqa: E731
        asyncio.run(made.run_until(done, 20))

    def settling(made: UpdatingNode) -> bool:
        return bool(serving_now(made)) and bool(made.slots.trial)

    def serving_now(made: UpdatingNode) -> str:
        return made.engine.model.release

    updated(QuickDisk(), old, "")
    before = tmp_path / "before"
    shutil.copytree(root, before)
    new = shop.publish("2.0.0")
    cuts = 0
    for step in range(0, 2000, 3):  # every third, for the suite's sake; the store's own test takes each
        code = in_a_process(lambda step=step: updated(QuickDisk(Steps(step, power_cut)), new, old.id))  # type: ignore[misc]
        here = standing(root)
        slots = UpdatingNode(root, None, ()).slots
        start = slots.among(here).to_start or next(iter(here))
        assert start in here, (step, slots)
        if code == 0:
            break
        assert code == CUT, step
        cuts += 1
        if cuts % 5 == 0:
            assert in_a_process(lambda: updated(QuickDisk(), new, old.id)) == 0
            assert new.id in standing(root)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(root)
        shutil.copytree(before, root)
    assert cuts > 20
    assert UpdatingNode(root, None, ()).slots.current == new.id


def test_the_spoilt_tail_of_a_cut_costs_its_chunk_alone(tmp_path: Path, shop: Shop) -> None:
    """A cut may leave anything in blocks that were not yet synced: zeros, here."""
    manifest = shop.publish()
    plane = manifest.file(PLANE_HI)
    made = node(tmp_path, shop)
    made.store.prepare()
    content = (shop.folder / "built" / "1.0.0" / PLANE_HI).read_bytes()
    with made.store.partial(plane) as partial:
        partial.append(content[: 2 * CHUNK + 100])
    path = made.store.root / "partial" / plane.sha256
    path.write_bytes(path.read_bytes()[: 2 * CHUNK] + bytes(CHUNK - 1))
    with RangeServer(shop.repository).running() as server:
        run(tmp_path, shop, server.url, manifest)
        assert server.sent_of(plane.sha256) == plane.bytes - 2 * CHUNK + 1


async def test_a_new_version_costs_what_it_changed(tmp_path: Path, shop: Shop) -> None:
    first = shop.publish("1.0.0")
    second = shop.publish("1.1.0", like="1.0.0")
    with RangeServer(shop.repository).running() as server:
        made = node(tmp_path, shop, http(server.url), active={"tiny": first.id})
        await made.run_until(lambda: made.holds(first))
        sent = sum(asked.sent for asked in server.objects())
        made = node(tmp_path, shop, http(server.url), active={"tiny": second.id}, serving=first.id)
        await made.run_until(lambda: made.holds(second))
        assert sum(asked.sent for asked in server.objects()) - sent < CHUNK
