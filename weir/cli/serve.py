"""`weir edge serve`, `cloud serve`, `engine serve`, `admin serve`: settings in, one role runs.

Settings: flags over environment over the file of --config over defaults. Any key of the section can
be given with --set KEY=VALUE. With --json the settings in force and their origin are printed first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from weir.cli import report
from weir.cli.extras import require

Config = Annotated[Path | None, typer.Option("--config", help="TOML file with settings.", envvar="WEIR_CONFIG")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other setting; may be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the settings in force as JSON before serving.")]

edge = typer.Typer(name="edge", no_args_is_help=True, help="The edge node.")
cloud = typer.Typer(name="cloud", no_args_is_help=True, help="The cloud's gateway.")
engine = typer.Typer(name="engine", no_args_is_help=True, help="A cloud engine: one model on a group of ranks.")
admin = typer.Typer(name="admin", no_args_is_help=True, help="Releases and which of them is active.")


@edge.command("serve")
def serve_edge(
    releases_dir: Annotated[Path | None, typer.Option(help="A release, or a folder that holds releases.")] = None,
    store_dir: Annotated[Path | None, typer.Option(help="Where the updater keeps releases.")] = None,
    repository: Annotated[str | None, typer.Option(help="URL or folder that releases come from.")] = None,
    trusted_root: Annotated[Path | None, typer.Option(help="root.json to believe; see weir keys.")] = None,
    model: Annotated[str | None, typer.Option(help="Served name; default: the release's.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, 4 or 8.")] = None,
    upstream: Annotated[str | None, typer.Option(help="host:port of the next tier up.")] = None,
    upstream_model: Annotated[str | None, typer.Option(help="Model to ask the upstream for.")] = None,
    http_address: Annotated[str | None, typer.Option(help="OpenAI HTTP, host:port.")] = None,
    grpc_address: Annotated[str | None, typer.Option(help="gRPC, host:port.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the engine.")] = None,
    node: Annotated[str | None, typer.Option(help="This node's name.")] = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Serve an edge node: OpenAI HTTP and gRPC, answering here or escalating."""
    require("edge", "weir edge serve")
    from edge.config import EdgeConfig
    from edge.launcher import run

    flags = {
        "releases_dir": releases_dir, "store_dir": store_dir, "repository": repository,
        "trusted_root": trusted_root, "model": model, "precision": precision, "upstream": upstream,
        "upstream_model": upstream_model, "http_address": http_address, "grpc_address": grpc_address,
        "threads": threads, "node": node,
    }  # fmt: skip
    _serve(EdgeConfig, run, config, flags, sets, as_json)


