"""`weir classify`: one text to a node, its label on stdout, where it came from on stderr."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from weir.cli import report
from weir.cli.ask import NODE, nobody

_SHOWN = 3


def classify(
    text: Annotated[str, typer.Argument(help="The text to label.", show_default=False)],
    pair: Annotated[str, typer.Option(help="A second text, for models of pairs.")] = "",
    node: Annotated[str, typer.Option(help="host:port of the node.", envvar="WEIR_NODE")] = NODE,
    model: Annotated[str, typer.Option(help="Model to ask; empty: the node's only one that labels.")] = "",
    edge_only: Annotated[bool, typer.Option("--edge-only", help="Never escalate.")] = False,
    cloud_only: Annotated[bool, typer.Option("--cloud-only", help="Go to the cloud at once.")] = False,
    deadline_s: Annotated[float, typer.Option("--deadline", min=0.1, help="Seconds it may take in all.")] = 30.0,
    ca_file: Annotated[Path | None, typer.Option(help="CA bundle; given, the connection uses TLS.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Ask a node for a text's label. A token for it is read from WEIR_TOKEN."""
    from weir import Client, ClientTls, Unavailable

    if edge_only and cloud_only:
        raise typer.BadParameter("--edge-only and --cloud-only exclude each other")
    tier: Any = "edge_only" if edge_only else "cloud_only" if cloud_only else "auto"
    tls = None if ca_file is None else ClientTls(ca_file)
    with Client(node, tls=tls, token=os.environ.get("WEIR_TOKEN")) as client:
        try:
            answer = client.classify(text, text_pair=pair, model=model, tier=tier, deadline_s=deadline_s)
        except Unavailable as error:
            raise nobody(client, node, error) from error
    if as_json:
        report.emit(dataclasses.asdict(answer))
        return
    typer.echo(", ".join(answer.labels) if answer.multi_label else answer.label)
    report.err().print(_provenance(answer), style="dim", soft_wrap=True, markup=False)


def _provenance(answer: Any) -> str:
    parts = [" ".join(f"{score.label} {score.score:.2f}" for score in answer.scores[:_SHOWN])]
    parts += [f"{answer.tier} ({answer.reason})", answer.release, f"{answer.precision}-bit {answer.weight_format}"]
    if answer.confidence is not None:
        against = "" if answer.threshold is None else f" against {answer.threshold:.2f}"
        parts.append(f"confidence {answer.confidence:.2f}{against}")
    if answer.degraded:
        parts.append(f"degraded: wanted to escalate ({answer.wanted_reason})")
    parts.append(f"{answer.tokens} tokens in {answer.timings_ms.get('total', 0.0):.0f} ms")
    return " · ".join(part for part in parts if part)
