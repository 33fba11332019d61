"""The edge's settings: what is refused, what is worked out, what its children are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.config import EdgeConfig, available_cpus
from runtime.config import ConfigError, load


def settings(**given: object) -> EdgeConfig:
    return load(EdgeConfig, flags={"releases_dir": "/r", **given}).value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("http_address", "8080"),
        ("grpc_address", ""),
        ("upstream", "cloud:99999"),
        ("commit_rule", "prefix:0"),
        ("threshold", 1.5),
        ("precision", "16"),
        ("slots", 0),
        ("default_deadline_s", 601),
        ("upstream_key_file", "/k"),
    ],
)
def test_a_bad_value_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as fault:
        settings(**{name: value})
    assert "[edge]" in str(fault.value)


def test_a_repository_is_a_folder_or_an_http_address() -> None:
    with pytest.raises(ConfigError, match="or a folder"):
        settings(store_dir="/s", trusted_root="/r.json", repository="ftp://releases.example")
    for place in ("http://a/b/", "https://a", "/srv/x", "srv"):
        assert settings(store_dir="/s", trusted_root="/r.json", repository=place).repository == place


def test_children_read_what_the_launcher_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(run_dir="/run/x", private_classes="a, b")
    monkeypatch.setenv("WEIR_EDGE__SLOTS", "9")  # read once, by the launcher, and not again by its children
    assert EdgeConfig.from_json(config.to_json()) == config
    assert config.private_classes == ("a", "b")
    assert config.engine_target == "unix:/run/x/engine.sock"


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({"cpu.max": "150000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, 4096),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 4096),
        ({"cpu.max": "nonsense"}, 4096),
        ({}, 4096),
    ],
)
def test_threads_follow_the_quota(tmp_path: Path, files: dict[str, str], most: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert 1 <= available_cpus(tmp_path) <= most
