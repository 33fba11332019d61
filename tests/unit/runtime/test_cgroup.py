"""Limits of nested control groups, of both versions, from a root folder made up for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.cgroup import cpu_quota, memory_left, memory_limit

MIB = 1 << 20


def system(root: Path, groups: str, **files: str) -> Path:
    """A root with this /proc/self/cgroup and these files under /sys/fs/cgroup (`__` is `/`, `_dot_` is `.`)."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


def test_a_nested_group_of_version_2_is_bound_by_all_above_it(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        "0::/kubepods/pod1/box\n",
        cpu_dot_max="max 100000",
        kubepods__cpu_dot_max="400000 100000",
        kubepods__pod1__cpu_dot_max="150000 100000",
        kubepods__pod1__box__cpu_dot_max="max 100000",
        kubepods__other__cpu_dot_max="1000 100000",
        kubepods__memory_dot_max=str(100 * MIB),
        kubepods__memory_dot_current=str(90 * MIB),
        kubepods__memory_dot_stat=f"anon 1\ninactive_file {5 * MIB}",
        kubepods__pod1__memory_dot_max=str(50 * MIB),
        kubepods__pod1__memory_dot_current=str(10 * MIB),
        kubepods__pod1__memory_dot_stat="inactive_file 0",
        kubepods__pod1__box__memory_dot_max="max",
    )
    assert cpu_quota(root) == 1.5
    assert memory_limit(root) == 50 * MIB
    assert memory_left(root) == 15 * MIB, "the outer group is nearer to its limit"


def test_a_nested_group_of_version_1_is_bound_by_all_above_it(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        "4:memory:/docker/a\n3:cpu,cpuacct:/docker/a\n1:name=systemd:/\n0::/\n",
        **{
            "cpu,cpuacct__cpu_dot_cfs_quota_us": "-1",
            "cpu,cpuacct__cpu_dot_cfs_period_us": "100000",
            "cpu,cpuacct__docker__cpu_dot_cfs_quota_us": "200000",
            "cpu,cpuacct__docker__cpu_dot_cfs_period_us": "100000",
            "cpu,cpuacct__docker__a__cpu_dot_cfs_quota_us": "50000",
            "cpu,cpuacct__docker__a__cpu_dot_cfs_period_us": "20000",
            "memory__memory_dot_limit_in_bytes": "9223372036854771712",
            "memory__docker__a__memory_dot_limit_in_bytes": str(64 * MIB),
            "memory__docker__a__memory_dot_usage_in_bytes": str(60 * MIB),
            "memory__docker__a__memory_dot_stat": f"cache 1\ntotal_inactive_file {20 * MIB}",
        },
    )
    assert cpu_quota(root) == 2.0
    assert memory_limit(root) == 64 * MIB
    assert memory_left(root) == 24 * MIB


def test_a_path_of_the_host_that_is_not_mounted_here_leaves_the_mounts_own_limits(tmp_path: Path) -> None:
    """As in a container that sees its own group as the root of the mount."""
    root = system(tmp_path, "0::/system.slice/docker-1.scope\n", cpu_dot_max="50000 100000", memory_dot_max="4096")
    assert cpu_quota(root) == 0.5
    assert memory_limit(root) == 4096
    assert memory_left(root) is None, "what is used of it cannot be read"


@pytest.mark.parametrize("groups", ["", "nonsense\n", "0::/../..\n", "0::\n"])
def test_what_cannot_be_read_limits_nothing(tmp_path: Path, groups: str) -> None:
    root = system(tmp_path, groups, cpu_dot_max="nonsense", memory_dot_max="max")
    assert cpu_quota(root) is None
    assert memory_limit(root) is None
    assert memory_left(root) is None
    assert cpu_quota(tmp_path / "missing") is None
