"""Flags over environment over one TOML file over defaults, and errors that name what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field, ValidationError

from runtime.config import ConfigError, Section, load


class Pool(Section):
    section: ClassVar[str] = "pool"

    name: str = "default-name"
    size: int = Field(4, ge=1, le=64)
    peers: tuple[str, ...] = ()
    folder: Path | None = None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weir.toml"
    path.write_text("[pool]\nname = 'from-file'\nsize = 8\nfolder = '/srv'\n\n[another]\nx = 1\n")
    return path


def test_defaults_need_no_file() -> None:
    loaded = load(Pool)
    assert loaded.value == Pool(name="default-name", size=4)
    assert set(loaded.origin.values()) == {"default"}


def test_each_source_overrides_the_next_and_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_POOL__SIZE", "16")
    monkeypatch.setenv("WEIR_POOL__NAME", "from-environment")
    loaded = load(Pool, file, {"name": "from-flag", "size": None, "folder": None})
    assert (loaded.value.name, loaded.value.size, loaded.value.folder) == ("from-flag", 16, Path("/srv"))
    assert loaded.origin == {"name": "flag", "size": "environment", "peers": "default", "folder": f"file {file}"}


def test_a_loaded_section_is_the_section_itself_and_frozen(file: Path) -> None:
    value = load(Pool, file).value
    assert type(value) is Pool
    with pytest.raises(ValidationError):
        value.size = 5  # type: ignore[misc]
    assert Pool.model_validate_json(value.model_dump_json()) == value


def test_text_of_a_flag_or_variable_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_POOL__PEERS", '["a:1", "b:2"]')
    assert load(Pool, None, {"size": "12"}).value == Pool(size=12, peers=("a:1", "b:2"))


def test_a_table_of_another_section_is_not_read(tmp_path: Path) -> None:
    other = tmp_path / "weir.toml"
    other.write_text("[engine]\nsize = 9\n")
    assert load(Pool, other).value.size == 4


@pytest.mark.parametrize("size", ["0", "65", "many"])
def test_a_bad_value_is_named_with_what_is_allowed(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_POOL__SIZE", size)
    with pytest.raises(ConfigError, match=rf"\[pool\] size = '{size}': Input should be") as caught:
        load(Pool)
    if size.isdecimal():
        assert "greater than or equal to 1" in str(caught.value) or "less than or equal to 64" in str(caught.value)


def test_every_bad_value_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"\[pool\] name = 7: .*; \[pool\] size = 0: "):
        load(Pool, None, {"size": 0, "name": 7})


def test_a_list_that_is_no_json_says_how_to_write_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_POOL__PEERS", "a:1,b:2")
    with pytest.raises(ConfigError, match=r"peers.*written in JSON"):
        load(Pool)


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_an_unknown_key_is_refused_wherever_it_stands(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weir.toml"
    path.write_text("[pool]\nsizze = 3\n" if source == "file" else "")
    if source == "environment":
        monkeypatch.setenv("WEIR_POOL__SIZZE", "3")
    with pytest.raises(ConfigError, match=r"(?i)sizze is not a setting.*known: name, size, peers, folder"):
        load(Pool, path, {"sizze": 3} if source == "flag" else None)


def test_a_misspelt_table_is_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "weir.toml"
    path.write_text("[pol]\nsize = 3\n")
    with pytest.raises(ConfigError, match=r"\[pol\] is not a section; did you mean \[pool\]"):
        load(Pool, path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "no such file"),
        (b"size = ", "not valid TOML"),
        (b"x = '\xff'", "not valid TOML"),
        (b"pool = 3", "must be a table"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(content: bytes | None, told: str, tmp_path: Path) -> None:
    path = tmp_path / "weir.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=told) as caught:
        load(Pool, path)
    assert str(path) in str(caught.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(Pool, tmp_path)
