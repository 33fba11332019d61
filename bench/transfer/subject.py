"""The release that is carried about where none is given: SmolLM2, built once per state of the code and kept.

Rounded to nearest, which is quick: how weights were rounded changes neither how many bytes they are nor
when a node can answer.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import quantize
import release
from quantize.build import build_release
from quantize.progress import Progress
from quantize.selftest import record_self_tests
from quantize.sources.cache import Cache
from quantize.sources.resolve import resolve

MODEL = "smollm2-135m-instruct"
_DIGITS = 12


def default_release(progress: Progress) -> Path:
    """The release's folder. Takes minutes the first time. Raises QuantizeError, SourceError."""
    cache = Cache.from_environment(os.environ)
    key = f"bench-release-{MODEL}-{_code_digest()}"
    with cache.locked(key, progress):
        if not cache.folder(key).exists():
            source = resolve(MODEL, progress)
            with cache.making(key) as draft:
                build_release(source.folder, draft / "release", name=source.name, progress=progress)
                record_self_tests(draft / "release", progress=progress)
    return cache.folder(key) / "release"


def _code_digest() -> str:
    """Of what decides how a release is laid out."""
    digest = hashlib.sha256()
    for package in (quantize, release):
        for path in sorted(Path(package.__path__[0]).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:_DIGITS]
