"""One way to read settings: flags over environment over one TOML file over defaults.

`WEIR_<SECTION>__<KEY>` overrides `[section] key` of the file. A bad value raises ConfigError with
its name, its value and what is allowed. The environment is read once, here.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings.exceptions import SettingsError


class ConfigError(ValueError):
    """A setting is missing or wrong; the message names it, its value and what is allowed."""


class Section(BaseSettings):
    """Base of every component's frozen configuration; `section` is its table in the TOML file."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_nested_delimiter="__", protected_namespaces=())
    section: ClassVar[str]


S = TypeVar("S", bound=Section)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """A configuration and, for each of its keys, where the value came from."""

    value: S
    origin: Mapping[str, str]


def load(kind: type[S], file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Loaded[S]:
    """Reads `kind`. `flags` are command-line values; those that are None were not given."""
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    table = _table(kind.section, file)
    prefix = f"WEIR_{kind.section.upper()}__"
    sources: list[tuple[str, Mapping[str, Any]]] = [("flag", given)]

    class Reader(kind):  # type: ignore[misc, valid-type]
        model_config = SettingsConfigDict(env_prefix=prefix)

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], **_: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            environment = EnvSettingsSource(settings_cls, env_prefix=prefix)
            sources.append(("environment", environment()))
            sources.append((f"file {file}", table))
            return (
                InitSettingsSource(settings_cls, init_kwargs=given),
                environment,
                InitSettingsSource(settings_cls, init_kwargs=dict(table)),
            )

    unknown = [key for key in os.environ if key.startswith(prefix) and _head(key, prefix) not in kind.model_fields]
    if unknown:
        raise ConfigError(f"{unknown[0]} is not a setting of [{kind.section}]; known: {', '.join(kind.model_fields)}")
    try:
        value = Reader()
    except SettingsError as error:
        # Only a value with structure is parsed while it is read.
        raise ConfigError(f'{prefix}*: {error}; a list is written in JSON, as \'["a", "b"]\'') from error
    except ValidationError as error:
        # Not `from error`: pydantic's message repeats whole inputs, secrets among them.
        raise ConfigError(_explain(kind, error)) from None
    origin = {key: next((name for name, values in sources if key in values), "default") for key in kind.model_fields}
    return Loaded(kind.model_construct(**{key: getattr(value, key) for key in kind.model_fields}), origin)


def _head(key: str, prefix: str) -> str:
    return key.removeprefix(prefix).lower().split("__")[0]


def _table(section: str, file: Path | None) -> Mapping[str, Any]:
    if file is None:
        return {}
    try:
        with file.open("rb") as handle:
            document = tomllib.load(handle)
    except FileNotFoundError as error:
        raise ConfigError(f"--config {file}: no such file") from error
    except OSError as error:
        raise ConfigError(f"--config {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file} is not valid TOML: {error}") from error
    if section not in document:
        _refuse_misspelt(section, list(document), file)
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"--config {file}: [{section}] must be a table")
    return table


def _refuse_misspelt(section: str, tables: list[str], file: Path) -> None:
    """A table of almost this name would otherwise be passed over without a word."""
    near = difflib.get_close_matches(section, tables, n=1, cutoff=0.75)
    if near:
        raise ConfigError(f"--config {file}: [{near[0]}] is not a section; did you mean [{section}]?")


def _explain(kind: type[Section], error: ValidationError) -> str:
    return "; ".join(
        _fault(kind, fault["loc"], fault["type"], fault["msg"], fault["input"]) for fault in error.errors()
    )


def _fault(kind: type[Section], location: tuple[int | str, ...], fault: str, message: str, given: object) -> str:
    name = ".".join(str(part) for part in location)
    if fault == "missing":
        # The input is then the whole table, with whatever secrets are in it.
        return (
            f"[{kind.section}] {name} is missing; set it in the file or as WEIR_{kind.section.upper()}__{name.upper()}"
        )
    if fault == "extra_forbidden":
        # Its value is not shown: it may be a secret under a misspelt name.
        return f"[{kind.section}] {name} is not a setting; known: {', '.join(kind.model_fields)}"
    if not location:
        # What is wrong with several settings together: the input is again the whole table.
        return f"[{kind.section}] {message}"
    setting = kind.model_fields.get(str(location[0]))
    secret = setting is not None and "Secret" in str(setting.annotation)
    return f"[{kind.section}] {name} = {'(hidden)' if secret else repr(given)}: {message}"
