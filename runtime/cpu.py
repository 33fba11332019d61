"""Which class of CPU this is, as far as it changes what quantized kernels compute.

Calibrated thresholds belong to a class, because int8 kernels of different classes round differently.
Read from the kernel's own list of features; nothing is executed to find out.
"""

from __future__ import annotations

import platform
from pathlib import Path

UNKNOWN = "unknown"

# The first class whose features are all there wins.
_X86 = (
    ("x86-vnni", frozenset({"avx512f", "avx512_vnni"})),
    ("x86-vnni", frozenset({"avx2", "avx_vnni"})),
    ("x86-avx512", frozenset({"avx512f", "avx512bw"})),
    ("x86-avx2", frozenset({"avx2"})),
)
_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_ARM = (
    ("arm-i8mm", frozenset({"i8mm"})),
    ("arm-dotprod", frozenset({"asimddp"})),
    ("arm-neon", frozenset({"asimd"})),
)


def cpu_class(cpuinfo: Path = Path("/proc/cpuinfo"), machine: str | None = None) -> str:
    """One of DESIGN's CPU classes, or "unknown", which callers treat with the most care."""
    machine = (machine or platform.machine()).lower()
    features = _features(cpuinfo)
    table = _X86 if machine in ("x86_64", "amd64", "i686") else _ARM if machine in ("aarch64", "arm64") else ()
    return next((name for name, needed in table if needed <= features), UNKNOWN)


def native_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this CPU multiplies bfloat16 itself. Where it does not, float32 prefills several times faster."""
    return bool(_BFLOAT16 & _features(cpuinfo))


def _features(cpuinfo: Path) -> frozenset[str]:
    """What every core has: on mixed cores a thread may run anywhere. Empty where nothing is told."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    cores = [
        frozenset(line.partition(":")[2].split())
        for line in text.splitlines()
        if line.partition(":")[0].strip().lower() in ("flags", "features")
    ]
    return frozenset.intersection(*cores) if cores else frozenset()
