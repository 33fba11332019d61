"""Which of a request's fields an endpoint knows, as far as its refusals have told.

A value: a request's tries are each made with one, and what a refused try taught is true of that try alone until an
answer came that way. Concurrent requests therefore learn by themselves, whatever others have learned meanwhile. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

LENGTH_FIELDS = ("max_tokens", "max_completion_tokens")
# Without them an answer is poorer: no count of tokens, or several calls at once; with them there may be none.
DISPENSABLE = ("stream_options", "parallel_tool_calls")


@dataclass(frozen=True, slots=True)
class Dialect:
    """`length_field` is what the limit of tokens is called, `without` are fields that are not sent."""

    length_field: str = LENGTH_FIELDS[0]
    without: frozenset[str] = frozenset()

    def after(self, refused: str) -> Dialect | None:
        """What to try where this one was refused for that field; None: nothing else."""
        if refused == self.length_field == LENGTH_FIELDS[0]:
            return Dialect(LENGTH_FIELDS[1], self.without)
        if refused in DISPENSABLE and refused not in self.without:
            return Dialect(self.length_field, self.without | {refused})
        return None

    def joined(self, learned: Dialect) -> Dialect:
        """This one, and what another learned."""
        return Dialect(
            max(self.length_field, learned.length_field, key=LENGTH_FIELDS.index), self.without | learned.without
        )
