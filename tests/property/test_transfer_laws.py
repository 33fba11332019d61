"""Laws of the transfer plan and of a precision that is still to come. Each docstring is the law."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from router.decision import LinkView, UpstreamView
from router.precision import (
    PrecisionFigures,
    PrecisionPlan,
    PrecisionReason,
    PrecisionSettings,
    Surroundings,
    plan_precision,
)
from router.transfer import Stock, TransferReason, TransferSettings, TransferView, plan_transfer

BYTES = st.integers(0, 1_000_000)
SHARE = st.floats(0.01, 1)
ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)

STOCKS = st.builds(
    lambda four, eight, four_bytes, eight_bytes, precisions: Stock(
        "m@1.0.0+0123456789ab",
        four and 4 in precisions,
        eight and 8 in precisions and (four or 4 not in precisions),
        0 if four or 4 not in precisions else four_bytes,
        0 if eight or 8 not in precisions else eight_bytes,
        precisions,
    ),
    st.booleans(),
    st.booleans(),
    st.integers(1, 1_000_000),
    st.integers(1, 1_000_000),
    st.sampled_from([(4, 8), (4, 8), (4, 8), (4,), (8,)]),
)
PLANS = st.none() | st.builds(
    PrecisionPlan,
    bits=st.sampled_from([4, 8]),
    since=st.just(0.0),
    reason=st.sampled_from(PrecisionReason),
    costs_s=st.just({}) | st.just({4: 2.0, 8: 1.0}) | st.just({4: 1.0, 8: 2.0}),
    wanted=st.sampled_from([None, 4, 8]),
)
VIEWS = st.builds(
    TransferView,
    bytes_per_s=st.none() | st.floats(1, 1e9) | ANY_FLOAT,
    spent_today_bytes=BYTES,
    serving=st.booleans(),
    plan=PLANS,
    disk_free_bytes=st.none() | BYTES,
    eight_fits=st.booleans(),
)
SETTINGS = st.builds(
    TransferSettings,
    pinned=st.sampled_from([None, None, 4, 8]),
    metered=st.booleans(),
    bytes_per_day=st.none() | BYTES,
    bandwidth_share=SHARE,
)


@given(STOCKS, VIEWS, SETTINGS)
def test_never_above_the_budget_the_disk_or_what_is_missing(
    stock: Stock, view: TransferView, settings: TransferSettings
) -> None:
    """What a plan lets through never exceeds the day's budget, the disk's room or the part itself."""
    plan = plan_transfer(stock, view, settings, 0.0)
    if settings.bytes_per_day is not None:
        assert plan.most_bytes <= max(0, settings.bytes_per_day - view.spent_today_bytes)
    if view.disk_free_bytes is not None:
        assert plan.most_bytes <= view.disk_free_bytes
    missing = {None: 0, "four": stock.four_missing_bytes, "eight": stock.eight_missing_bytes}[plan.fetch]
    assert plan.most_bytes <= missing
    assert (plan.most_bytes > 0) == (plan.fetch is not None)
    assert plan.text


@given(STOCKS, VIEWS, SETTINGS)
def test_pinned_at_four_never_fetches_eight(stock: Stock, view: TransferView, settings: TransferSettings) -> None:
    """Whatever the plan, the link or the release: an operator's 4 keeps the residual away."""
    assert plan_transfer(stock, view, replace(settings, pinned=4), 0.0).fetch != "eight"


@given(STOCKS, VIEWS, SETTINGS)
def test_a_metered_link_fetches_what_serving_needs_and_no_more(
    stock: Stock, view: TransferView, settings: TransferSettings
) -> None:
    """Eight comes over a metered link only where it is pinned, is all there is, or is cheaper by the figures."""
    plan = plan_transfer(stock, view, replace(settings, metered=True), 0.0)
    if plan.fetch == "eight" and settings.pinned != 8 and 4 in stock.precisions:
        assert plan.reason is TransferReason.EIGHT_PAYS
        assert view.plan is not None
        assert view.plan.wanted == 8
        assert view.plan.costs_s


@given(STOCKS, VIEWS, SETTINGS)
def test_nothing_serving_brings_the_first_part_at_full_rate(
    stock: Stock, view: TransferView, settings: TransferSettings
) -> None:
    """A node that cannot answer never paces, never waits for a plan, and begins with four where there is one."""
    assume(4 in stock.precisions and not stock.four)
    plan = plan_transfer(stock, replace(view, serving=False, disk_free_bytes=None), settings, 0.0)
    if settings.bytes_per_day is None or settings.bytes_per_day > view.spent_today_bytes:
        assert (plan.fetch, plan.share, plan.bytes_per_s) == ("four", 1.0, None)


