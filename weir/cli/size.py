"""`weir size`: which box carries a model, before it is fetched or built, or as a release that is there.

Says what goes over the wire for each precision, what memory a node takes with either precision and with
both at once (as while it changes), and the speed to expect here: from a trial of the kernels of a second or
two or, with --measure, from the release itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli import report
from weir.cli.extras import require

if TYPE_CHECKING:
    from release.manifest import Manifest

CHOICES: Mapping[str, tuple[int, ...]] = {"4": (4,), "8": (8,), "both": (4, 8)}
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]I?B)?", re.IGNORECASE)
_LEFT_SHARE = 10  # a tenth of a box's memory stays with its system
_MEASURED_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Subject:
    """What is sized. `folder` is a release that can be loaded."""

    name: str
    where: str
    manifest: Manifest
    folder: Path | None = None


def size(
    source: Annotated[
        str, typer.Argument(help="A release, catalogue name, folder, GGUF file or hub id.", show_default=False)
    ],
    slots: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 4,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each.")] = 2048,
    memory: Annotated[
        str | None, typer.Option(help="Memory of another box, such as 4GiB; default: this one's.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the engine; default: this box's CPUs.")] = None,
    measure: Annotated[bool, typer.Option(help="Load the release and time it, instead of an expectation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Say which box carries a model: bytes on the wire, memory, speed. Fetches no weights."""
    require("quantize", "weir size", "matplotlib", "sklearn", "torch", "transformers", "accelerate")
    limit, where = _limit(memory)
    subject = _subject(source)
    if measure and subject.folder is None:
        raise report.BadUse(f"--measure needs a release: build {source} first (weir quantize), then size its folder")
    document = _sized(subject, slots, context, limit)
    document["memory_of"] = where
    document["per_second"], document["speed_from"] = _speed(subject, threads, measure)
    if as_json:
        report.emit(document)
    else:
        _draw(document)


