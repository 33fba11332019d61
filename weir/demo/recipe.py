"""The demo's models and release, made once and kept in the cache under the digest of their recipe.

The recipe covers everything a release depends on: both models' weights, the calibration items, the
risk aimed at, the kind of CPU, and the code that builds, decodes and fits. A change in any of them
makes another release; nothing old is taken for new.

Must not know: processes, acts.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from quantize.items import from_records, items_digest
from quantize.progress import Progress
from quantize.sources.cache import Cache
from quantize.sources.resolve import Source, resolve
from release.errors import ReleaseError
from release.folder import open_release
from release.manifest import CALIBRATION, Manifest
from runtime.cpu import cpu_class
from weir.cli.building import HeadBits, Method, Order, build
from weir.demo.errors import DemoError
from weir.demo.questions import Catalogue, as_records

MAX_DISAGREEMENT = 0.1
_CODE = ("quantize", "runtime.ort", "router.confidence", "router.early_stop", "runtime.tokenizer", "runtime.text")
_METHOD, _HEAD = Method.RTN, HeadBits.EIGHT  # what the acts were set on
_PAIRS = {
    False: ("smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"),
    True: ("qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct"),
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the demo runs on."""

    release_dir: Path
    manifest: Manifest
    cloud: Source
    built: bool  # now, rather than in an earlier run

    def calibration(self) -> dict[str, Any]:
        """Of whole answers, per precision, as plain JSON."""
        whole = [entry for entry in self.manifest.calibrations if entry.commit_rule == "end"]
        return {
            "n": max((entry.n for entry in whole), default=0),
            "max_disagreement": MAX_DISAGREEMENT,
            "per_precision": {
                str(entry.precision): {
                    "agree_with_cloud": entry.n_agree,
                    "auroc": entry.auroc,
                    "threshold": entry.threshold,
                    "escalation_share": entry.escalation_share,
                }
                for entry in whole
            },
        }


def prepare(catalogue: Catalogue, *, full: bool, progress: Progress) -> Prepared:
    """Pulls both models, and builds and calibrates the release unless that was done before."""
    catalogue.apart()
    edge_name, cloud_name = _PAIRS[full]
    edge, cloud = resolve(edge_name, progress), resolve(cloud_name, progress)
    digest = recipe_digest(edge, cloud, catalogue)
    cache = Cache.from_environment(os.environ)
    out = cache.root / "demo" / digest
    with cache.locked(f"demo-{digest}", progress):
        manifest = _known(out)
        if manifest is not None:
            return Prepared(out, manifest, cloud, built=False)
        # Nobody waits for figures of a release that is not published.
        order = Order(
            edge_name, out, None, "1.0.0", cloud_name, None, MAX_DISAGREEMENT, _METHOD,
            measuring=None, head_bits=_HEAD,
        )  # fmt: skip
        return Prepared(out, build(order, progress).manifest, cloud, built=True)


def _known(out: Path) -> Manifest | None:
    """The release of an earlier run; None where there is none that is whole."""
    try:
        return open_release(out).manifest
    except ReleaseError:
        return None


def recipe_digest(edge: Source, cloud: Source, catalogue: Catalogue) -> str:
    """Sixteen hexadecimal digits that change when anything the release depends on does."""
    recipe = {
        "edge": edge.sha256,
        "cloud": cloud.sha256,
        "weights": [_METHOD.value, _HEAD.value],
        "items": items_digest(from_records(as_records(catalogue.fitted))),
        "max_disagreement": MAX_DISAGREEMENT,
        "cpu_class": cpu_class(),
        "code": {name: digest for package in _CODE for name, digest in _sources(package)},
    }
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def _sources(name: str) -> Iterator[tuple[str, str]]:
    """Every Python file of a package, or the one of a module, with its digest."""
    package, _, module = name.rpartition(".")
    root = Path(str(resources.files(package or name)))
    target = root / module if package else root
    files = sorted(target.rglob("*.py")) if target.is_dir() else [target.with_suffix(".py")]
    for file in files:
        yield f"{name}/{file.name}", hashlib.sha256(file.read_bytes()).hexdigest()


def prove_apart(prepared: Prepared, catalogue: Catalogue) -> None:
    """Raises DemoError when the release was fitted on a question that is going to be asked."""
    content = json.loads((prepared.release_dir / CALIBRATION).read_text("utf-8"))
    fitted = set(content["question_digests"])
    if len(fitted) < len(catalogue.fitted):
        raise DemoError(f"{prepared.release_dir / CALIBRATION} names too few items; remove that folder and run again")
    if both := fitted & {item.digest for item in catalogue.asked}:
        raise DemoError(f"{len(both)} of the questions were used to fit the release's confidence")
