"""What a load takes, told from the manifest."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from release.folder import open_release
from runtime.ort.footprint import fed_bytes, load_bytes


def test_what_a_session_is_fed_with_is_counted_to_the_byte(tiny_release: Path) -> None:
    release = open_release(tiny_release)
    for bits in (4, 8):
        arrays = {array.__array_interface__["data"][0]: array.nbytes for array in release.initializers(bits).values()}
        fed = sum(arrays.values())
        assert fed <= fed_bytes(release.manifest, bits) <= 1.1 * fed


def test_eight_bits_more_slots_and_longer_chunks_take_more(tiny_release: Path) -> None:
    manifest = open_release(tiny_release).manifest
    least = load_bytes(manifest, 4, slots=1, prefill_chunk=16)
    assert load_bytes(manifest, 8, slots=1, prefill_chunk=16) > least
    assert load_bytes(manifest, 4, slots=8, prefill_chunk=16) > least
    assert load_bytes(manifest, 4, slots=1, prefill_chunk=512) > least
    wider = dataclasses.replace(manifest.architecture, vocabulary=10 * manifest.architecture.vocabulary)
    assert load_bytes(dataclasses.replace(manifest, architecture=wider), 4, slots=1, prefill_chunk=16) > least
