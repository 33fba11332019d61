"""How a measured program is told what to do: one JSON object a line in, one a line out.

Must import nothing but the standard library: it runs under other interpreters too, in environments that
have a peer and nothing of Weir.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

Command = Callable[..., Mapping[str, Any]]


def answer(commands: Mapping[str, Command]) -> None:
    """Carries commands out until stdin ends. What a library prints goes to stderr, not among the answers."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        command = commands[asked.pop("do")]
        try:
            told = dict(command(**asked))
        except Exception as error:  # noqa: BLE001 - the process's boundary: whoever asked is told what went wrong
            told = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(told) + "\n")
        answers.flush()
