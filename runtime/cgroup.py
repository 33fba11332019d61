"""What the control groups of this process allow it: processors and memory, the least of the group and all above it.

Groups are nested, and a limit anywhere above binds too. Version 2 has one tree (`0::/a/b` in /proc/self/cgroup, folders
under /sys/fs/cgroup), version 1 one per controller (`4:memory:/a/b`, folders under /sys/fs/cgroup/memory); both may be
mounted at once. In a container the path may be one of the host's, of which nothing is mounted here: what is not
there is passed over, and the mount's own folder always counts. What cannot be read limits nothing.

`root` is the file system's root, for tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
_UNLIMITED = 1 << 62  # version 1 says "no limit" by a number of about this size


def cpu_quota(root: Path = ROOT) -> float | None:
    """How many processors' time this process may take; None without a limit."""
    found = [_quota_v2(folder) for folder in _folders(root, "")]
    found += [_quota_v1(folder) for folder in _folders(root, "cpu")]
    return min((quota for quota in found if quota is not None), default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """The least limit in bytes; None without one."""
    return min((limit for limit, _ in _memory(root)), default=None)


def memory_left(root: Path = ROOT) -> int | None:
    """The least of what the limits leave, in bytes; None without one. Cached file pages count: they give way."""
    return min((max(limit - used, 0) for limit, used in _memory(root) if used is not None), default=None)


def _memory(root: Path) -> Iterator[tuple[int, int | None]]:
    """Limits with what is used of them, without what is cached; None where that cannot be read."""
    names = {"": ("memory.max", "memory.current", "inactive_file")}
    names["memory"] = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    for controller, (most, now, cached) in names.items():
        for folder in _folders(root, controller):
            limit = _number(folder / most)
            if limit is not None and limit < _UNLIMITED:
                used = _number(folder / now)
                yield limit, None if used is None else used - _stat(folder, cached)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The group's folder and all above it up to the mount, of version 2 (no controller) or 1."""
    mounts, path = _place(root, controller)
    for mount in mounts:
        if not mount.is_dir():
            continue
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for length in range(len(parts), -1, -1):
            folder = mount.joinpath(*parts[:length])
            if folder.is_dir():
                yield folder
        return


def _place(root: Path, controller: str) -> tuple[list[Path], str]:
    """Where a tree may be mounted, and the group's path in it."""
    base = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if controller and controller in names.split(","):
            return [base / names, base / controller], path
        if not controller and not names:
            return [base], path
    return [base / controller if controller else base], ""


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 and period > 0 else None


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None


def _stat(folder: Path, name: str) -> int:
    try:
        lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return next((int(value) for key, value in lines if key == name), 0)
    except (OSError, ValueError):
        return 0
