"""The locks that images and set-up install from: pinned, hashed, tied to no index, light where they must be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).parents[3] / "requirements"
LOCKS = sorted(REQUIREMENTS.glob("*.lock"))
PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==([^\s\\;]+)", re.MULTILINE)


def pins(lock: Path) -> dict[str, str]:
    return dict(PIN.findall(lock.read_text()))


def test_there_is_a_lock_for_every_role() -> None:
    assert {"dev.lock", "edge.lock", "gateway.lock", "cloud.lock", "quantize.lock"} <= {lock.name for lock in LOCKS}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_line_is_a_hashed_pin_and_names_no_index(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(r"^\s*-{1,2}(i|f|index|extra-index|find-links|trusted-host)", text, re.MULTILINE)
    for block in re.split(r"\n(?=\S)", text):
        assert block.startswith("#") or ("==" in block and "--hash=sha256:" in block), block[:80]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_torch_stays_outside_with_all_it_would_pull(lock: Path) -> None:
    assert not [name for name in pins(lock) if name in ("torch", "triton") or name.startswith("nvidia-")]


@pytest.mark.parametrize("role", ["edge", "gateway", "cloud", "quantize"])
def test_a_role_runs_what_was_tested(role: str) -> None:
    tested, own = pins(REQUIREMENTS / "dev.lock"), pins(REQUIREMENTS / f"{role}.lock")
    assert {name: tested.get(name) for name in own} == own


def test_light_roles_are_light() -> None:
    heavy = {"transformers", "accelerate", "bitsandbytes", "onnx", "scikit-learn", "gguf"}
    assert not (heavy | {"redis"}) & set(pins(REQUIREMENTS / "edge.lock"))
    assert not heavy & set(pins(REQUIREMENTS / "gateway.lock"))
