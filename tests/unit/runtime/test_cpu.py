"""CPU classes from what Linux says of a processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.cpu import UNKNOWN, cpu_class, native_bfloat16


@pytest.mark.parametrize(
    ("machine", "line", "expected"),
    [
        ("x86_64", "flags\t\t: fpu avx avx2", "x86-avx2"),
        ("x86_64", "flags\t\t: avx2 avx512f avx512bw", "x86-avx512"),
        ("x86_64", "flags\t\t: avx2 avx512f avx512_vnni", "x86-vnni"),
        ("x86_64", "flags\t\t: avx2 avx_vnni", "x86-vnni"),
        ("x86_64", "flags\t\t: sse2", UNKNOWN),
        ("aarch64", "Features\t: fp asimd", "arm-neon"),
        ("aarch64", "Features\t: fp asimd asimddp", "arm-dotprod"),
        ("aarch64", "Features\t: fp asimd asimddp i8mm", "arm-i8mm"),
        ("riscv64", "isa : rv64", UNKNOWN),
    ],
)
def test_the_best_known_class_is_named(tmp_path: Path, machine: str, line: str, expected: str) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor : 0\n{line}\n")
    assert cpu_class(file, machine) == expected


def test_a_box_that_tells_nothing_has_no_class(tmp_path: Path) -> None:
    assert cpu_class(tmp_path / "missing") == UNKNOWN


@pytest.mark.parametrize(
    ("line", "expected"),
    [("flags : avx2 avx512f", False), ("flags : avx512_bf16", True), ("Features : asimd bf16", True), ("", False)],
)
def test_bfloat16_is_native_where_the_cpu_says_so(tmp_path: Path, line: str, expected: bool) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"{line}\n")
    assert native_bfloat16(file) is expected
