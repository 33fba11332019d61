"""`weir ask`: one question to a node, the answer on stdout, where it came from on stderr."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from weir.cli import report

NODE = "127.0.0.1:50051"


def ask(
    question: Annotated[str, typer.Argument(help="What to ask.", show_default=False)],
    node: Annotated[str, typer.Option(help="host:port of the node.", envvar="WEIR_NODE")] = NODE,
    edge_only: Annotated[bool, typer.Option("--edge-only", help="Never escalate.")] = False,
    cloud_only: Annotated[bool, typer.Option("--cloud-only", help="Go to the cloud at once.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print the answer as it comes.")] = False,
    system: Annotated[str, typer.Option(help="A system message before the question.")] = "",
    model: Annotated[str, typer.Option(help="Model to ask; empty: the node's own.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 128,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 is greedy.")] = 0.0,
    deadline_s: Annotated[float, typer.Option("--deadline", min=0.1, help="Seconds it may take in all.")] = 30.0,
    ca_file: Annotated[Path | None, typer.Option(help="CA bundle; given, the connection uses TLS.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Ask a node a question. A token for it is read from WEIR_TOKEN."""
    from weir import Client, ClientTls, Unavailable

    if edge_only and cloud_only:
        raise typer.BadParameter("--edge-only and --cloud-only exclude each other")
    options: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "tier": "edge_only" if edge_only else "cloud_only" if cloud_only else "auto",
        "deadline_s": deadline_s,
    }
    prompt = [{"role": "system", "content": system}] if system else []
    prompt.append({"role": "user", "content": question})
    tls = None if ca_file is None else ClientTls(ca_file)
    with Client(node, tls=tls, token=os.environ.get("WEIR_TOKEN")) as client:
        try:
            show = stream and not as_json
            answer = _stream(client, prompt, options) if show else client.generate(prompt, **options)
        except Unavailable as error:
            raise nobody(client, node, error) from error
    if as_json:
        report.emit(dataclasses.asdict(answer))
        return
    typer.echo("" if show else answer.text)
    report.err().print(_provenance(answer), style="dim", soft_wrap=True, markup=False)


def _stream(client: Any, prompt: Any, options: dict[str, Any]) -> Any:
    """Prints the pieces as they come and returns the whole answer."""
    answers = client.stream(prompt, **options)
    for piece in answers:
        typer.echo(piece, nl=False)
    return answers.final


def nobody(client: Any, node: str, error: Exception) -> Exception:
    """A node that is there and cannot answer is another thing than no node."""
    from weir import Unavailable, WeirError

    try:
        client.describe(deadline_s=2.0)
    except WeirError:
        return Unavailable(
            f"no node answers at {node}: start one with `weir edge serve --releases-dir DIR`, name another with "
            "--node HOST:PORT, or see a whole cascade at work with `weir demo`"
        )
    return error


def _provenance(answer: Any) -> str:
    parts = [f"{answer.tier} ({answer.reason})", answer.release, f"{answer.precision}-bit {answer.weight_format}"]
    if answer.confidence is not None:
        against = "" if answer.threshold is None else f" against {answer.threshold:.2f}"
        parts.append(f"confidence {answer.confidence:.2f}{against}")
    if answer.degraded:
        parts.append(f"degraded: wanted to escalate ({answer.wanted_reason})")
    parts.append(f"{answer.usage.completion_tokens} tokens in {answer.total_ms:.0f} ms")
    return " · ".join(part for part in parts if part)
