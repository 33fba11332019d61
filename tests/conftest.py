"""Fixtures that several components share. What costs seconds is made once a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import tiny_llama_folder


@pytest.fixture(scope="session")
def tiny_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release folder, 4 and 8 bits, of a random Llama with a context of 512 tokens."""
    from quantize.build import build_release

    folder = tmp_path_factory.mktemp("tiny")
    build_release(tiny_llama_folder(folder / "hf"), folder / "release", name="tiny")
    return folder / "release"
