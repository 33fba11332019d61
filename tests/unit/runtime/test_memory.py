"""Free memory: the container's limit counts when it is the smaller one."""

from __future__ import annotations

from pathlib import Path

import psutil

from runtime.memory import free_bytes, limit_bytes, trim


def cgroup(tmp_path: Path, limit: str, current: int, inactive_file: int) -> Path:
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file}\n")
    return tmp_path


def test_a_container_may_take_what_its_limit_leaves(tmp_path: Path) -> None:
    assert free_bytes(cgroup(tmp_path, str(10 << 20), 4 << 20, 1 << 20)) == 7 << 20


def test_a_container_past_its_limit_may_take_nothing(tmp_path: Path) -> None:
    assert free_bytes(cgroup(tmp_path, "100", 200, 0)) == 0


def test_without_a_limit_the_machine_counts(tmp_path: Path) -> None:
    total = psutil.virtual_memory().total
    assert 0 < free_bytes(cgroup(tmp_path, "max", 0, 0)) <= total
    assert 0 < free_bytes(tmp_path / "missing") <= total


def test_what_a_container_has_in_all_is_its_limit(tmp_path: Path) -> None:
    total = psutil.virtual_memory().total
    assert limit_bytes(cgroup(tmp_path, str(10 << 20), 0, 0)) == 10 << 20
    assert limit_bytes(tmp_path / "missing") == total


def test_trimming_does_no_harm() -> None:
    trim()
