"""Processors that may be used, counted as cores, within the quota; and a process that keeps to some of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.processors import allowed, cores, keep_to, parse, threads, usable


def topology(root: Path, siblings: dict[int, str], name: str = "core_cpus_list") -> Path:
    for number, text in siblings.items():
        folder = root / f"sys/devices/system/cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / name).write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("text", "found"), [("0-3,8", {0, 1, 2, 3, 8}), ("2", {2}), (" 1 , 3 ", {1, 3}), ("", set()), ("0-0", {0})]
)
def test_a_list_is_read_as_in_sys(text: str, found: set[int]) -> None:
    assert parse(text) == found


@pytest.mark.parametrize("text", ["a", "3-1", "1-", "-1", "0-99999999", "1;2", "0x1"])
def test_what_is_no_list_is_refused_with_its_part(text: str) -> None:
    with pytest.raises(ValueError, match="'"):
        parse(text)


def test_two_threads_of_a_core_count_once(tmp_path: Path) -> None:
    root = topology(tmp_path, {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"})
    assert cores({0, 1, 4, 5}, root) == 2
    assert cores({0, 4}, root) == 1
    assert cores({4, 5}, root) == 2
    assert threads("", root, {0, 1, 4, 5}) == 2
    assert threads("0,4-5", root, {0, 1, 4, 5}) == 2


def test_the_older_name_does_and_without_any_every_processor_is_a_core(tmp_path: Path) -> None:
    assert cores({0, 1}, topology(tmp_path, {0: "0-1", 1: "0-1"}, "thread_siblings_list")) == 1
    assert cores({0, 1, 2}, tmp_path / "missing") == 3
    assert cores({7}, topology(tmp_path / "odd", {7: "nonsense"})) == 1


@pytest.mark.parametrize(("quota", "count"), [("150000", 1), ("50000", 1), ("200000", 2), ("900000", 4), ("max", 4)])
def test_the_quota_of_the_control_group_binds(tmp_path: Path, quota: str, count: int) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(f"{quota} 100000\n")
    assert threads("", tmp_path, {0, 1, 2, 3}) == count


def test_of_a_list_only_what_is_allowed_counts_and_none_is_refused() -> None:
    assert usable("2-9", {0, 1, 2, 3}) == {2, 3}
    assert usable("", {0, 1}) == {0, 1}
    assert usable("") == allowed()
    with pytest.raises(ValueError, match="none of 8-9 may be used here, only 0, 1"):
        usable("8-9", {0, 1})


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system binds no process to processors")
def test_a_process_keeps_to_its_processors_and_so_do_its_threads() -> None:
    one = min(allowed())
    code = (
        "import os, threading; from runtime.processors import keep_to\n"
        f"keep_to('{one}')\n"
        "seen = []; t = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0))); t.start(); t.join()\n"
        f"assert os.sched_getaffinity(0) == seen[0] == {{{one}}}, seen\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    before = allowed()
    keep_to("")
    assert allowed() == before
