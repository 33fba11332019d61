"""How commands speak: results on stdout, everything else on stderr, errors in one line.

With --json stdout carries exactly one JSON object, for an error as well.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

DONE, FAILED, BAD_USE = 0, 1, 2

_OURS = ("wire", "release", "router", "runtime", "quantize", "edge", "cloud", "weir", "bench")
_BAD_USE_NAMES = ("ConfigError", "InvalidRequest", "ContextTooLong", "CannotConstrain", "BadUse")


class BadUse(Exception):
    """The command line asks for something that cannot be."""


def out() -> Console:
    """Where results go."""
    return Console(highlight=False)


def err() -> Console:
    """Where progress and notes go."""
    return Console(stderr=True, highlight=False)


def emit(document: Mapping[str, Any]) -> None:
    """The one JSON object of a command."""
    sys.stdout.write(json.dumps(document, default=str, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def explain(error: Exception, as_json: bool) -> int:
    """Says what went wrong and returns the exit code."""
    if known(error):
        code = BAD_USE if type(error).__name__ in _BAD_USE_NAMES else FAILED
        return _say(type(error).__name__, str(error) or type(error).__name__, code, as_json)
    path = _trace(error)
    text = f"unexpected {type(error).__name__}: {error}; this is a fault of weir. Its trace is in {path}"
    return _say("Unexpected", text, FAILED, as_json)


def known(error: Exception) -> bool:
    """Whether an error is one of ours, or the system's, whose message stands by itself."""
    return type(error).__module__.split(".")[0] in _OURS or isinstance(error, OSError)


def _say(kind: str, text: str, code: int, as_json: bool) -> int:
    if as_json:
        emit({"error": {"kind": kind, "message": text}})
    err().print(f"[bold red]error[/] {escape(text)}", soft_wrap=True)
    return code


def escape(text: str) -> str:
    """Text that rich prints as it stands."""
    return text.replace("[", r"\[")


def _trace(error: Exception) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    handle, name = tempfile.mkstemp(prefix=f"weir-{stamp}-", suffix=".log")
    with os.fdopen(handle, "w") as file:
        traceback.print_exception(error, file=file)
    return Path(name)
