"""Manifests survive a round trip; altered and malformed ones are refused by name."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from release.errors import ManifestError
from release.manifest import (
    SCHEMA,
    Architecture,
    Calibration,
    CloudReference,
    File,
    Manifest,
    Matrix,
    QualityFigure,
    Recipe,
    Tensor,
    read,
    release_id,
    sealed,
    write,
)

DIGEST = "a" * 64


def manifest(**changes: Any) -> Manifest:
    made = Manifest(
        name="tiny",
        version="1.0.0",
        architecture=Architecture("llama", 2, 4, 2, 16, 64, 384, 512),
        files=tuple(
            File(name, 128, DIGEST, 64, (DIGEST, DIGEST))
            for name in ("base.bin", "graph.4.onnx", "graph.8.onnx", "plane.hi.bin")
        ),
        tensors=(
            Tensor("w.s", "base.bin", 64, "float16", (2, 1)),
            Tensor("w.q", "plane.hi.bin", 0, "uint8", (2, 1, 16)),
        ),
        matrices=(Matrix("w", 2, 32, 32),),
        precisions=(4, 8),
        tokenizer_digest=DIGEST,
        eos_token_ids=(2,),
        cloud=CloudReference("big", DIGEST),
        recipe=Recipe("rtn", 32, 8, 4, DIGEST, {"numpy": "2"}),
        quality=(QualityFigure("agreement_with_cloud", 0.5, 4, 10, 0, DIGEST, "x86-avx2"),),
        calibrations=(
            Calibration(
                "c1", 4, "x86-avx2", "end", (0.5,), (1.0,), (2.0,), -1.0, 0.5, ("mean_logprob",), 10, 5, 0.8, 0.1, 0.4
            ),
        ),
    )
    return sealed(dataclasses.replace(made, **changes))


def edited(change: Any, *, reseal: bool = True) -> str:
    """The manifest's text after `change` worked on its document."""
    content = json.loads(write(manifest()))
    change(content)
    if reseal and "name" in content:
        content["id"] = release_id(content)
    return json.dumps(content)


def test_a_round_trip_changes_nothing() -> None:
    made = manifest()
    assert read(write(made)) == made
    assert made.id.startswith("tiny@1.0.0+")
    assert len(made.id.rpartition("+")[2]) == 12


def test_the_id_changes_with_the_content_only() -> None:
    assert manifest().id == manifest().id
    assert manifest(version="1.0.1").id != manifest().id
    assert manifest(eos_token_ids=(3,)).id.rpartition("+")[2] != manifest().id.rpartition("+")[2]


def test_fields_of_a_newer_version_are_passed_over_but_count_for_the_id() -> None:
    def newer(content: dict[str, Any]) -> None:
        content["schema"] = SCHEMA + 1
        content["signature_policy"] = {"threshold": 2}
        content["architecture"]["experts"] = 8

    made = read(edited(newer))
    assert made.name == "tiny"
    assert made.id != manifest().id

    def smuggled(content: dict[str, Any]) -> None:
        content["signature_policy"] = {"threshold": 1}

    with pytest.raises(ManifestError, match="altered"):
        read(edited(smuggled, reseal=False))


def change_field(path: str, value: Any) -> Any:
    def change(content: dict[str, Any]) -> None:
        target: Any = content
        *parents, last = path.split(".")
        for key in parents:
            target = target[int(key)] if key.isdigit() else target[key]
        if value is ...:
            del target[last]
        else:
            target[int(last) if last.isdigit() else last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("name", ..., "name is missing"),
        ("name", "Tiny Model", "lower-case"),
        ("version", "1.0", "semantic version"),
        ("version", 1, "version must be text"),
        ("version", "1.0.0-" + "9" * 5000, "5006 characters"),
        ("precisions", [3], "precisions"),
        ("precisions", 4, "precisions must be a list"),
        ("architecture.layers", "two", "architecture.layers must be a whole number"),
        ("architecture.layers", True, "architecture.layers must be a whole number"),
        ("files.0.name", "../../etc/passwd", "not a file name"),
        ("files.0.name", "manifest.json", "not a file name"),
        ("files.0.sha256", "zz", "64 lower-case hex digits"),
        ("files.0.chunks", [DIGEST], "need 2 chunks"),
        ("files.1.name", "base.bin", "occurs twice"),
        ("files.1.name", "graph.5.onnx", "graph.4.onnx is missing"),
        ("tensors.0.offset", 127, "lies outside base.bin"),
        ("tensors.0.offset", -1, "negative"),
        ("tensors.0.file", "other.bin", "lies outside other.bin"),
        ("tensors.0.dtype", "complex64", "complex64"),
        ("tensors.1.name", "w.s", "occurs twice"),
        ("matrices.0.residual_step", 17, "residual_step"),
        ("matrices.0.columns", 33, "multiple of block_size"),
        ("calibrations.0.mean", [0.5, 0.5], "one entry per feature"),
        ("calibrations.0.threshold", None, "threshold must be a number, not null"),
        ("schema", SCHEMA + 2, "update Weir"),
        ("schema", ..., "not a Weir release"),
    ],
)
def test_what_is_wrong_is_named(path: str, value: Any, told: str) -> None:
    with pytest.raises(ManifestError, match=told):
        read(edited(change_field(path, value)))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "\x00"])
def test_text_that_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(ManifestError):
        read(text)


def test_numbers_that_are_none_are_refused() -> None:
    text = edited(lambda content: None).replace('"intercept": -1.0', '"intercept": NaN')
    with pytest.raises(ManifestError, match=r"calibrations\[0\].intercept must be a finite number"):
        read(text)


def test_numbers_beyond_all_bounds_are_refused() -> None:
    text = edited(lambda content: None).replace('"intercept": -1.0', f'"intercept": {10**400}')
    with pytest.raises(ManifestError, match=r"calibrations\[0\].intercept must be a finite number"):
        read(text)


def test_no_number_in_a_field_that_is_not_known_is_refused() -> None:
    with pytest.raises(ManifestError, match="wrong"):
        read(edited(lambda content: None).replace("{", '{"later": NaN,', 1))