@given(STOCKS, VIEWS, SETTINGS)
def test_what_is_not_urgent_keeps_within_the_share(
    stock: Stock, view: TransferView, settings: TransferSettings
) -> None:
    """While a model serves, a fetch takes no more than its share of the time, nor of a rate that is known."""
    plan = plan_transfer(stock, replace(view, serving=True), settings, 0.0)
    if plan.fetch is None:
        return
    assert plan.share <= settings.bandwidth_share
    if plan.bytes_per_s is not None:
        assert view.bytes_per_s is not None
        assert plan.bytes_per_s <= view.bytes_per_s * settings.bandwidth_share * (1 + 1e-9)


@given(STOCKS, VIEWS, SETTINGS, st.floats(0, 1e9), st.floats(0, 1e9))
def test_constant_inputs_give_the_same_plan_whenever_asked(
    stock: Stock, view: TransferView, settings: TransferSettings, one: float, other: float
) -> None:
    """Nothing flaps by waiting."""
    plans = [replace(plan_transfer(stock, view, settings, now), at=0.0) for now in (one, other)]
    assert repr(plans[0]) == repr(plans[1])  # not ==: a rate that is not a number is none


@given(STOCKS, VIEWS, SETTINGS, st.integers(1, 30))
def test_fetching_what_the_plan_says_leads_on_and_never_back(
    stock: Stock, view: TransferView, settings: TransferSettings, steps: int
) -> None:
    """Followed to its end a plan fetches four, then eight, then nothing; and ends, within the day's budget."""
    fetched, moved = [], 0
    step = 1 + (stock.four_missing_bytes + stock.eight_missing_bytes) // steps
    for _ in range(steps + 6):
        plan = plan_transfer(stock, view, settings, 0.0)
        if not fetched or fetched[-1] != plan.fetch:
            fetched.append(plan.fetch)
        if plan.fetch is None:
            break
        piece = min(step, plan.most_bytes)
        moved += piece
        free = None if view.disk_free_bytes is None else view.disk_free_bytes - piece
        view = replace(view, spent_today_bytes=view.spent_today_bytes + piece, disk_free_bytes=free)
        if plan.fetch == "four":
            left = stock.four_missing_bytes - piece
            stock = replace(stock, four_missing_bytes=left, four=left == 0)
            view = replace(view, serving=view.serving or left == 0)
        else:
            left = stock.eight_missing_bytes - piece
            stock = replace(stock, eight_missing_bytes=left, eight=left == 0)
    assert fetched in ([None], ["four", None], ["eight", None], ["four", "eight", None])
    assert settings.bytes_per_day is None or moved <= settings.bytes_per_day


FIGURES = st.builds(
    PrecisionFigures,
    bits=st.just(4),
    first_token_s=st.floats(0.01, 2),
    per_token_s=st.floats(0.001, 0.2),
    escalation_share=st.floats(0, 1) | st.just(float("nan")),
    expected_error=st.floats(0, 1),
)
AROUND = st.builds(
    Surroundings,
    link=st.just(LinkView())
    | st.just(LinkView(down=True))
    | st.builds(LinkView, st.floats(0, 2), st.just(0.0), st.floats(10, 1e8)),
    upstream=st.builds(
        UpstreamView,
        configured=st.booleans(),
        first_token_s=st.none() | st.floats(0, 2),
        per_token_s=st.none() | st.floats(0, 0.2),
    ),
    both_fit=st.booleans(),
)


@given(FIGURES, FIGURES, AROUND, st.none() | st.sampled_from([4, 8]), st.integers(0, 30))
def test_what_is_not_here_is_never_held_and_what_arrives_changes_once(
    four: PrecisionFigures, other: PrecisionFigures, around: Surroundings, pinned: int | None, arrives: int
) -> None:
    """Before 8-bit arrives 4-bit is held; when it does, constant inputs change the plan at most once more."""
    plan, changes, wanted = PrecisionPlan(4, 0.0), 0, set()
    settings = PrecisionSettings(pinned=pinned)
    for second in range(1, 40):
        figures = (four, replace(other, bits=8, here=second > arrives))
        plan = plan_precision(plan, figures, around, settings, float(second))
        changes += plan.changed
        wanted.add(plan.wanted)
        if second <= arrives:
            assert plan.bits == 4
            assert plan.reason is not PrecisionReason.NOT_HERE_YET or plan.wanted == 8
    assert changes <= 1
    assert plan.bits == plan.wanted
    assert len(wanted) <= 2


@given(FIGURES, FIGURES, AROUND)
def test_a_speed_that_nobody_measured_is_never_called_as_fast(
    four: PrecisionFigures, other: PrecisionFigures, around: Surroundings
) -> None:
    """The plan says that precision does not matter only of figures measured on this box."""
    figures = (four, replace(other, bits=8, assumed=True))
    plan = plan_precision(PrecisionPlan(4, 0.0), figures, around, PrecisionSettings(), 1.0)
    assert plan.reason is not PrecisionReason.DOES_NOT_MATTER
