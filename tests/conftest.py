"""Fixtures that several components share. What costs seconds is made once a run."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release folder, 4 and 8 bits, of a random Llama with a context of 512 tokens."""
    from tests import releases

    return releases.tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def smollm2_release() -> Path:
    """A release folder, 4 and 8 bits, of SmolLM2-135M-Instruct. For tests marked real_model."""
    from tests import releases

    return releases.smollm2()
