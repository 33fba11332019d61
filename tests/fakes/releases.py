"""Release folders that hold no model: a true manifest with true hashes over a few bytes.

For whatever handles releases without running them: registries, admins, listings.
"""

from __future__ import annotations

from pathlib import Path

from release.folder import describe_file
from release.manifest import (
    BASE,
    MANIFEST_NAME,
    PLANE_HI,
    PLANE_LO,
    TOKENIZER,
    Architecture,
    CloudReference,
    Manifest,
    Recipe,
    graph_name,
    read,
    write,
)

_FILES = (BASE, PLANE_HI, PLANE_LO, graph_name(4), graph_name(8), TOKENIZER)


def write_release(folder: Path, name: str = "tiny", version: str = "1.0.0", task: str = "generate") -> Manifest:
    """A release folder that verifies; its id depends on name and version."""
    folder.mkdir(parents=True)
    for file in _FILES:
        (folder / file).write_bytes(f"{name} {version} {file}".encode())
    manifest = Manifest(
        name=name,
        version=version,
        architecture=Architecture("llama", 2, 4, 2, 16, 64, 384, 512),
        files=tuple(describe_file(folder / file) for file in _FILES),
        tensors=(),
        matrices=(),
        precisions=(4, 8),
        tokenizer_digest="0" * 64,
        eos_token_ids=(2,),
        cloud=CloudReference("big"),
        recipe=Recipe("rtn", 32, 8, 4),
        task=task,
    )
    text = write(manifest)
    (folder / MANIFEST_NAME).write_text(text)
    return read(text)
