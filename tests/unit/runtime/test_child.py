"""Groups of real processes: together up, together down, nothing left behind."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.child import PARENT_VARIABLE, Backoff, ChildSpec, Group

QUICK = Backoff(first_s=0.02, most_s=0.08, healthy_s=0.5)
SLEEPER = """
import os, sys, pathlib, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
(folder / f"{name}.{os.getpid()}").touch()
time.sleep(60)
"""
POLITE = """
import os, sys, pathlib, signal, time
folder = pathlib.Path(sys.argv[1])
def stop(*_):
    time.sleep(0.1)
    (folder / "ended-well").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
(folder / f"polite.{os.getpid()}").touch()
time.sleep(60)
"""
DEAF = """
import os, sys, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(pathlib.Path(sys.argv[1]) / f"deaf.{os.getpid()}").touch()
time.sleep(60)
"""
ORPHANAGE = """
import asyncio, os, sys
from runtime.child import ChildSpec, Group
code = "import os, sys, pathlib, time; from runtime.child import die_with_parent; die_with_parent(); "
code += "(pathlib.Path(sys.argv[1]) / f'child.{os.getpid()}').touch(); time.sleep(60)"
async def ready(): pass
asyncio.run(Group("g", lambda: [ChildSpec("child", (sys.executable, "-c", code, sys.argv[1]))], ready).run())
"""


def bare(code: str, *arguments: str) -> tuple[str, ...]:
    """A Python that starts in 10 ms: no site packages."""
    return (sys.executable, "-I", "-S", "-c", code, *arguments)


def alive(pid: int) -> bool:
    """False for a zombie as well: it only waits to be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def until(condition: Callable[[], bool], within_s: float = 15.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


def pids(folder: Path, name: str) -> set[int]:
    return {int(file.suffix[1:]) for file in folder.glob(f"{name}.*")}


def sleepers(folder: Path) -> list[ChildSpec]:
    return [ChildSpec(name, bare(SLEEPER, str(folder), name)) for name in ("one", "two")]


async def at_once() -> None:
    pass


async def never() -> None:
    await asyncio.Event().wait()


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_one_that_dies_takes_the_others_and_all_start_again(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    group = Group("pair", lambda: sleepers(tmp_path), at_once, lambda *state: told.append(state), QUICK)
    task = asyncio.create_task(group.run())
    await until(lambda: len(pids(tmp_path, "one")) == 1 == len(pids(tmp_path, "two")))
    first = set(group.pids)
    os.kill(next(iter(pids(tmp_path, "two"))), signal.SIGKILL)
    await until(lambda: len(pids(tmp_path, "one")) == 2 == len(pids(tmp_path, "two")))
    assert not any(alive(pid) for pid in first)
    assert not first & set(group.pids)
    assert (group.restarts, group.state) == (1, "ready")
    assert [state for state, _ in told] == ["starting", "ready", "down", "starting", "ready"]
    assert told[2] == ("down", "two exited with -9")
    second = group.pids
    await stop(task)
    assert told[-1] == ("stopped", "")
    assert not any(alive(pid) for pid in second)
    assert group.pids == ()


async def test_a_child_gets_no_variable_that_is_withheld_but_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SECRET", "secret", "OPEN"):
        monkeypatch.setenv(name, "inherited")
    code = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(repr(dict(os.environ))); time.sleep(60)"
    plain, given = tmp_path / "plain", tmp_path / "given"
    specs = [
        ChildSpec("plain", bare(code, str(plain)), withheld=("SECRET",)),
        ChildSpec("given", bare(code, str(given)), {"SECRET": "own"}, withheld=("SECRET",)),
    ]
    task = asyncio.create_task(Group("two", lambda: specs, at_once, backoff=QUICK).run())
    await until(lambda: all(file.exists() and file.read_text().endswith("}") for file in (plain, given)))
    await stop(task)
    told = [ast.literal_eval(file.read_text()) for file in (plain, given)]
    assert [(seen.get("SECRET"), seen.get("secret"), seen["OPEN"]) for seen in told] == [
        (None, None, "inherited"),
        ("own", None, "inherited"),
    ]


async def test_a_stopped_group_may_end_by_itself(tmp_path: Path) -> None:
    group = Group("polite", lambda: [ChildSpec("polite", bare(POLITE, str(tmp_path)))], at_once, backoff=QUICK)
    task = asyncio.create_task(group.run())
    await until(lambda: bool(pids(tmp_path, "polite")))
    await stop(task)
    assert (tmp_path / "ended-well").exists()


async def test_one_that_does_not_listen_is_killed_after_the_grace(tmp_path: Path) -> None:
    specs = [ChildSpec(f"deaf-{number}", bare(DEAF, str(tmp_path))) for number in range(3)]
    group = Group("deaf", lambda: specs, at_once, backoff=QUICK, grace_s=0.3)
    task = asyncio.create_task(group.run())
    await until(lambda: len(pids(tmp_path, "deaf")) == 3)
    began = time.monotonic()
    await stop(task)
    assert 0.3 <= time.monotonic() - began < 0.8
    assert not any(alive(pid) for pid in pids(tmp_path, "deaf"))


async def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", ORPHANAGE, str(tmp_path)]
    parent = await asyncio.create_subprocess_exec(*command, env=environment)
    await until(lambda: bool(pids(tmp_path, "child")))
    child = next(iter(pids(tmp_path, "child")))
    assert alive(child)
    parent.kill()
    await parent.wait()
    await until(lambda: not alive(child), within_s=5.0)


def test_a_child_whose_parent_has_gone_already_ends() -> None:
    code = "from runtime.child import die_with_parent; die_with_parent()"
    for parent, status in ((str(os.getpid()), 0), ("1", 1)):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), PARENT_VARIABLE: parent}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=False, timeout=30
        )
        assert done.returncode == status
        assert (b"the parent process has gone" in done.stderr) == bool(status)


