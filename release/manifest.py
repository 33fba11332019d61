"""The manifest: what a release is, as frozen dataclasses, with its id.

Id: `name@semver+digest12`, the first 12 hex digits of the SHA-256 over the manifest's canonical JSON
(sorted keys, no spaces) without its id. The digest is checked over the document as read, so that
fields of a newer version count although this reader passes over them.

A manifest names every file with its size, hash and chunk hashes, and every tensor with its place in
those files; nothing outside it needs to be trusted. No I/O here: text in, text out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from release.document import DocumentError, parse, plain
from release.errors import ManifestError

SCHEMA = 1
MANIFEST_NAME = "manifest.json"
BASE, PLANE_HI, PLANE_LO = "base.bin", "plane.hi.bin", "plane.lo.bin"
TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
CALIBRATION = "calibration.json"
CHUNK_BYTES = 4 << 20

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "uint8": 1, "int64": 8, "int32": 4}

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


MOST_VERSION = 128  # characters


def graph_name(precision: int) -> str:
    """The graph file of one precision."""
    return f"graph.{precision}.onnx"


def sums_name(columns: int) -> str:
    """What a graph calls the weight that sums the blocks of so many inputs."""
    return f"block_sums.{columns}"


def check_identity(name: str, version: str) -> None:
    """Raises ValueError unless a release may be called that."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"name {name!r} must be lower-case letters, digits, . _ - (at most 64)")
    if not _SEMVER.fullmatch(version):
        raise ValueError(f"version {version!r} is not a semantic version such as 1.0.0")
    if len(version) > MOST_VERSION:  # it becomes part of file names, and its numbers are compared
        raise ValueError(f"version {version[:40]}… has {len(version)} characters; at most {MOST_VERSION} may be")


@dataclass(frozen=True, slots=True)
class File:
    """One file of the release. `chunks` are SHA-256 of consecutive pieces of `chunk_bytes` bytes."""

    name: str
    bytes: int
    sha256: str
    chunk_bytes: int
    chunks: tuple[str, ...]

    def __post_init__(self) -> None:
        if not _FILE.fullmatch(self.name) or self.name == MANIFEST_NAME:
            raise ValueError(f"{self.name!r} is not a file name a release may hold: letters, digits, . _ - only")
        if self.bytes < 0 or self.chunk_bytes < 1:
            raise ValueError(f"{self.name}: bytes and chunk_bytes must be positive")
        if not all(_SHA256.fullmatch(entry) for entry in (self.sha256, *self.chunks)):
            raise ValueError(f"{self.name}: every sha256 must be 64 lower-case hex digits")
        if len(self.chunks) != math.ceil(self.bytes / self.chunk_bytes):
            raise ValueError(f"{self.name}: {self.bytes} bytes need {math.ceil(self.bytes / self.chunk_bytes)} chunks")


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where the values of one initializer lie. Several may lie on the same bytes."""

    name: str
    file: str
    offset: int
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"tensor {self.name}: dtype {self.dtype!r} is not one of {', '.join(DTYPE_BYTES)}")
        if self.offset < 0 or any(size < 0 for size in self.shape):
            raise ValueError(f"tensor {self.name}: offset and shape must not be negative")

    @property
    def bytes(self) -> int:
        return DTYPE_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight held as nested planes, rows x columns = output x input features.

    Its tensors: `<name>.q` (plane.hi), `<name>.s` and `<name>.z` (base), `<name>.r` (plane.lo), and
    `<name>.c` (plane.lo) where `residual_step` is 0: then the divisor c is kept per block. With `offsets` the
    4-bit weight has an offset per block: `<name>.f` (codes, packed) and `<name>.u` (units), both in base. A
    matrix whose rows are also looked up names the lookup table in `table`: the same codes as [rows, columns].
    """

    name: str
    rows: int
    columns: int
    block_size: int
    residual_step: int = 16
    offsets: bool = False
    table: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.residual_step <= 16:
            raise ValueError(f"matrix {self.name}: residual_step must be 0 (per block) or 1 to 16")
        if self.block_size < 16 or self.columns % self.block_size:
            raise ValueError(f"matrix {self.name}: columns must be a multiple of block_size, at least 16")


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape a runtime must know to feed the graphs. `context_length` in tokens."""

    family: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    vocabulary: int
    context_length: int


@dataclass(frozen=True, slots=True)
class CloudReference:
    """The cloud model this release was calibrated against and its promise refers to.

    `name` is a catalogue name or hub id; `digest` identifies its weights, empty where nobody knew them.
    """

    name: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the weights were made. `source_digest` is over the source folder's weight files.

    `text_digest` is of the text that errors were compensated on, empty where none was.
    """

    method: str
    block_size: int
    head_bits: int
    accuracy_level: int
    source_digest: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)
    text_digest: str = ""


