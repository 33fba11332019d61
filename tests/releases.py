"""Releases for tests: a random one, and a real one that is built once and kept in the cache."""

from __future__ import annotations

import os
from pathlib import Path

from quantize.build import build_release
from quantize.progress import Silent
from quantize.sources.cache import Cache, sha256_of
from quantize.sources.resolve import resolve
from tests.models import tiny_llama_folder

# A model folder to take instead of fetching the catalogue's; its weights must be SmolLM2's.
SMOLLM2_FOLDER = "WEIR_TEST_SMOLLM2"


def tiny(folder: Path) -> Path:
    """A release, 4 and 8 bits, of a random Llama with a context of 512 tokens."""
    build_release(tiny_llama_folder(folder / "hf"), folder / "release", name="tiny")
    return folder / "release"


def smollm2() -> Path:
    """A release of SmolLM2-135M-Instruct, without calibrations.

    Kept in Weir's cache under a digest of the code that builds releases, so that a change builds anew.
    """
    source = Path(os.environ.get(SMOLLM2_FOLDER, "") or resolve("smollm2-135m-instruct").folder)
    root = Path(__file__).parent.parent
    code = sha256_of(*(path for part in ("quantize", "release") for path in sorted((root / part).glob("*.py"))))
    cache, key = Cache.from_environment(os.environ), f"test-release-smollm2-{code[:12]}"
    with cache.locked(key, Silent()):
        if not cache.folder(key).exists():
            with cache.making(key) as draft:
                build_release(source, draft / "release", name="smollm2-135m-instruct")
    return cache.folder(key) / "release"
