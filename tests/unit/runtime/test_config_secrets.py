"""What a configuration error must not show."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field, SecretStr

from runtime.config import ConfigError, Section, load


class Guarded(Section):
    section: ClassVar[str] = "guarded"

    url: str = ""
    token: SecretStr = Field(min_length=16)


def test_a_missing_secret_is_named_without_its_neighbours(tmp_path: Path) -> None:
    file = tmp_path / "weir.toml"
    file.write_text("[guarded]\nurl = 'redis://user:hunter2@host'\n")
    with pytest.raises(ConfigError) as caught:
        load(Guarded, file)
    assert "[guarded] token is missing" in str(caught.value)
    assert "WEIR_GUARDED__TOKEN" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_wrong_secret_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_GUARDED__TOKEN", "hunter2")
    with pytest.raises(ConfigError) as caught:
        load(Guarded)
    assert "token = (hidden)" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