@dataclass(frozen=True, slots=True)
class QualityFigure:
    """One measured figure, with what is needed to repeat it."""

    name: str
    value: float
    precision: int
    items: int
    seed: int
    data_digest: str
    cpu_class: str


@dataclass(frozen=True, slots=True)
class SelfTest:
    """A known prompt and the logits a sound session gives after it, at one precision.

    `token_ids` are the likeliest of the vocabulary, likeliest first, `logits` theirs. On `cpu_class` every one of
    them comes within `tolerance`; on another, whose kernels round otherwise, within `tolerance_elsewhere`.
    """

    precision: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logits: tuple[float, ...]
    cpu_class: str
    tolerance: float
    tolerance_elsewhere: float

    def __post_init__(self) -> None:
        if not self.prompt_ids or not self.token_ids or len(self.token_ids) != len(self.logits):
            raise ValueError("self_tests: a prompt is needed, and one logit per token id")
        if not 0 < self.tolerance <= self.tolerance_elsewhere:
            raise ValueError("self_tests: tolerance must be above 0 and at most tolerance_elsewhere")


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """When an answer in the making is given up: under the level of its running confidence, by tokens so far.

    `levels` are for 1, 2 to 3, 4 to 7, 8 to 15 tokens and so on; 0 gives nothing up. Of the answers that would end
    well, at most the share `max_false_stops` is given up. How it did on held-out folds: of `n` answers that ended
    well it gave `false_stops` up, and of the `tokens` tokens of the others it saved `tokens_saved`.
    """

    levels: tuple[float, ...]
    max_false_stops: float
    n: int
    false_stops: int
    tokens: int
    tokens_saved: int

    def __post_init__(self) -> None:
        if len(self.levels) > 32 or not all(0 <= level <= 1 for level in self.levels):
            raise ValueError("early_stop: at most 32 levels, each within 0 and 1")


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted confidence, its threshold, and how well it did on held-out folds.

    The first nine fields are those of the router's calibrator; `features` names its inputs in order.
    `auroc` is of out-of-fold confidence against agreement; None where all items agreed or none did.
    `escalation_share` is the share of calibration items under the threshold. `max_disagreement` is
    the risk the threshold was chosen for: the share of all requests answered on the edge where the
    cloud would have answered otherwise. `target` is what was agreed with: the cloud's answers, or, where no
    cloud model was at hand, the labels of texts that were not fitted on. `early_stop` is None where the items do
    not support one, and in releases that were calibrated before there was one: then no answer is given up early.
    """

    id: str
    precision: int
    cpu_class: str
    commit_rule: str
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    coefficients: tuple[float, ...]
    intercept: float
    threshold: float
    features: tuple[str, ...]
    n: int
    n_agree: int
    auroc: float | None
    max_disagreement: float
    escalation_share: float
    brier: float | None = None
    target: str = "cloud"
    early_stop: EarlyStop | None = None

    @property
    def stop_levels(self) -> tuple[float, ...]:
        """The levels of the early stop; none without one."""
        return () if self.early_stop is None else self.early_stop.levels

    def __post_init__(self) -> None:
        if self.target not in ("cloud", "labels"):
            raise ValueError(f"calibration {self.id}: target must be cloud or labels, not {self.target!r}")
        for name in ("mean", "scale", "coefficients"):
            if len(getattr(self, name)) != len(self.features):
                raise ValueError(f"calibration {self.id}: {name} does not have one entry per feature")
        if self.precision not in (4, 8):
            raise ValueError(f"calibration {self.id}: precision must be 4 or 8, not {self.precision}")


@dataclass(frozen=True, slots=True)
class Labelling:
    """How a classifier's logits become labels, and what texts it takes.

    `multi_label`: labels do not exclude each other, each holds where its own probability reaches its entry of
    `thresholds` (in the order of the labels; empty: 0.5 for all). `text_pairs`: it was made for pairs of texts.
    `truncates`: a text longer than the context loses its end, as in training; otherwise it is refused.
    """

    multi_label: bool = False
    thresholds: tuple[float, ...] = ()
    text_pairs: bool = False
    truncates: bool = False

    def __post_init__(self) -> None:
        if any(not 0 < threshold < 1 for threshold in self.thresholds):
            raise ValueError("labelling: every threshold must lie between 0 and 1")
        if self.thresholds and not self.multi_label:
            raise ValueError("labelling: thresholds belong to labels that do not exclude each other")

    def threshold(self, index: int) -> float:
        """The probability from which the label of that place holds."""
        return self.thresholds[index] if self.thresholds else 0.5


@dataclass(frozen=True, slots=True)
class Manifest:
    """A release. Make one with `sealed`, read one with `read`. `labels` are a classifier's, in order of its outputs."""

    name: str
    version: str
    architecture: Architecture
    files: tuple[File, ...]
    tensors: tuple[Tensor, ...]
    matrices: tuple[Matrix, ...]
    precisions: tuple[int, ...]
    tokenizer_digest: str
    eos_token_ids: tuple[int, ...]
    cloud: CloudReference
    recipe: Recipe
    quality: tuple[QualityFigure, ...] = ()
    calibrations: tuple[Calibration, ...] = ()
    self_tests: tuple[SelfTest, ...] = ()
    labels: tuple[str, ...] = ()
    task: str = "generate"
    labelling: Labelling = field(default_factory=Labelling)
    schema: int = SCHEMA
    id: str = ""

    def __post_init__(self) -> None:
        check_identity(self.name, self.version)
        if not self.precisions or any(bits not in (4, 8) for bits in self.precisions):
            raise ValueError(f"precisions {list(self.precisions)} must be 4, 8 or both")
        sizes = {entry.name: entry.bytes for entry in self.files}
        if len(sizes) != len(self.files):
            raise ValueError("files: a name occurs twice")
        for bits in self.precisions:
            if graph_name(bits) not in sizes:
                raise ValueError(f"files: {graph_name(bits)} is missing, although precision {bits} is promised")
        if len({tensor.name for tensor in self.tensors}) != len(self.tensors):
            raise ValueError("tensors: a name occurs twice")
        if len(self.labelling.thresholds) not in (0, len(self.labels)):
            raise ValueError(f"labelling: {len(self.labelling.thresholds)} thresholds for {len(self.labels)} labels")
        for tensor in self.tensors:
            if tensor.offset + tensor.bytes > sizes.get(tensor.file, -1):
                raise ValueError(f"tensor {tensor.name} lies outside {tensor.file}")

    def weight_files(self, precision: int) -> tuple[str, ...]:
        """The files a session of that precision is made of: its graph and those planes the release has."""
        planes = (BASE, PLANE_HI, PLANE_LO) if precision == 8 else (BASE, PLANE_HI)
        listed = {entry.name for entry in self.files}
        return (graph_name(precision), *(name for name in planes if name in listed))

    def file(self, name: str) -> File:
        """The file of that name. Raises ManifestError where the release has none."""
        for entry in self.files:
            if entry.name == name:
                return entry
        raise ManifestError(f"release {self.id or self.name} has no file {name}")