def _sized(subject: Subject, slots: int, context: int, limit: int) -> dict[str, Any]:
    from runtime.ort.steady import OTHER_PROCESSES_BYTES, engine_bytes, kv_bytes_per_token, peak_bytes

    manifest = subject.manifest
    context = min(context, manifest.architecture.context_length)
    choices = {name: bits for name, bits in CHOICES.items() if set(bits) <= set(manifest.precisions)}
    ram = {name: engine_bytes(manifest, bits, slots=slots, context=context) for name, bits in choices.items()}
    peak = {name: peak_bytes(manifest, bits, slots=slots, context=context) for name, bits in choices.items()}
    node = {name: taken + OTHER_PROCESSES_BYTES for name, taken in peak.items()}
    return {
        "source": subject.name,
        "from": subject.where,
        "release": manifest.id or None,
        "task": manifest.task,
        "family": manifest.architecture.family,
        "context_length": manifest.architecture.context_length,
        "slots": slots,
        "context": context,
        "wire_bytes": {name: _wire(manifest, bits) for name, bits in choices.items()},
        "kv_bytes_per_token": kv_bytes_per_token(manifest),
        "engine_bytes": ram,
        "engine_peak_bytes": peak,
        "node_bytes": node,
        "memory_bytes": limit,
        "fits": {name: taken <= limit - limit // _LEFT_SHARE for name, taken in node.items()},
    }


def _wire(manifest: Manifest, precisions: tuple[int, ...]) -> int:
    """Bytes of the files a node needs for these precisions."""
    from release.manifest import PLANE_LO, graph_name

    spared = {graph_name(bits) for bits in (4, 8) if bits not in precisions}
    if precisions == (4,):
        spared.add(PLANE_LO)
    return sum(entry.bytes for entry in manifest.files if entry.name not in spared)


def _subject(source: str) -> Subject:
    from quantize.sizes import expected_manifest
    from quantize.sources.look import look
    from release.listing import read_manifest
    from release.manifest import MANIFEST_NAME

    folder = Path(source).expanduser()
    if (folder / MANIFEST_NAME).is_file():
        return Subject(source, str(folder), read_manifest(folder), folder)
    found = look(source)
    return Subject(found.name, found.where, expected_manifest(found.name, found.config, found.tokenizer_bytes))


def _limit(memory: str | None) -> tuple[int, str]:
    from runtime.memory import limit_bytes

    return (limit_bytes(), "this box") if memory is None else (parse_bytes(memory), "the given box")


def parse_bytes(text: str) -> int:
    """ "4GiB", "512 MB" or a plain number of bytes. Raises BadUse."""
    found = _BYTES.fullmatch(text.strip())
    size_bytes = 0 if found is None else int(float(found[1]) * _UNITS[(found[2] or "").upper()])
    if size_bytes < 1:
        raise report.BadUse(f"--memory {text!r} is no size: say 4GiB, 512MB or a number of bytes")
    return size_bytes


def _speed(subject: Subject, threads: int | None, measure: bool) -> tuple[dict[str, float], str]:
    """Tokens a second of one sequence by precision, or texts a second for a classifier."""
    from edge.config import available_cpus

    threads = threads or available_cpus()
    if measure and subject.folder is not None:
        return _measured(subject.folder, subject.manifest, threads), "the release itself"
    from quantize.speed import expected_per_s

    return {
        str(bits): rate for bits, rate in expected_per_s(subject.manifest, threads).items()
    }, "a trial of the kernels"


def _measured(folder: Path, manifest: Manifest, threads: int) -> dict[str, float]:
    from release.folder import open_release

    release = open_release(folder, verify=False)
    time_one = _decoding if manifest.task == "generate" else _classifying
    return {str(bits): time_one(release, bits, threads) for bits in release.precisions}


def _decoding(release: Any, bits: int, threads: int) -> float:
    import statistics
    import time

    from runtime.ort.load import load_model

    steps = load_model(release, bits, capacity=4 * _MEASURED_TOKENS, threads=threads).steps
    steps.prefill(0, [0, *range(1, _MEASURED_TOKENS)], 0)
    taken = []
    for index in range(_MEASURED_TOKENS):
        began = time.perf_counter()
        steps.decode([1], [_MEASURED_TOKENS + index])
        taken.append(time.perf_counter() - began)
    return 1 / statistics.median(taken)


def _classifying(release: Any, bits: int, threads: int) -> float:
    import statistics
    import time

    from quantize.speed import TEXT_TOKENS
    from runtime.ort.classify import ClassifierModel

    model, text = ClassifierModel(release, bits, threads), " ".join(["a"] * (TEXT_TOKENS - 2))
    taken = []
    for _ in range(_MEASURED_TOKENS):
        began = time.perf_counter()
        model.scores([text])
        taken.append(time.perf_counter() - began)
    return 1 / statistics.median(taken)


def _draw(document: Mapping[str, Any]) -> None:
    from rich.table import Table

    unit = "tokens/s" if document["task"] == "generate" else "texts/s"
    table = Table(box=None, pad_edge=False)
    for column in ("", *document["wire_bytes"]):
        table.add_column(column, justify="left" if not column else "right")
    for label, key in (
        ("on the wire", "wire_bytes"),
        ("engine's memory", "engine_bytes"),
        ("engine's peak", "engine_peak_bytes"),
        ("whole node, peak", "node_bytes"),
    ):
        table.add_row(label, *(_megabytes(count) for count in document[key].values()))
    speeds = document["per_second"]
    table.add_row(unit, *(f"{speeds[name]:.1f}" if name in speeds else "" for name in document["wire_bytes"]))
    table.add_row("fits", *("yes" if fits else "no" for fits in document["fits"].values()))
    report.out().print(f"{document['source']} · {document['family']} · {document['task']}", markup=False)
    report.out().print(table)
    cache = "" if document["task"] != "generate" else (
        f"KV cache {document['kv_bytes_per_token'] / 1000:.0f} kB a token; {document['slots']} slots of "
        f"{document['context']} tokens are counted full. "
    )  # fmt: skip
    report.err().print(
        f"{cache}Both: as while the precision is changed without a pause. Memory of {document['memory_of']}: "
        f"{_megabytes(document['memory_bytes'])}, of which a tenth is left to its system. Speed of one sequence on "
        f"this box, from {document['speed_from']}.",
        style="dim", soft_wrap=True, markup=False,
    )  # fmt: skip


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
