"""Fixtures that several components share. What costs seconds is made once and kept in the cache."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_release() -> Path:
    """A release folder, 4 and 8 bits, of a random Llama with a context of 512 tokens. Not to be changed."""
    from tests import releases

    return releases.tiny()


@pytest.fixture(scope="session")
def tiny_hf_folder() -> Path:
    """The model folder that `tiny_release` was built from. Not to be changed."""
    from tests import releases

    return releases.tiny_hf()


@pytest.fixture(scope="session")
def smollm2_release() -> Path:
    """A release folder, 4 and 8 bits, of SmolLM2-135M-Instruct. For tests marked real_model."""
    from tests import releases

    return releases.smollm2()
