"""What users install: the built wheel, with `[edge]` alone, in a clean environment outside the checkout."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"protos", "wire", "release", "router", "runtime", "quantize", "edge", "cloud", "weir", "bench"}
NOT_ON_THE_EDGE = ("torch", "transformers", "redis", "onnx", "sklearn", "gguf", "accelerate")
EDGE_SIDE = ("protos", "wire", "release", "router", "runtime", "edge", "weir.cli")
IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            print(module.name)
"""

pytestmark = pytest.mark.timeout(420)


@dataclass(frozen=True, slots=True)
class Clean:
    """An environment that knows nothing of the checkout."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "WEIR_", "VIRTUAL_ENV"))
        }
        return {**kept, "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def python(self, code: str, *arguments: str) -> str:
        done = self.run("python", "-c", code, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    _succeed([sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)])
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Clean:
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False, symlinks=True)
    versions = folder / "versions.txt"
    versions.write_text(_versions(ROOT / "requirements" / "edge.lock"))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "bin" / "python"),
        "install",
        "--quiet",
        "--no-input",
        "--no-compile",
    ]
    _succeed([*pip, "--disable-pip-version-check", "--constraint", str(versions), f"{wheel}[edge]"])
    return Clean(folder)


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    info = f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info"
    assert {name.split("/")[0] for name in names} == {*PACKAGES, info}
    assert f"{info}/licenses/LICENSE" in names


def test_the_wheel_holds_every_data_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        file.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file()
        and file.suffix in (".py", ".pyi", ".toml", ".json", ".proto", ".typed", ".html", ".css", ".js", ".txt")
    }
    assert {
        "quantize/sources/catalogue.toml",
        "quantize/calibration_text.txt",
        "weir/py.typed",
        "weir/demo/questions.json",
    } <= expected
    assert expected <= names


def test_no_heavy_package_is_importable_there(clean: Clean) -> None:
    code = "import importlib.util, sys; print([n for n in sys.argv[1:] if importlib.util.find_spec(n)])"
    assert clean.python(code, *NOT_ON_THE_EDGE).strip() == "[]"


def test_everything_of_the_edge_imports_from_the_install(clean: Clean) -> None:
    imported = clean.python(IMPORT_ALL, *EDGE_SIDE).split()
    assert {"edge.launcher", "edge.engine.main", "edge.front.main", "runtime.config", "weir.cli.serve"} <= set(imported)
    where = clean.python("import edge, weir; print(edge.__file__, weir.__file__)")
    assert str(ROOT) not in where


def test_what_is_not_installed_is_named(clean: Clean) -> None:
    done = clean.run("weir", "pull", "smollm2-135m-instruct")
    assert done.returncode != 0
    assert "weir-inference[quantize]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def node(clean: Clean, tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of `weir edge serve`, run from the install."""
    run_dir = tmp_path_factory.mktemp("run")
    log = run_dir / "log"
    command = [
        str(clean.folder / "bin" / "weir"),
        "edge",
        "serve",
        "--releases-dir",
        str(tiny_release),
        "--threads",
        "1",
    ]
    command += ["--http-address", "127.0.0.1:0", "--grpc-address", "127.0.0.1:0"]
    command += ["--set", f"run_dir={run_dir}", "--set", "context_length=256"]
    with log.open("wb") as sink:
        server = subprocess.Popen(command, cwd=clean.folder, env=clean.environment, stdout=sink, stderr=sink)
    try:
        addresses = _addresses(server, run_dir, log)
        _wait_ready(addresses["http"], log)
        yield addresses
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0, log.read_text()


def test_the_installed_node_answers_over_http(node: dict[str, str]) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Where is my parcel?"}], "max_tokens": 8}
    answer = httpx.post(f"http://{node['http']}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert document["usage"]["completion_tokens"] > 0
    assert document["weir"]["tier"] == "edge"


def test_the_installed_client_asks_the_installed_node(clean: Clean, node: dict[str, str]) -> None:
    done = clean.run("weir", "ask", "Where is my parcel?", "--node", node["grpc"], "--max-tokens", "8", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tier"] == "edge"


def _addresses(server: subprocess.Popen[bytes], run_dir: Path, log: Path) -> dict[str, str]:
    ends = time.monotonic() + 90
    while not (run_dir / "front.json").exists():
        assert server.poll() is None and time.monotonic() < ends, log.read_text()
        time.sleep(0.05)
    return dict(json.loads((run_dir / "front.json").read_text()))


def _wait_ready(http: str, log: Path) -> None:
    ends = time.monotonic() + 90
    while True:
        try:
            if httpx.get(f"http://{http}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < ends, log.read_text()
        time.sleep(0.1)


def _versions(lock: Path) -> str:
    """The pins of a lock without its hashes, which a wheel just built cannot have."""
    pins = re.findall(r"^([A-Za-z0-9][\w.-]*==[^\s\\]+(?: ; [^\\\n]+)?)", lock.read_text(), re.MULTILINE)
    return "\n".join(pin.strip() for pin in pins) + "\n"


def _succeed(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
