"""The models that requests run on at once: the one in force, and those that were and still have answers to end.

Invariants: a request takes the lane of the model it was tokenized for, or that of the model in force where both are
of one release. Prefixes are kept for the model in force alone: what others keep is of no more use. A model that is no
longer in force is let go once nothing runs on it. Memory is given back slice by slice where streams would wait for
it, and of rows no more than is too much: what goes beyond that is soon taken again. Bytes, not tokens, are what is
summed over models: one may take several times the memory of another for a token.

Must not know: event loops, queues, which model is in force but for what it is told. One thread calls it.
"""

from __future__ import annotations

import sys

from edge.engine.job import Served
from edge.engine.lane import Lane, Post
from edge.engine.pace import Pace
from edge.engine.running import Running
from edge.engine.waiting import Turn
from runtime.ort.steps import BLOCK_TOKENS
from wire.errors import WeirError

# Positions whose memory goes between two steps that decode: more than a step takes.
_TRIMMED_AT_ONCE = 512


class Lanes:
    """None at first. `post` takes the events their sequences give."""

    def __init__(self, post: Post, keep_answers: bool) -> None:
        self._post, self._keep_answers = post, keep_answers
        self._lanes: list[Lane] = []
        self._hits_before = 0  # of models let go

    @property
    def active(self) -> int:
        """Sequences that hold a row."""
        return sum(lane.active for lane in self._lanes)

    @property
    def sequences(self) -> list[Running]:
        return [sequence for lane in self._lanes for sequence in lane.sequences]

    @property
    def turns(self) -> list[Turn]:
        """How long each sequence is expected to hold a row yet."""
        return [turn for lane in self._lanes for turn in lane.turns]

    @property
    def tokens_left(self) -> int:
        """The most tokens that one sequence may still get."""
        return max((lane.tokens_left for lane in self._lanes), default=0)

    @property
    def claimed_bytes(self) -> int:
        """What the sequences' KV may come to take."""
        return sum(lane.claimed_bytes for lane in self._lanes)

    @property
    def row_bytes(self) -> int:
        """What rows take now."""
        return sum(lane.rows.taken * lane.served.kv_bytes_per_token for lane in self._lanes)

    @property
    def kept_bytes(self) -> int:
        """What kept prefixes take now."""
        return sum(lane.prefixes.tokens * lane.served.kv_bytes_per_token for lane in self._lanes)

    @property
    def prefix_tokens(self) -> int:
        """Tokens of prompts that are kept."""
        return sum(lane.prefixes.tokens for lane in self._lanes)

    @property
    def prefix_hit_tokens(self) -> int:
        """Tokens that were copied from kept prefixes since the start, models let go included."""
        return self._hits_before + sum(lane.prefixes.hit_tokens for lane in self._lanes)

    def pace_of(self, served: Served) -> Pace | None:
        """None before anything ran on it."""
        return next((lane.pace for lane in self._lanes if lane.served is served), None)

    def admit(self, sequence: Running, current: Served) -> None:
        """Gives it a row of its model; see Lane.admit. `current` is in force."""
        self._lane(sequence.job.served, current).admit(sequence)

    def _lane(self, served: Served, current: Served) -> Lane:
        # A request that waited while its release was put in force at another precision takes the new one.
        wanted = current if current.release == served.release else served
        for lane in self._lanes:
            if lane.served is wanted:
                return lane
        fresh = Lane(wanted, self._post, keep_answers=self._keep_answers)
        for lane in (*self._lanes, fresh):
            if lane.served is not current:
                lane.prefixes.close()
        self._lanes.append(fresh)
        return fresh

    def step(self) -> int:
        """A step of every model, without those that left or are late; how many of the models decoded."""
        decoded = 0
        for lane in self._lanes:
            lane.drop_departed()
            if lane.step():
                decoded += 1
        return decoded

    def retire(self, current: Served) -> list[Lane]:
        """Takes out the models that are no longer in force and have nothing left to do.

        Their memory goes with the last who holds them: perhaps the caller.
        """
        gone = [lane for lane in self._lanes if not lane.active and lane.served is not current]
        if gone:
            self._hits_before += sum(lane.prefixes.hit_tokens for lane in gone)
            self._lanes = [lane for lane in self._lanes if lane not in gone]
        return gone

    def forget_prefixes(self) -> None:
        """Keeps none any more; their memory goes with the next `give_back`."""
        for lane in self._lanes:
            lane.prefixes.forget()

    def give_back(self, kept_bytes: int, *, unclaimed: bool) -> bool:
        """Returns memory of forgotten prefixes, and of rows: what they hold beyond `kept_bytes`, or all `unclaimed`.

        False where more is to go than streams could wait for.
        """
        positions = _TRIMMED_AT_ONCE if any(lane.decoding for lane in self._lanes) else sys.maxsize
        excess = sum(lane.rows.held * lane.served.kv_bytes_per_token for lane in self._lanes) - kept_bytes
        done = True
        for lane in self._lanes:
            done &= lane.prefixes.give_back(positions // BLOCK_TOKENS)
            per_token = lane.served.kv_bytes_per_token
            given = lane.rows.trim(positions if unclaimed else max(min(-(-excess // per_token), positions), 0))
            excess -= given * per_token
            done &= given < positions
        return done

    def fail_all(self, error: WeirError) -> None:
        """Ends every sequence with `error`."""
        for lane in self._lanes:
            lane.fail_all(error)
