"""Which class of CPU this is. Integer kernels differ by class, and with them a model's doubts: a
threshold holds for the class it was fitted on. An unknown class is the empty string.
"""

from __future__ import annotations

import platform
from pathlib import Path

_X86 = (("x86-vnni", ("avx512_vnni", "avx_vnni")), ("x86-avx512", ("avx512f",)), ("x86-avx2", ("avx2",)))
_ARM = (("arm-i8mm", ("i8mm",)), ("arm-dotprod", ("asimddp",)), ("arm-neon", ("asimd",)))


def cpu_class(cpuinfo: Path = Path("/proc/cpuinfo"), machine: str | None = None) -> str:
    """x86-avx2, x86-avx512, x86-vnni, arm-neon, arm-dotprod, arm-i8mm, or "" where nobody can tell."""
    arm = (machine or platform.machine()).lower() in ("aarch64", "arm64")
    flags = _flags(cpuinfo)
    for name, any_of in _ARM if arm else _X86:
        if flags.intersection(any_of):
            return name
    return ""


def _flags(cpuinfo: Path) -> frozenset[str]:
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return frozenset(value.split())
    return frozenset()
