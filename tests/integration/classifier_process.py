"""Real classifying engines and small releases for them."""

from __future__ import annotations

import csv
import dataclasses
import random
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from edge.classifier.config import ClassifierConfig
from quantize.encoder.build import build_classifier, rounding
from release.listing import read_manifest
from release.manifest import MANIFEST_NAME, Calibration, Labelling, Manifest, write
from router.label_confidence import LABEL_FEATURES
from tests.integration.engine_process import Engine, connected, start
from tests.models import tiny_encoder_folder

WORDS = {
    "parcel": ["where", "is", "my", "parcel", "it", "has", "not", "arrived", "since", "monday"],
    "refund": ["please", "send", "the", "money", "back", "to", "my", "card", "and", "cancel", "the", "order"],
    "room": ["how", "many", "nights", "in", "the", "city", "on", "which", "date", "with", "breakfast"],
}


def write_texts(path: Path, count: int = 90, seed: int = 1) -> Path:
    """Texts of 3 to 30 words, each of its label's words."""
    chosen = random.Random(seed)
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["label", "text"])
        for index in range(count):
            label = sorted(WORDS)[index % len(WORDS)]
            writer.writerow([label, " ".join(chosen.choices(WORDS[label], k=chosen.randint(3, 30)))])
    return path


def tiny_classifier(root: Path, name: str = "intents", kind: str = "Bert", version: str = "1.0.0") -> Path:
    """A release of a random small encoder with a head fitted on WORDS; built in `root`."""
    root.mkdir(parents=True, exist_ok=True)
    source, texts = tiny_encoder_folder(root / f"{name}-hf", kind), write_texts(root / f"{name}.csv")
    folder = root / f"{name}-{version}"
    build_classifier(source, folder, name=name, version=version, csv=texts, nester=rounding)
    return folder


def altered(
    source: Path,
    folder: Path,
    version: str,
    *,
    labelling: Labelling | None = None,
    confidence_logit: float | None = None,
) -> Manifest:
    """A copy of a classifier's release that labels otherwise, or is equally sure of everything."""
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.name != MANIFEST_NAME:
            (folder / file.name).symlink_to(file)
    before, width = read_manifest(source), len(LABEL_FEATURES)
    calibrations = () if confidence_logit is None else tuple(
        Calibration(
            id=f"{version}-{bits}",
            precision=bits,
            cpu_class="any",
            commit_rule="end",
            mean=(0.0,) * width,
            scale=(1.0,) * width,
            coefficients=(0.0,) * width,
            intercept=confidence_logit,
            threshold=0.5,
            features=LABEL_FEATURES,
            n=100,
            n_agree=50,
            auroc=None,
            max_disagreement=0.1,
            escalation_share=0.3,
        )
        for bits in (4, 8)
    )  # fmt: skip
    manifest = dataclasses.replace(
        before, version=version, labelling=labelling or before.labelling, calibrations=calibrations
    )
    (folder / MANIFEST_NAME).write_text(write(manifest))
    return read_manifest(folder)


@asynccontextmanager
async def classifier(release: Path, **settings: object) -> AsyncIterator[Engine]:
    """A classifying engine process of its own, ready."""
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        config = ClassifierConfig(socket=Path(folder) / "engine.sock", release_dir=release, **settings)  # type: ignore[arg-type]
        running = start(config, "edge.classifier")  # type: ignore[arg-type]
        try:
            async with connected((running, config)) as engine:  # type: ignore[arg-type]
                yield engine
        finally:
            running.terminate()
            try:
                running.wait(15)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
