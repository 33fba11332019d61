"""Models from a Hugging Face hub, or whatever HF_ENDPOINT names.

The hub's own client says where files are and proves who asks; the bytes come through transfer, since
that client no longer resumes a file after its process has ended. Each file is checked against the
digest that the hub states, at one commit.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from quantize.progress import Progress
from quantize.sources import folder as folders
from quantize.sources import transfer
from quantize.sources.errors import BadModel, SourceError, UnknownModel

ANSWER_WITHIN_S = 5.0
_READ_TIMEOUT_S = 30.0


class NoAnswer(SourceError):
    """No hub answered in time."""


class Refused(UnknownModel):
    """A hub answered, and does not hand this model out."""


@dataclass(frozen=True, slots=True)
class Repository:
    """One commit of a model on a hub."""

    identity: str
    commit: str
    licence: str
    files: tuple[transfer.Wanted, ...]

    def find(self, name: str) -> transfer.Wanted | None:
        return next((file for file in self.files if file.name == name), None)


class Hub:
    """`endpoint` and token are those of huggingface_hub's own settings unless given."""

    def __init__(self, endpoint: str | None = None, answer_within_s: float = ANSWER_WITHIN_S) -> None:
        from huggingface_hub import constants, get_token

        self.endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        self._offline = constants.HF_HUB_OFFLINE
        self._within_s = answer_within_s
        token = get_token()
        self._headers: Mapping[str, str] = {"Authorization": f"Bearer {token}"} if token else {}

    def look_up(self, identity: str) -> Repository:
        """Raises NoAnswer after `answer_within_s` in total at the latest, Refused where the hub says no."""
        if self._offline:
            raise NoAnswer("HF_HUB_OFFLINE is set, so no hub was asked")
        answers: queue.SimpleQueue[httpx.Response | Exception] = queue.SimpleQueue()
        # A thread, since no timeout of a client covers a resolver that hangs.
        threading.Thread(target=self._ask, args=(identity, answers), daemon=True).start()
        try:
            answer = answers.get(timeout=self._within_s)
        except queue.Empty:
            raise NoAnswer(f"no hub answered within {self._within_s:g} s") from None
        if isinstance(answer, Exception):
            raise NoAnswer(f"no hub answered ({answer or type(answer).__name__})") from answer
        if answer.status_code >= 500:
            raise NoAnswer(f"the hub answered {answer.status_code}")
        if answer.status_code != httpx.codes.OK:
            raise Refused(_refusal(identity, answer.status_code))
        try:
            return self._repository(identity, answer.json())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NoAnswer("what answered is not a hub") from error

    def fetch(self, files: Sequence[transfer.Wanted], into: Path, progress: Progress, task: str) -> None:
        """Files that are there already are not asked for again."""
        progress.start(task, sum(file.size for file in files), "bytes")
        with httpx.Client(timeout=_READ_TIMEOUT_S) as client:
            for file in files:
                transfer.fetch(client, file, into, lambda amount: progress.advance(task, amount))
        progress.finish(task)

    def _ask(self, identity: str, answers: queue.SimpleQueue[httpx.Response | Exception]) -> None:
        url = f"{self.endpoint}/api/models/{identity}"
        try:
            answers.put(httpx.get(url, params={"blobs": "true"}, headers=dict(self._headers), timeout=self._within_s))
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            answers.put(error)

    def _repository(self, identity: str, document: Mapping[str, Any]) -> Repository:
        commit = str(document["sha"])
        card = document.get("cardData") or {}
        files = tuple(self._file(identity, commit, sibling) for sibling in document["siblings"])
        return Repository(identity, commit, str(card.get("license") or "not stated"), files)

    def _file(self, identity: str, commit: str, sibling: Mapping[str, Any]) -> transfer.Wanted:
        from huggingface_hub import hf_hub_url

        name = sibling["rfilename"]
        lfs = sibling.get("lfs") or {}
        return transfer.Wanted(
            url=hf_hub_url(identity, name, revision=commit, endpoint=self.endpoint),
            name=name,
            size=int(sibling["size"]),
            sha256=lfs.get("sha256", ""),
            git_sha1="" if lfs else str(sibling.get("blobId", "")),
            headers=self._headers,
        )


def chosen(repository: Repository, file: str) -> list[transfer.Wanted]:
    """The files that make a folder, or the one GGUF file. Raises BadModel naming what to ask for instead."""
    ggufs = [item for item in repository.files if item.name.endswith(".gguf") and "/" not in item.name]
    if file:
        found = [item for item in ggufs if item.name == file]
        if not found:
            names = ", ".join(item.name for item in ggufs) or "none"
            raise BadModel(f"{repository.identity} holds no {file}; its GGUF files: {names}")
        return found
    weights = [item for item in repository.files if _is_weights(item.name)]
    if weights:
        return [
            item for item in repository.files if item.name in (*folders.SMALL_FILES, folders.SHARDS_INDEX)
        ] + weights
    if len(ggufs) == 1:
        return ggufs
    if ggufs:
        names = ", ".join(item.name for item in ggufs)
        raise BadModel(
            f"{repository.identity} holds several GGUF files; name one as {repository.identity}:FILE, of {names}"
        )
    raise BadModel(f"{repository.identity} holds neither safetensors nor GGUF; pickled weights are not loaded")


def _is_weights(name: str) -> bool:
    """The model's own shards, not a second copy under another name or in a folder."""
    return name.endswith(".safetensors") and "/" not in name and name.startswith("model")


def _refusal(identity: str, status: int) -> str:
    if status in (401, 403):
        return f"the hub does not hand out {identity} without permission: accept its terms there, then set HF_TOKEN"
    return f"the hub knows no {identity} (it answered {status}): check the spelling"