@edge.command("retry")
def retry(
    release: Annotated[str, typer.Argument(help="A release id that is bad on this node.", show_default=False)],
    store_dir: Annotated[Path, typer.Option(help="The node's store_dir; the node may run.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Let a node try a release again that it has given up."""
    require("edge", "weir edge retry")
    from edge.slot_file import SlotFile

    file = SlotFile(store_dir)
    known = [model for model in file.models() if release in file.read(model).bad]
    if not known:
        raise report.BadUse(f"{release} is not bad in {store_dir}: see weir doctor, or status.json there")
    for model in known:
        file.change(model, lambda slots: slots.forgiven(release))
    if as_json:
        report.emit({"retried": release, "models": known})
    else:
        report.out().print(f"{release} may be tried again", markup=False)


@cloud.command("serve")
def serve_gateway(
    engines: Annotated[list[str] | None, typer.Option("--engine", help="host:port of an engine; repeat it.")] = None,
    address: Annotated[str | None, typer.Option(help="gRPC, host:port.")] = None,
    http_address: Annotated[str | None, typer.Option(help="Health and metrics, host:port.")] = None,
    store_url: Annotated[str | None, typer.Option(help="sqlite:///PATH, redis://HOST:PORT/N or empty.")] = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Serve the gateway in front of the engines. Needs no torch."""
    require("gateway", "weir cloud serve", "redis")
    from cloud.config import GatewayConfig
    from cloud.gateway.main import run

    flags = {
        "engines": ",".join(engines) if engines else None, "address": address, "http_address": http_address,
        "store_url": store_url,
    }  # fmt: skip
    _serve(GatewayConfig, run, config, flags, sets, as_json)


@engine.command("serve")
def serve_engine(
    model: Annotated[str | None, typer.Option(help="A model folder, or a name or hub id to pull.")] = None,
    name: Annotated[str | None, typer.Option(help="Served name; default: the folder's.")] = None,
    tensor_parallel_size: Annotated[int | None, typer.Option(help="Ranks.")] = None,
    precision: Annotated[str | None, typer.Option(help="bfloat16, float32, int8 or nf4.")] = None,
    threads_per_rank: Annotated[int | None, typer.Option(help="CPU threads of each rank.")] = None,
    address: Annotated[str | None, typer.Option(help="gRPC, host:port.")] = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Serve one model on a supervised group of tensor-parallel ranks."""
    require("cloud", "weir engine serve")
    from cloud.config import EngineHostConfig
    from cloud.host.main import run

    folder, served = _model_folder(model, as_json)
    flags = {
        "model_dir": folder, "name": name or served, "tensor_parallel_size": tensor_parallel_size,
        "precision": precision, "threads_per_rank": threads_per_rank, "address": address,
    }  # fmt: skip
    _serve(EngineHostConfig, run, config, flags, sets, as_json)


@admin.command("serve")
def serve_admin(
    address: Annotated[str | None, typer.Option(help="HTTP, host:port.")] = None,
    store_url: Annotated[str | None, typer.Option(help="sqlite:///PATH or redis://HOST:PORT/N.")] = None,
    releases_dir: Annotated[Path | None, typer.Option(help="Folder that holds the releases.")] = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Serve the admin API. Its token is read from WEIR_ADMIN__TOKEN or the file, never from a flag."""
    require("gateway", "weir admin serve", "redis")
    from cloud.admin.main import run
    from cloud.config import AdminConfig

    flags = {"address": address, "store_url": store_url, "releases_dir": releases_dir}
    _serve(AdminConfig, run, config, flags, sets, as_json)


def _model_folder(model: str | None, quiet: bool) -> tuple[Path | None, str | None]:
    """A folder as it stands; anything else is pulled first, and served under its own name."""
    if model is None:
        return None, None
    if (path := Path(model).expanduser()).is_dir():
        return path, None
    require("quantize", f"pulling {model}", "onnx", "onnx_ir", "onnxruntime", "onnxruntime_genai", "sklearn")
    from quantize.sources.resolve import resolve
    from weir.cli.progress import Bars

    with Bars(report.err(), quiet) as progress:
        source = resolve(model, progress)
    return source.folder, source.name


def _serve(
    kind: type[Any],
    run: Callable[[Any], int],
    file: Path | None,
    flags: Mapping[str, Any],
    sets: list[str] | None,
    as_json: bool,
) -> None:
    from runtime.child import begin
    from runtime.config import load

    begin()  # whoever started it as a part of its own may be a demo or a benchmark
    loaded = load(kind, file, {**flags, **parse_sets(sets or [])})
    if as_json:
        settings = {key: str(getattr(loaded.value, key)) for key in type(loaded.value).model_fields}
        report.emit({"section": kind.section, "settings": settings, "origin": dict(loaded.origin)})
    raise typer.Exit(run(loaded.value))


def parse_sets(sets: list[str]) -> dict[str, Any]:
    """KEY=VALUE pairs; a value that is a JSON list or object is read as one. Raises BadUse."""
    values: dict[str, Any] = {}
    for text in sets:
        key, found, value = text.partition("=")
        if not found or not key:
            raise report.BadUse(f"--set {text}: give KEY=VALUE")
        try:
            values[key] = json.loads(value) if value[:1] in ("[", "{") else value
        except json.JSONDecodeError as error:
            raise report.BadUse(f"--set {text}: not valid JSON: {error}") from error
    return values
