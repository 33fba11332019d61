"""Laws of trust: whatever is offered, in whatever order, no version goes down and no catalogue is lost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from release.repository.ceremony import rotate
from release.trust.catalogue import precedence
from release.trust.client import Catalogue, TrustClient
from release.trust.errors import Absent, TrustError
from tests.fakes.disk import QuickDisk
from tests.fakes.repository import Site
from tests.fakes.tamper import State, flipped, state_of

STATES = 7
Chosen = tuple[int, int, int, tuple[str, int] | None]


class History:
    """Not a tuple: a failing example prints its arguments."""

    def __init__(self, site: Site, states: list[State]) -> None:
        self.site, self.states = site, states


@pytest.fixture(scope="module")
def history() -> History:
    """A repository as it was after each of several changes; the root is renewed in between."""
    site = Site(Path(tempfile.mkdtemp(prefix="weir-history-")))
    states = [state_of(site.repository)]
    for number in range(1, STATES):
        site.later(hours=1)
        if number == 3:
            rotate(site.desk, ["root"])
        elif number % 2:
            site.publish(f"1.{number}.0")
        else:
            site.refresh()
        states.append(state_of(site.repository))
    return History(site, states)


indices = st.integers(0, STATES - 1)
flips = st.tuples(st.sampled_from(["timestamp", "snapshot", "targets"]), st.integers(0, 300))
offers = st.lists(st.tuples(indices, indices, indices, st.none() | flips), min_size=1, max_size=8)


def mixed(states: list[State], chosen: Chosen) -> Callable[[str, int], bytes]:
    """A source that takes each role from a state of its own, under whatever number is asked for."""
    timestamp, snapshot, targets, flip = chosen
    of = {"timestamp": timestamp, "snapshot": snapshot, "targets": targets}

    def fetch(path: str, most_bytes: int) -> bytes:
        role = next((role for role in of if role in path), "root")
        state = states[of.get(role, timestamp)]
        content = state.get(path)
        if content is None and role in ("snapshot", "targets"):
            newest = max(
                (name for name in state if role in name), key=lambda name: int(name.split("/")[1].split(".")[0])
            )
            content = state[newest]
        if content is None:
            raise Absent(path)
        return flipped(content, flip[1] % len(content)) if flip and flip[0] == role else content

    return fetch


def number_in(path: str) -> int:
    return int(path.removeprefix("metadata/").split(".")[0])


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking would take minutes
)
@given(offers)
def test_no_sequence_of_offers_lets_a_version_go_down(history: History, sequence: list[Chosen]) -> None:
    """For every role: a version that was verified stays the lowest that is accepted; what was known stays known."""
    site, states = history.site, history.states
    with tempfile.TemporaryDirectory(prefix="weir-laws-") as folder:
        client = TrustClient(Path(folder), site.first_root, QuickDisk())
        before, known = (0, 0, 0, 0), client.known(site.now)
        for chosen in sequence:
            try:
                catalogue = client.refresh(mixed(states, chosen), site.now)
            except TrustError as error:
                assert str(error)
                assert told(client.known(site.now)) == told(known)
            else:
                known = client.known(site.now)
                assert known == catalogue
            seen = client.seen
            root = max(int(path.name.split(".")[0]) for path in client.metadata.glob("*.root.json"))
            after = (root, seen.timestamp, seen.snapshot, max(seen.promised, seen.targets))
            assert all(new >= old for new, old in zip(after, before, strict=True)), (before, after)
            assert all(old <= new for old, new in zip(catalogue_versions(known), after, strict=True))
            before = after


def told(known: Catalogue | None) -> object:
    """What is offered; a newer root may vouch for it than before."""
    return known and (known.offers, known.issued, known.versions["timestamp"])


def catalogue_versions(known: Catalogue | None) -> tuple[int, ...]:
    versions = known.versions if known else {}
    return tuple(versions.get(role, 0) for role in ("root", "timestamp", "snapshot", "targets"))


numbers = st.integers(0, 12)
labels = st.sampled_from(["", "-alpha", "-alpha.1", "-alpha.2", "-alpha.10", "-beta", "-1", "-a-b"])
versions = st.builds(lambda a, b, c, label: f"{a}.{b}.{c}{label}", numbers, numbers, numbers, labels)


@given(versions, versions, versions)
def test_precedence_is_an_order(first: str, second: str, third: str) -> None:
    """Antisymmetric and transitive; a pre-release is below its release."""
    a, b, c = precedence(first), precedence(second), precedence(third)
    assert (a == b) == (first == second)
    assert not (a < b < a)
    assert not (a < b < c) or a < c
    assert precedence(first.split("-", maxsplit=1)[0]) >= a
