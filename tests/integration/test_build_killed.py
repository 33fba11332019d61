"""A build that is killed leaves no process, and the next one clears what lay on the disk."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

from quantize.build import build_release
from release.folder import open_release
from tests import releases

BUILD = """
import sys
from pathlib import Path
from quantize.build import build_release
build_release(Path(sys.argv[1]), Path(sys.argv[2]), name="x")
"""


def wait_for(what: str, seconds: float, ready: object) -> None:
    end = time.monotonic() + seconds
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < end, f"no {what} within {seconds} s"
        time.sleep(0.05)


def test_a_killed_build_leaves_nothing_running_and_nothing_behind(tmp_path: Path, tiny_hf_folder: Path) -> None:
    out = tmp_path / "out"
    root = Path(__file__).parent.parent.parent
    process = subprocess.Popen([sys.executable, "-c", BUILD, str(tiny_hf_folder), str(out)], cwd=root)
    try:
        parent = psutil.Process(process.pid)
        wait_for("exporter", 60, parent.children)
        exporter = parent.children()[0]
        # Only once it has asked to end with its parent: before that nothing can be promised.
        wait_for("busy exporter", 60, lambda: exporter.cpu_times().user > 0.5)
    finally:
        process.kill()
        process.wait(10)
    wait_for("end of the exporter", 10, lambda: not exporter.is_running() or exporter.status() == "zombie")
    assert not out.exists()
    assert len(list(tmp_path.iterdir())) == 1

    build_release(tiny_hf_folder, out, name="x", export=releases.tiny_exported())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert open_release(out).precisions == (4, 8)
