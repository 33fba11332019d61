"""Which sequence holds which row of a model, how far each row takes memory, and how rows are closed up.

Invariants: a row has at most one holder, and a sequence keeps one from `give` to `let_go`. A decode step runs over
rows 0 … span-1; those in between that do not decode sit out, which costs a row's share of the step. Nothing is
copied but by `close_up`, in slices of _SLICE positions, for as long as it is let. One sequence is on the move at a
time: the last that decodes, down into a free row; where none is free below it, the shortest prompt that lies among
those that decode, up into a free row. A sequence on the move goes on where it is, for what lies before its length
changes no more; what came since is copied last. Every move brings the decoding rows closer together, or makes room
for one that does, so moves come to an end. The row it moves to takes memory for it as well until then.

Must not know: clocks, logits, what a sequence is for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.engine.running import Running
from runtime.ort.steps import SITS_OUT, Logits, StepModel

# Positions copied between two looks at the clock. A short sequence goes in one piece.
_SLICE = 64


@dataclass(slots=True)
class _Move:
    sequence: Running
    target: int
    copied: int = 0


class Rows:
    """The rows of one model."""

    def __init__(self, steps: StepModel) -> None:
        self._steps = steps
        self._holders: list[Running | None] = [None] * steps.slots
        self._touched = [0] * steps.slots  # positions of each row that take memory
        self._move: _Move | None = None

    @property
    def span(self) -> int:
        """Rows that a decode step runs over."""
        return 1 + max((row for row, holder in enumerate(self._holders) if holder and holder.decoding), default=-1)

    @property
    def held(self) -> int:
        """Positions that take memory, or may come to."""
        return sum(map(max, self._touched, self._claims()))

    @property
    def taken(self) -> int:
        """Positions that take memory."""
        return sum(self._touched)

    def give(self, sequence: Running) -> None:
        """A row for `sequence`: beyond those that decode, if there is one. The caller sees to it that one is free."""
        span, free = self.span, self._free()
        if not free:
            assert self._move is not None, "no row is free"
            free, self._move = [self._move.target], None
        sequence.row = next((row for row in free if row >= span), free[0])
        self._holders[sequence.row] = sequence

    def let_go(self, sequence: Running) -> None:
        self._holders[sequence.row] = None

    def touch(self, row: int, length: int) -> None:
        """The first `length` positions of a row take memory now."""
        self._touched[row] = max(self._touched[row], length)

    def decode(self) -> list[tuple[Running, Logits, Logits | None]]:
        """A step over all that decode: of each its logits [V], and its probabilities if told. Raises ModelBroken."""
        rows = [holder if holder and holder.decoding else None for holder in self._holders[: self.span]]
        logits = self._steps.decode(
            [holder.last_token if holder else 0 for holder in rows],
            [holder.length if holder else SITS_OUT for holder in rows],
        )
        for row in range(len(rows)):
            self.touch(row, 1)
        told = self._steps.probabilities
        return [(holder, logits[row], None if told is None else told[row]) for row, holder in enumerate(rows) if holder]

    def close_up(self, go_on: Callable[[], bool]) -> bool:
        """Copies towards rows 0 … n-1 for the n that decode: a slice, and more while `go_on` says so.

        Says whether it copied.
        """
        copied = False
        while (move := self._under_way()) is not None:
            sequence = move.sequence
            end = min(move.copied + _SLICE, sequence.length)
            self._steps.move(sequence.row, move.target, move.copied, end)
            self.touch(move.target, end)
            move.copied, copied = end, True
            if end == sequence.length:
                self._holders[sequence.row], self._holders[move.target] = None, sequence
                sequence.row, self._move = move.target, None
            if not go_on():
                break
        return copied

    def trim(self, most: int) -> int:
        """Returns the memory of at most `most` positions that no sequence claims; how many it was.

        Those of rows without a sequence go first.
        """
        claims, given = self._claims(), 0
        for row in sorted(range(len(claims)), key=lambda row: (claims[row] > 0, claims[row] - self._touched[row])):
            taken = min(self._touched[row] - claims[row], most - given)
            if taken > 0:
                self._touched[row] -= taken
                self._steps.give_back(row, self._touched[row])
                given += taken
        return given

    def _under_way(self) -> _Move | None:
        move = self._move
        if move is not None and not _stale(move):
            return move
        planned = plan(self._holders)
        self._move = None if planned is None else _Move(*planned)
        return self._move

    def _free(self) -> list[int]:
        target = -1 if self._move is None or _stale(self._move) else self._move.target
        return [row for row, holder in enumerate(self._holders) if holder is None and row != target]

    def _claims(self) -> list[int]:
        claims = [0 if holder is None else holder.job.claim for holder in self._holders]
        if self._move is not None:
            claims[self._move.target] = max(claims[self._move.target], self._move.copied)
        return claims


def plan(holders: Sequence[Running | None]) -> tuple[Running, int] | None:
    """Who moves next, and into which row; None where all is well, or nothing can be done."""
    last, decodes = max(
        ((row, holder) for row, holder in enumerate(holders) if holder and holder.decoding),
        key=lambda pair: pair[0],
        default=(0, None),
    )
    if decodes is None:
        return None
    free = [row for row, holder in enumerate(holders) if holder is None]
    if free and free[0] < last:
        return decodes, free[0]
    among = [holder for holder in holders[:last] if holder and _worth_moving(holder)]
    return (min(among, key=lambda holder: holder.length), free[0]) if among and free else None


def _worth_moving(sequence: Running) -> bool:
    """Whether it sits out for long yet: soon done, a prompt decodes where it lies."""
    return not sequence.decoding and len(sequence.job.prompt_ids) - sequence.length > _SLICE


def _stale(move: _Move) -> bool:
    sequence = move.sequence
    if sequence.ended:
        return True
    # A prompt that was to make way has come to its end: it decodes where it is, or what is scored is written anew.
    return move.target > sequence.row and (sequence.decoding or sequence.length >= len(sequence.job.prompt_ids))
