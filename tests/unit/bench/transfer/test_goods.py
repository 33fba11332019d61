"""The repositories of the benchmark are real ones: a trust client believes them, stage by stage."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from bench.transfer.goods import load_of, three_ways
from bench.transfer.simulate import Way
from release.listing import read_manifest
from release.objects import METADATA, object_path
from release.trust.client import TrustClient
from release.trust.errors import Absent


class Stage:
    """A stage of a repository, as release.trust.source.Fetch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, path: str, most_bytes: int) -> bytes:
        folder, _, name = path.partition("/")
        assert folder == METADATA
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError as error:
            raise Absent(path) from error


def test_each_way_has_a_repository_that_offers_it(tiny_release: Path, tmp_path: Path) -> None:
    ways = three_ways(tiny_release, tmp_path)
    assert {way: len(goods.stages) for way, goods in ways.items()} == {
        Way.NESTED: 1,
        Way.SEPARATE: 2,
        Way.EIGHT_ONLY: 1,
    }
    client = TrustClient(tmp_path / "trust", ways[Way.SEPARATE].root.read_bytes())
    offered = []
    for stage in ways[Way.SEPARATE].stages:
        catalogue = client.refresh(Stage(stage), datetime.now(UTC))
        offered.append(sorted(offer.precisions for offer in catalogue.offers))
    assert offered == [[(4,)], [(4,), (8,)]]
    for goods in ways.values():
        for manifest in goods.releases:
            assert all((goods.repository / object_path(entry.sha256)).is_file() for entry in manifest.files)


def test_the_load_of_a_way_counts_what_is_shared_once(tiny_release: Path, tmp_path: Path) -> None:
    ways = three_ways(tiny_release, tmp_path)
    nested, separate, eight = (load_of(ways[way]) for way in (Way.NESTED, Way.SEPARATE, Way.EIGHT_ONLY))
    manifest = read_manifest(tiny_release)
    text = (tiny_release / "manifest.json").stat().st_size
    assert nested.total == sum({entry.sha256: entry.bytes for entry in manifest.files}.values()) + text
    assert eight.rest == 0
    assert separate.first < eight.first
    shared = manifest.file("tokenizer.json").bytes
    assert separate.total < separate.first + eight.first - shared + 1
