"""Which models a node runs, and what each is given of the node's settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from edge.config import EdgeConfig
from edge.engine_specs import engine_spec
from edge.model_config import ModelConfig
from edge.models import each, folder_of, found_names, settled
from edge.starts import Start
from release.errors import ReleaseError
from release.listing import list_releases
from runtime.processors import allowed
from tests.fakes.releases import write_release

MIB = 1 << 20


def config(**settings: object) -> EdgeConfig:
    return EdgeConfig(**{"releases_dir": Path("r"), "run_dir": Path("/run/w"), **settings})  # type: ignore[arg-type]


def test_one_model_is_the_node_itself() -> None:
    node = config(slots=3)
    assert each(settled(node, {"a"})) == (node,)
    named = config(model="b")
    assert each(settled(named, {"a", "c"})) == (named,)
    assert not named.named_in_folder


def test_every_model_that_is_found_is_run_and_each_has_a_folder() -> None:
    own = each(settled(config(slots=3), {"b", "a"}))
    assert [(one.model, one.slots, one.run_dir) for one in own] == [
        ("a", 3, Path("/run/w/a")),
        ("b", 3, Path("/run/w/b")),
    ]
    assert all(one.named_in_folder and one.named_in_store and not one.models for one in own)


def test_a_model_has_its_own_settings_and_the_nodes_for_the_rest() -> None:
    entries = (ModelConfig(name="a", slots=9, precision="4"), ModelConfig(name="b", releases_dir=Path("own")))
    a, b = each(config(models=entries, threads=2, memory_budget_bytes=300 * MIB))
    assert (a.slots, a.precision, a.threads, a.releases_dir) == (9, "4", 2, Path("r"))
    assert (b.slots, b.precision, b.releases_dir) == (4, "auto", Path("own"))
    assert a.named_in_folder and not b.named_in_folder


def test_a_model_has_its_own_processors_memory_and_manner_of_waiting() -> None:
    one = str(min(allowed()))
    entries = (
        ModelConfig(name="a", cpus=one, spin=True, kv_tokens=64, prefix_cache_bytes=0, prefix_cache_answers=True),
        ModelConfig(name="b", cpus=one, threads=5),
        ModelConfig(name="c"),
    )
    a, b, c = each(config(models=entries, threads=7, kv_tokens=4096))
    assert (a.cpus, a.threads, a.spin, a.kv_tokens) == (one, 1, True, 64), "threads follow its processors"
    assert (a.prefix_cache_bytes, a.prefix_cache_answers) == (0, True)
    assert (b.cpus, b.threads, b.spin) == (one, 5, False)
    assert (c.cpus, c.threads, c.kv_tokens, c.prefix_cache_answers) == ("", 7, 4096, False)


@pytest.mark.parametrize("task", ["generate", "classify"])
def test_an_engine_is_told_its_processors_and_whether_to_spin(tmp_path: Path, task: str) -> None:
    write_release(tmp_path / "r", task=task)
    one = str(min(allowed()))
    node = config(cpus=one, spin=True, releases_dir=tmp_path / "r")
    spec = engine_spec(node, Start(list_releases(tmp_path / "r").found[0], 8))
    told = json.loads(spec.arguments[-1])
    assert (told["cpus"], told["threads"], told["spin"]) == (one, 1, True)


def test_memory_is_shared_by_those_that_claim_none() -> None:
    claims = ({"name": "a", "memory_budget_bytes": 100 * MIB}, {"name": "b"}, {"name": "c"})
    own = each(config(models=claims, memory_budget_bytes=500 * MIB))
    assert [one.memory_budget_bytes for one in own] == [100 * MIB, 200 * MIB, 200 * MIB]
    assert each(config(models=claims))[1].memory_budget_bytes is None


def test_without_a_budget_each_engine_is_told_how_many_promise_of_what_is_free(tmp_path: Path) -> None:
    write_release(tmp_path / "r")
    start = Start(list_releases(tmp_path / "r").found[0], 8)

    def sharers(node: EdgeConfig) -> list[int]:
        return [json.loads(engine_spec(one, start).arguments[-1])["memory_sharers"] for one in each(node)]

    assert sharers(settled(config(), {"a", "b", "c"})) == [3, 3, 3]
    assert sharers(config(model="tiny")) == [1]


def test_children_get_the_same_models_from_json() -> None:
    node = settled(config(), {"a", "b"})
    again = EdgeConfig.from_json(node.to_json())
    assert [one.model_dump() for one in each(again)] == [one.model_dump() for one in each(node)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"models": [{"name": "a"}, {"name": "a"}]}, "occurs twice"),
        ({"models": [{"name": "a"}], "model": "b"}, "exclude each other"),
        ({"models": [{"name": "a"}], "default_model": "b"}, "default_model"),
        ({"models": [{"name": "a", "slots": 0}]}, "greater than or equal to 1"),
        ({"models": [{"name": "a", "colour": "red"}]}, "Extra inputs"),
        ({"models": "nonsense"}, "JSON list"),
    ],
)
def test_what_contradicts_itself_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(**settings)


def test_a_default_that_is_not_there_and_a_pin_of_many_are_refused() -> None:
    with pytest.raises(ReleaseError, match="default_model"):
        settled(config(default_model="x"), {"a", "b"})
    with pytest.raises(ReleaseError, match="release_pin"):
        settled(config(release_pin="a@1.0.0+0", store_dir=Path("s")), {"a", "b"})


def test_names_are_those_of_releases_that_can_be_served(tmp_path: Path) -> None:
    write_release(tmp_path / "one")
    assert found_names(config(releases_dir=tmp_path)) == {"tiny"}
    assert found_names(config(releases_dir=tmp_path / "nowhere")) == frozenset()


def test_folders_are_short_and_nobody_elses() -> None:
    root = Path("/run")
    long, other = "x" * 80, "x" * 81
    assert folder_of(root, "a.b-c") == root / "a.b-c"
    assert len(folder_of(root, long).name) <= 24
    assert folder_of(root, long) != folder_of(root, other)
    assert folder_of(root, "../up").parent == root
    assert folder_of(root, "..").name not in ("..", "")
