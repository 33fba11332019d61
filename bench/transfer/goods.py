"""The signed repositories that nodes fetch from: one for each way a model can come, made once per run.

Everything is in a folder of its own and gone with it, keys included. A stage is a copy of a repository's
metadata at one time: serving another stage is what publishing looks like from a node.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.transfer.simulate import Load, Way
from bench.transfer.variants import eight_only, four_only
from release.listing import read_manifest
from release.manifest import MANIFEST_NAME, Manifest
from release.objects import METADATA, OBJECTS
from release.repository.ceremony import begin
from release.repository.keys import Keys
from release.repository.publish import publish
from release.repository.record import Days
from release.repository.session import Desk
from release.store import first_part, second_part


@dataclass(frozen=True, slots=True)
class Goods:
    """One repository. `stages` are metadata folders, each offering one release more, newest last."""

    repository: Path
    stages: tuple[Path, ...]
    releases: tuple[Manifest, ...]
    root: Path  # the first root.json, for nodes to trust
    manifest_bytes: tuple[int, ...]

    @property
    def objects(self) -> Path:
        return self.repository / OBJECTS


def make_goods(folder: Path, name: str, releases: Sequence[Path]) -> Goods:
    """Publishes releases one after another into a new repository at `folder`."""
    desk = Desk(folder / name, Keys(folder / f"{name}-keys"), datetime.now(UTC))
    begin(desk, Days())
    stages = []
    for number, release in enumerate(releases, start=1):
        # What is compared with was never measured: quality has its own benchmark.
        publish(desk, release, allow_unmeasured=True, link=True)
        stage = folder / f"{name}-{number}"
        shutil.copytree(desk.repository / METADATA, stage)
        stages.append(stage)
    root = shutil.copyfile(desk.repository / METADATA / "1.root.json", folder / f"{name}.root.json")
    return Goods(
        desk.repository,
        tuple(stages),
        tuple(read_manifest(release) for release in releases),
        root,
        tuple((release / MANIFEST_NAME).stat().st_size for release in releases),
    )


def three_ways(nested: Path, folder: Path) -> Mapping[Way, Goods]:
    """A repository for each way to bring the release in `nested` to a node. Takes its bytes about three times."""
    four_only(nested, folder / "four", "1.0.0")
    eight_only(nested, folder / "eight", "2.0.0")
    return {
        Way.NESTED: make_goods(folder, "nested", [nested]),
        Way.SEPARATE: make_goods(folder, "separate", [folder / "four", folder / "eight"]),
        Way.EIGHT_ONLY: make_goods(folder, "eight_only", [folder / "eight"]),
    }


def load_of(goods: Goods) -> Load:
    """What a node moves: the first release's first part, then whatever it lacks of that release and the others."""
    first = {entry.sha256: entry.bytes for entry in first_part(goods.releases[0])}
    rest = {entry.sha256: entry.bytes for entry in second_part(goods.releases[0])}
    for later in goods.releases[1:]:
        rest |= {entry.sha256: entry.bytes for entry in later.files}
    rest = {sha256: count for sha256, count in rest.items() if sha256 not in first}
    return Load(sum(first.values()) + goods.manifest_bytes[0], sum(rest.values()) + sum(goods.manifest_bytes[1:]))
