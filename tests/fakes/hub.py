"""A model hub with the two requests that Weir makes: what a model consists of, and a file's bytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tests.fakes.file_server import FileServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def add_model(server: FileServer, identity: str, folder: Path, licence: str = "apache-2.0") -> None:
    """Hands out every file of `folder` as `identity`; weights as large files, the others as git's own."""
    siblings = []
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        server.files[file_path(identity, file.name)] = content
        stated: dict[str, object] = {"rfilename": file.name, "size": len(content), "blobId": _git_digest(content)}
        if file.suffix in (".safetensors", ".gguf"):
            stated["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        siblings.append(stated)
    document = {"id": identity, "sha": COMMIT, "siblings": siblings, "cardData": {"license": licence}}
    server.files[api_path(identity)] = json.dumps(document).encode()


def api_path(identity: str) -> str:
    return f"/api/models/{identity}"


def file_path(identity: str, name: str) -> str:
    return f"/{identity}/resolve/{COMMIT}/{name}"


def _git_digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
