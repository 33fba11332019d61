"""The cloud's settings as files, flags and the environment give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud.config import EngineHostConfig, GatewayConfig, WeightPrecision
from cloud.rank.spec import RankSpec, from_config, rank_environment
from runtime.config import ConfigError, load


@pytest.mark.parametrize("text", ["a:1, b:2", '["a:1", "b:2"]'])
def test_engines_come_as_one_string_from_the_environment(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("WEIR_GATEWAY__ENGINES", text)
    assert load(GatewayConfig).value.engines == ("a:1", "b:2")


def test_engines_come_as_a_list_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "weir.toml"
    file.write_text('[gateway]\nengines = ["a:1", "b:2"]\n')
    assert load(GatewayConfig, file).value.engines == ("a:1", "b:2")


def test_an_engine_needs_a_model_and_takes_its_folders_name() -> None:
    with pytest.raises(ConfigError, match="model_dir"):
        load(EngineHostConfig)
    assert EngineHostConfig(model_dir=Path("/models/tiny")).served_name == "tiny"


def test_a_rank_reads_what_its_host_wrote(tmp_path: Path) -> None:
    config = EngineHostConfig(model_dir=tmp_path, precision=WeightPrecision.NF4, threads_per_rank=3)
    spec = from_config(config, tmp_path)
    environment = rank_environment(spec, 1, 4711)
    assert RankSpec.decode(environment["WEIR_RANK_SPEC"]) == spec
    assert (environment["RANK"], environment["WORLD_SIZE"], environment["MASTER_PORT"]) == ("1", "1", "4711")
    assert environment["OMP_NUM_THREADS"] == "3"