def document(manifest: Manifest) -> dict[str, Any]:
    """The manifest as JSON's own types, without its id."""
    result: dict[str, Any] = plain(manifest)
    del result["id"]
    return result


def release_id(content: Mapping[str, Any]) -> str:
    """The id of a manifest document, whatever it says its id is."""
    body = {key: value for key, value in content.items() if key != "id"}
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return f"{content['name']}@{content['version']}+{hashlib.sha256(canonical.encode()).hexdigest()[:12]}"


def sealed(manifest: Manifest) -> Manifest:
    """The manifest with the id that belongs to its content."""
    return dataclasses.replace(manifest, id=release_id(document(manifest)))


def write(manifest: Manifest) -> str:
    """The manifest's text. Seals it."""
    content = document(manifest)
    return json.dumps({"id": release_id(content), **content}, indent=1, allow_nan=False) + "\n"


def read(text: str | bytes) -> Manifest:
    """The manifest in `text`. Raises ManifestError naming the field that is wrong, and what is wrong with it."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"the manifest is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ManifestError("the manifest must be a JSON object")
    schema = content.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise ManifestError("the manifest has no schema number: this is not a Weir release")
    if schema > SCHEMA + 1:
        raise ManifestError(f"the manifest has schema {schema}; this Weir reads up to {SCHEMA + 1}: update Weir")
    try:
        manifest = parse(Manifest, content)
    except DocumentError as error:
        raise ManifestError(f"the manifest is wrong: {error}") from error
    try:
        expected = release_id(content)
    except ValueError as error:  # NaN or an infinity in a field that is not known
        raise ManifestError(f"the manifest is wrong: {error}") from error
    if manifest.id != expected:
        raise ManifestError(f"the manifest's id is {manifest.id!r}, but its content is {expected}: it was altered")
    return manifest
