"""Which releases of a model a node holds on to, and what becomes of a new one. Pure: a value in, a value out.

    offered   a release is put on trial; what was in force stays the one to return to
    starting  an engine is about to start with the release on trial: counted before, so that a start
              which takes the whole node along counts as well
    crashed   the engine ended while the release was on trial
    proved    it answered, or ran a while: it is `current`, and what was is `previous`
    failed    it was refused, or crashed too often: it is `bad`, with the reason, and not tried again
    lost      `current` cannot be served any more: back to `previous`

Rules: at most one release is on trial; a bad one is never on trial until it is forgiven; two crashes end
a trial, and so do many starts that got nowhere, if there is something to return to (a node whose power
fails again and again must not give up its only release).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

MOST_CRASHES = 2
MOST_BOOTS = 8
_MOST_BAD = 32


@dataclass(frozen=True, slots=True)
class Slots:
    """Of one model. Releases by id; an empty one is none. `precision` was served last (0: never)."""

    current: str = ""
    previous: str = ""
    trial: str = ""
    boots: int = 0
    crashes: int = 0
    precision: int = 0
    bad: Mapping[str, str] = field(default_factory=dict)

    @property
    def to_start(self) -> str:
        """What an engine should serve; empty where nothing was ever settled."""
        return self.trial or self.current

    @property
    def held(self) -> frozenset[str]:
        """What must stay on disk."""
        return frozenset(release for release in (self.current, self.previous, self.trial) if release)

    @property
    def exhausted(self) -> str:
        """Why the trial has to end; empty while it may go on."""
        if not self.trial:
            return ""
        if self.crashes >= MOST_CRASHES:
            return f"its engine crashed {self.crashes} times before it proved itself"
        if self.boots >= MOST_BOOTS and self.current:
            return f"{self.boots} starts with it came to nothing"
        return ""

    def offered(self, release: str) -> Slots:
        """Another release to try. Nothing changes for one that is bad, in force or on trial already."""
        if release in self.bad or release in (self.current, self.trial):
            return self
        return replace(self, trial=release, boots=0, crashes=0)

    def starting(self) -> Slots:
        return replace(self, boots=self.boots + 1) if self.trial else self

    def stopped(self) -> Slots:
        """The node was told to stop: that start says nothing about the release."""
        return replace(self, boots=max(0, self.boots - 1)) if self.trial else self

    def crashed(self) -> Slots:
        return replace(self, crashes=self.crashes + 1) if self.trial else self

    def proved(self, release: str, precision: int = 0) -> Slots:
        """That release serves. It may not be the one on trial: an operator's choice, or a return."""
        fresh = replace(self, precision=precision or self.precision)
        if release == self.trial:
            fresh = replace(fresh, trial="", boots=0, crashes=0)
        if release == self.current:
            return fresh
        return replace(fresh, current=release, previous=self.current or self.previous)

    def serving(self, precision: int) -> Slots:
        """A precision was put in force."""
        return replace(self, precision=precision)

    def failed(self, reason: str) -> Slots:
        """The release on trial is not to be tried again."""
        if not self.trial:
            return self
        return replace(self, trial="", boots=0, crashes=0, bad=_and_bad(self.bad, self.trial, reason))

    def lost(self, reason: str) -> Slots:
        """What was in force cannot be served: back to the one before, if there is one."""
        bad = _and_bad(self.bad, self.current, reason) if self.current else self.bad
        back = "" if self.previous in bad else self.previous
        return replace(self, current=back, previous="", bad=bad)

    def forgiven(self, release: str) -> Slots:
        """A bad release may be tried again: its files were mended, or the operator says so."""
        return replace(self, bad={known: why for known, why in self.bad.items() if known != release})

    def among(self, here: Collection[str]) -> Slots:
        """With those alone that lie on disk; the one before takes the place of a `current` that went."""
        current, previous, trial = (
            release if release in here else "" for release in (self.current, self.previous, self.trial)
        )
        fresh = replace(self, current=current or previous, previous=previous if current else "")
        return fresh if trial == self.trial else replace(fresh, trial="", boots=0, crashes=0)


def _and_bad(bad: Mapping[str, str], release: str, reason: str) -> Mapping[str, str]:
    """The latest reasons; the oldest are let go."""
    entries = [(known, why) for known, why in bad.items() if known != release]
    return dict([*entries, (release, reason)][-_MOST_BAD:])
