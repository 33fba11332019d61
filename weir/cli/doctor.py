"""`weir doctor`: what is installed, what this machine is, which settings are in force, who answers.

Fails (1) when a setting is wrong; an endpoint that does not answer is reported and no failure, for
most machines run one role.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from weir.cli import report
from weir.cli.extras import EXTRAS, missing

_PACKAGES = ("weir-inference", "grpcio", "protobuf", "pydantic", "onnxruntime", "tokenizers", "torch", "transformers")
_STATUS_NAME = "status.json"  # edge.updater.status writes it
_REQUIRED = {"edge": ("releases_dir",), "engine": ("model_dir",), "admin": ("token",), "gateway": ()}


def doctor(
    config: Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Say what is installed, what is in force and where from, and which endpoints answer."""
    found = examine(config)
    if as_json:
        report.emit(found)
    else:
        _draw(found)
    if any("error" in section for section in found["settings"].values()):
        raise typer.Exit(report.FAILED)


def examine(config: Path | None) -> dict[str, Any]:
    """Everything the doctor knows, as plain JSON."""
    settings = {name: _section(name, config) for name in _REQUIRED}
    return {
        "versions": {"python": platform.python_version(), **_versions(_PACKAGES)},
        "extras": {extra: missing(extra) or "complete" for extra in EXTRAS},
        "machine": _machine(),
        "settings": settings,
        "endpoints": asyncio.run(_reach(_endpoints(settings))),
        "updates": _updates(settings),
    }


def _updates(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the updater of this machine's node last said; empty where there is none."""
    store = _value(settings, "edge", "store_dir")
    if store in ("", "None"):
        return {}
    try:
        return dict(json.loads((Path(store) / _STATUS_NAME).read_text()))
    except FileNotFoundError:
        return {"problem": f"no node has run on {store} yet"}
    except (OSError, ValueError) as error:
        return {"problem": f"{store}: {error}"}


def _versions(names: Iterable[str]) -> dict[str, str | None]:
    return {name: _version(name) for name in names}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> dict[str, Any]:
    from edge.config import available_cpus
    from quantize.sources.cache import Cache
    from runtime import processors
    from runtime.cpu import cpu_class, native_bfloat16
    from runtime.memory import limit_bytes

    cache = Cache.from_environment(os.environ).root
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": sys.executable,
        "cpu_class": cpu_class(),
        "native_bfloat16": native_bfloat16(),
        "processors": len(processors.allowed()),
        "cores": processors.cores(processors.allowed()),
        "threads": available_cpus(),
        "memory_bytes": limit_bytes(),
        "cache": str(cache),
        "cache_exists": cache.is_dir(),
        "mirrors": os.environ.get("WEIR_MIRRORS", "on"),
    }


def _section(name: str, file: Path | None) -> dict[str, Any]:
    """A section's settings and their origin; what a role cannot start without may still be missing."""
    from runtime.config import ConfigError, load

    kind = _kinds()[name]
    try:
        loaded = load(kind, file)
    except ConfigError as error:
        try:
            # The rest is worth showing even where a role was never set up here.
            loaded = load(kind, file, dict.fromkeys(_REQUIRED[name], "not-set-on-this-machine"))
        except ConfigError:
            return {"error": str(error)}
        values = _values(loaded.value, loaded.origin)
        return {"unset": list(_REQUIRED[name]), **{k: v for k, v in values.items() if k not in _REQUIRED[name]}}
    return _values(loaded.value, loaded.origin)


def _values(value: Any, origin: Mapping[str, str]) -> dict[str, Any]:
    return {key: {"value": str(getattr(value, key)), "from": source} for key, source in origin.items()}


def _kinds() -> dict[str, type[Any]]:
    from cloud.config import AdminConfig, EngineHostConfig, GatewayConfig
    from edge.config import EdgeConfig

    return {kind.section: kind for kind in (EdgeConfig, GatewayConfig, EngineHostConfig, AdminConfig)}


def _endpoints(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """gRPC endpoints that the settings name, by what they are."""
    named = {
        "edge": _value(settings, "edge", "grpc_address"),
        "edge's upstream": _value(settings, "edge", "upstream"),
        "gateway": _value(settings, "gateway", "address"),
        "engine": _value(settings, "engine", "address"),
    }
    return {name: address for name, address in named.items() if address}


def _value(settings: Mapping[str, Mapping[str, Any]], section: str, key: str) -> str:
    entry = settings[section].get(key)
    return str(entry["value"]) if isinstance(entry, dict) else ""


async def _reach(endpoints: Mapping[str, str]) -> dict[str, dict[str, str]]:
    answers = await asyncio.gather(*(_ask(address) for address in endpoints.values()))
    return dict(zip(endpoints, answers, strict=True))


async def _ask(address: str) -> dict[str, str]:
    from weir import AsyncClient, WeirError

    async with AsyncClient(address) as client:
        try:
            node = await client.describe(deadline_s=1.5)
        except WeirError as error:
            return {"address": address, "state": "does not answer", "detail": error.message}
    models = ", ".join(model.release or model.name for model in node.models)
    state = "ready" if node.ready else f"not ready: {node.not_ready_reason}"
    return {"address": address, "state": state, "detail": models}


def _draw(found: Mapping[str, Any]) -> None:
    console = report.out()
    for title, rows in (("versions", found["versions"]), ("extras", found["extras"]), ("machine", found["machine"])):
        table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
        for key, value in rows.items():
            text = (
                "not installed" if value is None else f"lacks {', '.join(value)}" if isinstance(value, list) else value
            )
            table.add_row(key, str(text))
        console.print(table, "")
    for name, section in found["settings"].items():
        _draw_section(name, section)
    table = Table(title="endpoints", title_justify="left", box=None, pad_edge=False)
    for column in ("", "address", "state", "detail"):
        table.add_column(column)
    for name, state in found["endpoints"].items():
        table.add_row(name, state["address"], state["state"], state["detail"])
    console.print(table)
    if found["updates"]:
        _draw_updates(found["updates"])


def _draw_updates(status: Mapping[str, Any]) -> None:
    """What the node holds, fetches and lacks, as it last wrote it."""
    table = Table(title="updates", title_justify="left", show_header=False, box=None, pad_edge=False)
    for key in ("at", "model", "wanted", "why", "refused", "current", "previous", "trial", "plan", "clock", "problem"):
        if status.get(key):
            table.add_row(key, report.escape(str(status[key])))
    for release, bits in dict(status.get("held", {})).items():
        table.add_row("held", report.escape(f"{release} at {', '.join(map(str, bits))} bits"))
    for release, reason in dict(status.get("bad", {})).items():
        table.add_row("bad", report.escape(f"{release}: {reason}"))
    fetching = status.get("fetching") or {}
    if fetching:
        left = f"{fetching['missing_bytes']} bytes of the {fetching['part']} part to go"
        table.add_row("fetching", report.escape(f"{fetching['file']} of {fetching['release']}: {left}"))
    report.out().print("", table)


def _draw_section(name: str, section: Mapping[str, Any]) -> None:
    """Only what differs from the defaults, and what is wrong or missing; --json has everything."""
    console = report.out()
    title = f"\\[{name}]"
    if "error" in section:
        console.print(f"{title} [red]{report.escape(str(section['error']))}[/]\n")
        return
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    for key in section.get("unset", ()):
        table.add_row(key, "not set", "this role cannot start here")
    for key, entry in section.items():
        if key != "unset" and (entry["from"] != "default" or key.endswith("address")):
            table.add_row(key, entry["value"], entry["from"])
    console.print(table, "")
