"""The edge's settings: what is refused, what is worked out, what its children are told."""

from __future__ import annotations

import pytest

from edge.config import EdgeConfig, available_cpus
from runtime.config import ConfigError, load
from runtime.processors import allowed


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


def test_threads_are_those_of_the_processors_that_are_kept_to() -> None:
    one = str(min(allowed()))
    assert settings().threads == available_cpus()
    assert settings(cpus=one).threads == 1
    assert settings(cpus=one, threads=3).threads == 3


@pytest.mark.parametrize(("cpus", "word"), [("4000-4001", "none of 4000-4001"), ("one", "'one'"), ("3-1", "'3-1'")])
def test_processors_that_cannot_be_used_are_refused_by_name(cpus: str, word: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)cpus.*{word}"):
        settings(cpus=cpus)
