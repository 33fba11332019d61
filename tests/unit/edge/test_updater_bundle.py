"""A bundle carried into a node's store, stopped and running, and what is wrong with some bundles."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from edge.slots import Slots
from release.bundle import opened
from release.errors import OutOfSpace, ReleaseError
from release.folder import open_release
from release.intake import Taken, take_in
from release.manifest import PLANE_HI
from release.repository.carry import write_bundle
from release.store import Store
from release.trust.errors import Replayed, WrongSignature
from tests.fakes.disk import QuickDisk, every_cut
from tests.fakes.updating import UpdatingNode
from tests.unit.edge.test_updater import Shop, no_proxy, shop

__all__ = ["no_proxy", "shop"]  # fixtures


def bundled(shop: Shop, name: str, *releases: str) -> Path:
    out = shop.folder / name
    write_bundle(shop.repository, list(releases), out, shop.site.first_root)
    return out


def taken(store: Store, file: Path, root: bytes) -> Taken:
    with opened(file) as bundle:
        return take_in(store, bundle, root, datetime.now(UTC))


def importing(root: Path, **given: object) -> Store:
    return Store(root, disk=QuickDisk(), writer="import", **given)  # type: ignore[arg-type]


async def test_a_running_node_puts_what_was_carried_to_it_on_trial(tmp_path: Path, shop: Shop) -> None:
    first = shop.publish("1.0.0")
    root = tmp_path / "store"
    done = taken(importing(root), bundled(shop, "one.tar", first.id), shop.site.first_root)
    assert (done.releases, done.shared_bytes) == ((first.id,), 0)
    assert open_release(Store(root).folder(first.id)).precisions == (4, 8)
    made = UpdatingNode(root, shop.root, (), serving=first.id)
    made.slot_file.change("tiny", lambda _slots: Slots(current=first.id))
    second = shop.publish("1.1.0", like="1.0.0")
    file = bundled(shop, "two.tar", second.id)
    imported: list[Taken] = []

    def arrived() -> bool:
        if not imported:
            imported.append(taken(importing(root), file, shop.site.first_root))
        return made.slots.current == second.id and made.updater.status.catalogue_issued != ""

    await made.run_until(arrived)
    assert imported[0].stored_bytes < imported[0].shared_bytes
    assert made.slots == Slots(current=second.id, previous=first.id, precision=4)


async def test_what_was_carried_here_since_the_last_look_is_not_cleared_away(tmp_path: Path, shop: Shop) -> None:
    first, second = shop.publish("1.0.0"), shop.publish("1.1.0")
    root = tmp_path / "store"
    taken(importing(root), bundled(shop, "both.tar", first.id, second.id), shop.site.first_root)
    made = UpdatingNode(root, shop.root, ())
    bringer = made.updater._bringer
    bringer.looked_at = frozenset({first.id})
    assert await bringer.collect(frozenset({first.id}), "nothing needs it") == 0
    assert {found.manifest.id for found in made.store.found()} == {first.id, second.id}
    bringer.looked_at = frozenset({first.id, second.id})
    assert await bringer.collect(frozenset({first.id}), "nothing needs it") > 0
    assert {found.manifest.id for found in made.store.found()} == {first.id}


def test_what_is_wrong_with_a_bundle_leaves_the_store_as_it_was(tmp_path: Path, shop: Shop) -> None:
    first = shop.publish("1.0.0")
    old = bundled(shop, "old.tar", first.id)
    second = shop.publish("2.0.0")
    new = bundled(shop, "new.tar", second.id)
    root = tmp_path / "store"
    content = bytearray(new.read_bytes())
    plane = (shop.folder / "built" / "2.0.0" / PLANE_HI).read_bytes()
    content[content.index(plane) + 5000] ^= 1
    spoilt = tmp_path / "spoilt.tar"
    spoilt.write_bytes(content)
    with pytest.raises(ReleaseError, match=r"plane\.hi\.bin is damaged"):
        taken(importing(root), spoilt, shop.site.first_root)
    other = Shop(tmp_path / "other")
    with pytest.raises(WrongSignature):
        taken(importing(tmp_path / "elsewhere"), new, other.site.first_root)
    with pytest.raises(OutOfSpace):
        taken(importing(root, free=lambda _path: 100), new, shop.site.first_root)
    assert Store(root).found() == ()
    taken(importing(root), new, shop.site.first_root)
    with pytest.raises(Replayed):
        taken(importing(root), old, shop.site.first_root)
    assert [found.manifest.id for found in Store(root).found()] == [second.id]


def test_an_import_that_is_cut_goes_through_when_it_is_typed_again(tmp_path: Path, shop: Shop) -> None:
    manifest = shop.publish("1.0.0")
    file = bundled(shop, "one.tar", manifest.id)
    root = tmp_path / "store"
    cuts = 0
    for cuts in every_cut(  # the store goes on from where the cut before left it
        lambda steps: taken(Store(root, disk=QuickDisk(steps), writer="import"), file, shop.site.first_root) and None
    ):
        for found in Store(root).found():
            open_release(found.path)
        if cuts >= 60:
            break
    taken(importing(root), file, shop.site.first_root)
    assert open_release(Store(root).folder(manifest.id)).precisions == (4, 8)
