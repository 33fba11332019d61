"""Laws of the early stop: its fit and the router that goes by it. Each docstring is the law."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from quantize.early_stop import Looks, fit_curves, fit_early_stop, highest_bound, levels_of, lowest_chance, stops_after
from router.decision import Action, EdgeView, Moment, Observation, Policy, Reason, Request, State
from router.policy import decide, nothing_to_decide

SHARE = st.floats(0, 1)
LOOKS = st.builds(
    lambda sure, drift, length, well: Looks(
        tuple(min(max(sure + drift * step, 0.0), 1.0) for step in range(length)), well
    ),
    SHARE,
    st.floats(-0.1, 0.1),
    st.integers(0, 20),
    st.booleans(),
)
ITEMS = st.lists(LOOKS, min_size=20, max_size=80)
EPSILON = st.floats(0.005, 0.5)


def given_up(levels: tuple[float, ...], threshold: float, looks: Looks) -> int | None:
    """After how many tokens the router gives this answer up, asked at every token as a node asks."""
    policy = Policy(threshold_end=threshold, threshold_prefix=threshold, stop_levels=levels)
    for tokens, confidence in enumerate(looks.confidences, start=1):
        observation = Observation(Moment.DURING, confidence, tokens, previous_tokens=tokens - 1)
        if nothing_to_decide(Request(), observation, EdgeView(), policy.stop_levels):
            continue
        decision = decide(Request(), observation, State(), policy, 0.0, 0.5)
        if decision.action is Action.ESCALATE:
            assert decision.reason is Reason.EARLY_STOP
            return tokens
    return None


@settings(max_examples=20, deadline=None)
@given(ITEMS, SHARE, EPSILON)
def test_no_more_answers_that_end_well_are_given_up_than_was_allowed(
    items: list[Looks], threshold: float, epsilon: float
) -> None:
    """Over the items it was fitted on the router gives at most epsilon of those up that ended well."""
    stop = fit_early_stop(items, items, [n % 5 for n in range(len(items))], threshold, epsilon)
    well = [looks for looks in items if looks.well]
    if stop is None:
        return
    stopped = sum(given_up(stop.levels, threshold, looks) is not None for looks in well)
    assert (stopped + 1) / (len(well) + 1) <= epsilon + 1e-9


@settings(max_examples=20, deadline=None)
@given(ITEMS, st.lists(LOOKS, max_size=10), SHARE, EPSILON)
def test_what_the_fit_expects_to_end_well_is_never_given_up(
    items: list[Looks], asked: list[Looks], threshold: float, epsilon: float
) -> None:
    """An answer whose chance of ending well never fell under the fitted bound is decoded to its end; others are not."""
    curves = fit_curves(items)
    bound = highest_bound([lowest_chance(curves, looks, threshold) for looks in items if looks.well], epsilon)
    if bound is None:
        return
    levels = levels_of(curves, bound, threshold)
    for looks in asked:
        chance = lowest_chance(curves, looks, threshold)
        if abs(chance - bound) < 1e-4 * max(1.0, abs(bound)):  # at the bound itself rounding has the say
            continue
        if chance > bound:
            assert given_up(levels, threshold, looks) is None
        elif min(looks.confidences, default=0.0) > 1e-4 and chance < bound:  # next to 0 a level may be 0
            assert given_up(levels, threshold, looks) is not None


@given(st.lists(SHARE, max_size=6).map(tuple), SHARE, LOOKS)
def test_the_router_gives_up_where_the_fit_counted_it(
    levels: tuple[float, ...], threshold: float, looks: Looks
) -> None:
    """The first running confidence under its bucket's level, and under the threshold, ends the answer."""
    capped = tuple(min(level, threshold) for level in levels)
    assert given_up(levels, threshold, looks) == stops_after(capped, looks.confidences)


@given(st.lists(SHARE, max_size=6).map(tuple), SHARE, LOOKS, st.integers(0, 20))
def test_a_level_less_gives_nothing_more_up(
    levels: tuple[float, ...], threshold: float, looks: Looks, dropped: int
) -> None:
    """Without one of its levels the router never gives an answer up sooner."""
    fewer = tuple(0.0 if place == dropped % max(len(levels), 1) else level for place, level in enumerate(levels))
    sooner, later = given_up(levels, threshold, looks), given_up(fewer, threshold, looks)
    assert later is None or (sooner is not None and sooner <= later)
    assert given_up((), threshold, replace(looks)) is None
