"""The server of repositories answers ranges and keeps count; what is fetched again is told from what is new."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench.transfer.origin import Mount, Origin, Sent, chunks_of, refetched_bytes
from release.objects import object_path

CONTENT = bytes(range(256)) * 400
PATH = object_path(hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[Origin]:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "timestamp.json").write_text("one")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "timestamp.json").write_text("two")
    (tmp_path / PATH).parent.mkdir(parents=True)
    (tmp_path / PATH).write_bytes(CONTENT)
    with Origin({"m": Mount(tmp_path / "one", tmp_path / "objects")}).running() as running:
        yield running


def get(origin: Origin, path: str, span: str = "") -> httpx.Response:
    headers = {"Range": f"bytes={span}"} if span else {}
    return httpx.get(f"http://127.0.0.1:{origin.port}/{path}", headers=headers, trust_env=False)


def test_files_and_ranges_of_them_are_sent_and_counted(origin: Origin) -> None:
    assert get(origin, f"m/{PATH}").content == CONTENT
    part = get(origin, f"m/{PATH}", "1000-")
    assert (part.status_code, part.content) == (206, CONTENT[1000:])
    assert part.headers["content-range"] == f"bytes 1000-{len(CONTENT) - 1}/{len(CONTENT)}"
    assert get(origin, f"m/{PATH}", "5-9").content == CONTENT[5:10]
    assert get(origin, f"m/{PATH}", f"{len(CONTENT)}-").status_code == 416
    assert origin.sent_of("m") == [
        Sent("m", PATH, 0, len(CONTENT)), Sent("m", PATH, 1000, len(CONTENT) - 1000), Sent("m", PATH, 5, 5)
    ]  # fmt: skip
    assert origin.bytes_sent("m") == 2 * len(CONTENT) - 1000 + 5


def test_metadata_can_be_exchanged_while_it_is_served(origin: Origin) -> None:
    assert get(origin, "m/metadata/timestamp.json").text == "one"
    origin.mounts["m"].metadata = origin.mounts["m"].metadata.with_name("two")
    assert get(origin, "m/metadata/timestamp.json").text == "two"


@pytest.mark.parametrize(
    "path", ["", "m", "x/metadata/timestamp.json", "m/metadata/../one/timestamp.json", "m/objects"]
)
def test_what_is_no_file_of_a_repository_is_not_there(origin: Origin, path: str) -> None:
    assert get(origin, path).status_code == 404


def test_bytes_sent_twice_are_told_from_new_ones() -> None:
    other = object_path("0" * 64)
    before = [Sent("m", PATH, 0, 100), Sent("m", PATH, 100, 50), Sent("m", other, 0, 10)]
    assert refetched_bytes(before, [Sent("m", PATH, 150, 500)]) == 0
    assert refetched_bytes(before, [Sent("m", PATH, 140, 500)]) == 10
    assert refetched_bytes(before, [Sent("m", PATH, 0, 500), Sent("m", other, 5, 5)]) == 155
    assert refetched_bytes([*before, Sent("m", PATH, 50, 60)], [Sent("m", PATH, 90, 20)]) == 20
    assert (
        refetched_bytes([Sent("m", "metadata/timestamp.json", 0, 9)], [Sent("m", "metadata/timestamp.json", 0, 9)]) == 0
    )


def test_a_part_of_a_chunk_counts_as_one() -> None:
    assert [chunks_of(count, 100) for count in (0, 1, 100, 101)] == [0, 1, 1, 2]
