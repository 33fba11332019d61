"""What a model is, without fetching it: its config and its tokenizer's size, wherever that is written.

    FOLDER           its config.json
    catalogue name   the cached folder's config.json, else what the catalogue says
    FILE.gguf        its header
    org/name[:FILE]  the cached folder's, else config.json alone from the hub

No weights are read and nothing but a config.json is fetched.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantize.progress import Silent
from quantize.sources import folder as folders
from quantize.sources import gguf
from quantize.sources.cache import Cache
from quantize.sources.catalogue import shipped
from quantize.sources.errors import BadModel, NoNetwork, UnknownModel
from quantize.sources.hub import Hub, NoAnswer
from quantize.sources.resolve import HUB_ID


@dataclass(frozen=True, slots=True)
class Looked:
    """`name` is the model's, `where` says where the config was found; `tokenizer_bytes` is None where nobody knows."""

    name: str
    where: str
    config: Mapping[str, Any]
    tokenizer_bytes: int | None


def look(name: str, environment: Mapping[str, str] | None = None) -> Looked:
    """Raises a SourceError that says what to do."""
    env = os.environ if environment is None else environment
    cache, path = Cache.from_environment(env), Path(name).expanduser()
    entry = shipped().find(name)
    if path.is_dir() and (entry is None or (path / "config.json").exists()):
        return _folder(path.resolve(), path.resolve().name)
    if entry is not None:
        kept = cache.folder(entry.name)
        if kept.is_dir():
            return _folder(kept, entry.name)
        return Looked(entry.name, "the catalogue", entry.config, entry.tokenizer_bytes)
    if path.is_file():
        return Looked(path.stem, str(path), gguf.read_config(path), None)
    match = HUB_ID.match(name)
    if match is None or name.startswith((".", "/", "~")):
        raise UnknownModel(f"no model, folder or file {name!r}: give a folder, a .gguf file, a name or a hub id")
    kept = cache.folder(name.replace("/", "--").replace(":", "--"))
    return _folder(kept, name) if kept.is_dir() else _hub(match[1], Hub(env.get("HF_ENDPOINT")))


def _folder(path: Path, name: str) -> Looked:
    tokenizer = path / "tokenizer.json"
    size = tokenizer.stat().st_size if tokenizer.is_file() else None
    return Looked(name, str(path), folders.read_json(path / "config.json"), size)


def _hub(identity: str, hub: Hub) -> Looked:
    try:
        repository = hub.look_up(identity)
    except NoAnswer as why:
        raise NoNetwork(f"{identity} is on a hub only, and {why}: size a folder or a name of the catalogue") from why
    wanted = repository.find("config.json")
    if wanted is None:
        raise BadModel(f"{identity} has no config.json: pull one of its GGUF files and size that")
    with tempfile.TemporaryDirectory() as folder:
        hub.fetch([wanted], Path(folder), Silent(), f"looking at {identity}")
        config = folders.read_json(Path(folder) / "config.json")
    tokenizer = repository.find("tokenizer.json")
    where = f"hub: {repository.identity}@{repository.commit[:12]}"
    return Looked(identity, where, config, None if tokenizer is None else tokenizer.size)