_SERVERS = ("edge.front.__main__", "edge.engine.process", "cloud.start", "cloud.rank.main", "weir.cli.serve")


def test_a_process_that_serves_may_open_as_many_files_as_it_may_ask_for() -> None:
    code = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (64, r.getrlimit(r.RLIMIT_NOFILE)[1]));"
    code += "from runtime.child import begin; begin(); print(*r.getrlimit(r.RLIMIT_NOFILE))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, timeout=30)
    soft, hard = map(int, told.stdout.split())
    assert soft > 64 and soft in (hard, 65536)


@pytest.mark.parametrize("module", _SERVERS)
def test_every_process_that_serves_begins_so(module: str) -> None:
    """Wherever a process takes up its work: no module of these starts one without."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    calls = [node for node in ast.walk(ast.parse(Path(spec.origin).read_text())) if isinstance(node, ast.Call)]
    assert "begin" in [call.func.id for call in calls if isinstance(call.func, ast.Name)]


async def test_restarts_come_ever_slower_up_to_a_bound() -> None:
    starts: list[float] = []

    def specs() -> list[ChildSpec]:
        starts.append(asyncio.get_running_loop().time())
        return [ChildSpec("short-lived", ("/bin/false",))]

    group = Group("failing", specs, never, backoff=Backoff(first_s=0.05, most_s=0.2, healthy_s=60))
    task = asyncio.create_task(group.run())
    await until(lambda: len(starts) == 6)
    await stop(task)
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    assert all(gap >= least for gap, least in zip(gaps, (0.05, 0.1, 0.2, 0.2, 0.2), strict=True))
    assert group.detail == "" and group.state == "stopped"
    assert group.restarts == 5


async def test_a_slow_start_that_fails_does_not_count_as_health() -> None:
    """Only time served resets the backoff; a group that dies while starting must not be tried ever faster."""
    starts: list[float] = []

    def specs() -> list[ChildSpec]:
        starts.append(asyncio.get_running_loop().time())
        return [ChildSpec("slow", ("/bin/sleep", "0.1"))]

    group = Group("slow", specs, never, backoff=Backoff(first_s=0.05, most_s=0.4, healthy_s=0.01))
    task = asyncio.create_task(group.run())
    await until(lambda: len(starts) == 4)
    await stop(task)
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    assert all(gap >= least for gap, least in zip(gaps, (0.15, 0.2, 0.3), strict=True))


async def test_time_served_resets_the_backoff() -> None:
    starts: list[float] = []

    def specs() -> list[ChildSpec]:
        starts.append(asyncio.get_running_loop().time())
        return [ChildSpec("served", ("/bin/sleep", "0.2" if len(starts) == 3 else "0"))]

    group = Group("served", specs, at_once, backoff=Backoff(first_s=0.1, most_s=5.0, healthy_s=0.15))
    task = asyncio.create_task(group.run())
    await until(lambda: len(starts) == 4)
    await stop(task)
    assert starts[3] - starts[2] < 0.2 + 0.4


async def test_a_group_that_cannot_become_ready_says_why(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []

    async def fails() -> None:
        raise ConnectionError("nobody listens on rank0.sock")

    group = Group("mute", lambda: sleepers(tmp_path), fails, lambda *state: told.append(state), QUICK)
    task = asyncio.create_task(group.run())
    await until(lambda: len(told) >= 2)
    await stop(task)
    assert told[1] == ("down", "mute never became ready: nobody listens on rank0.sock")
    assert group.pids == ()


async def test_a_program_that_does_not_exist_ends_the_run(tmp_path: Path) -> None:
    specs = [*sleepers(tmp_path), ChildSpec("absent", (str(tmp_path / "absent"),))]
    group = Group("broken", lambda: specs, at_once, backoff=QUICK)
    with pytest.raises(FileNotFoundError):
        await group.run()
    assert group.state == "stopped"
    await until(lambda: not any(alive(pid) for pid in pids(tmp_path, "one") | pids(tmp_path, "two")))
