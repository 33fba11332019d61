"""The frame of the `weir` command: its subcommands, its version, its exit codes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from runtime.version import weir_version
from weir.cli import report, serve
from weir.cli.ask import ask
from weir.cli.bench import bench
from weir.cli.classify import classify
from weir.cli.demo import demo
from weir.cli.doctor import doctor
from weir.cli.keys import keys
from weir.cli.models import pull, quantize
from weir.cli.publish import bundle, publish, releases, withdraw
from weir.cli.size import size

app = typer.Typer(
    name="weir",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Small quantized models on edge boxes answer; what they are unsure of flows to the cloud.",
)
app.command()(demo)
app.command()(ask)
app.command()(classify)
app.command()(pull)
app.command()(quantize)
app.command()(size)
app.command()(publish)
app.command()(releases)
app.command()(withdraw)
app.command()(doctor)
for group in (serve.edge, serve.cloud, serve.engine, serve.admin, keys, bundle, bench):
    app.add_typer(group)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"weir {weir_version()}")
        raise typer.Exit


@app.callback()
def frame(
    show: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and go.")] = False,
) -> None:
    """Small quantized models on edge boxes answer; what they are unsure of flows to the cloud."""


def main(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code: 0 done, 1 failed, 2 bad use."""
    try:
        app(args=list(arguments), prog_name="weir")
    except SystemExit as end:
        return _code(end.code)
    except (KeyboardInterrupt, asyncio.CancelledError):
        report.err().print("interrupted")
        return report.FAILED
    except Exception as error:  # noqa: BLE001 - the command's one boundary
        return report.explain(error, "--json" in arguments)
    return report.DONE


def _code(code: object) -> int:
    """130 is how typer ends an interrupted command; ours know three codes."""
    if code is None:
        return report.DONE
    return code if code in (report.DONE, report.BAD_USE) and isinstance(code, int) else report.FAILED


def run() -> None:
    """The entry point of the installed `weir`."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
