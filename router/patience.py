"""How long an upstream may be silent while the edge can answer instead, and when silence speaks against it.

    silent              given up after
    before its first    a quarter of the time left, or 3 times what a first word usually takes, whichever is more;
    word                half of it where nobody knows what is usual, three quarters where the upstream is a node
    after it            half of the time left then
    after an event      as after a word; before the first word, no sooner than without the event: thinking aloud is
    without words       no silence, and a greeting no reason to wait for less

and never before 1.25 s, while there is time. Shares, since a caller that allows more time allows a queue more; the
usual, since an upstream that is always slow is not silent. A node above gives up on its own upstream first. A silence
counts against an upstream only where it was longer than the usual by far, and than anybody's hiccup: a caller's short
deadline is no fault of the upstream's. From the third in a row on, one that was longer than the usual counts by that
alone, signs of life without a word too: where callers never allow more, an upstream that is dead, or never comes to
a word in their time, would cost each of them all of it for ever.

Must not know: clocks. `left_s` is the time until the upstream must have answered, what the edge needs kept back.
"""

from __future__ import annotations

from router.latency import known

_KNOWN, _UNKNOWN, _NODE = 0.25, 0.5, 0.75
_BETWEEN = 0.5
_TIMES_USUAL = 3.0
_FAIR_TIMES_USUAL = 1.5
_ENOUGH_IN_A_ROW = 3
_HICCUP_S = 1.0
_LEAST_S = 1.25 * _HICCUP_S


def first_word_s(left_s: float, usual_s: float | None, *, node: bool) -> float:
    """Seconds to wait for an upstream's first word, within the time left."""
    left, usual = known(left_s) or 0.0, known(usual_s)
    share = _NODE if node else _UNKNOWN if usual is None else _KNOWN
    return min(max(share * left, _TIMES_USUAL * (usual or 0.0), _LEAST_S), left)


def next_word_s(left_s: float) -> float:
    """Seconds to wait for what follows a word, within the time left when that came."""
    left = known(left_s) or 0.0
    return min(max(_BETWEEN * left, _LEAST_S), left)


def outlasts(silent_s: float, usual_s: float | None) -> bool:
    """Whether a silence was longer than the usual, and than a hiccup."""
    return silent_s >= max(known(usual_s) or 0.0, _HICCUP_S)


def speaks_against(silent_s: float, usual_s: float | None, in_a_row: int = 1, wordless_s: float = 0.0) -> bool:
    """Whether an upstream that is well would not be silent for so long.

    `in_a_row` silences outlasted the usual since its last answer, this one among them. A call that gave signs of life
    for `wordless_s` and no word counts as one of them.
    """
    if in_a_row >= _ENOUGH_IN_A_ROW:
        return outlasts(max(silent_s, wordless_s), usual_s)
    return silent_s >= max(_FAIR_TIMES_USUAL * (known(usual_s) or 0.0), _HICCUP_S)
