"""What an endpoint says beside the text of its answer: names, releases, the words of a fault.

Such words go where the text of an answer does not: into headers, logs, errors, and a person's terminal. There is
one way in, so that nothing of the kind passes as it came. Pure.
"""

from __future__ import annotations

from typing import Any

MOST_CHARACTERS = 512
_INSTEAD = "\N{REPLACEMENT CHARACTER}"


def words(told: Any, most: int = MOST_CHARACTERS) -> str:
    """At most so many characters, all of which have UTF-8 and print; empty for what is no string.

    Half a surrogate pair, which JSON can spell, has no UTF-8; control characters steer terminals and end header
    lines; marks of direction (Unicode's Cf) show one text as another.
    """
    if not isinstance(told, str):
        return ""
    shown = told if len(told) <= most else told[: most - 1] + "…"
    return shown if shown.isprintable() else "".join(map(_shown, shown))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else _INSTEAD
