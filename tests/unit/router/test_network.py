"""The network estimate over a made-up clock."""

from __future__ import annotations

import math

import pytest

from router.decision import LinkView
from router.events import LinkCondition, link_condition
from router.network import NetworkEstimate, NetworkSettings

UNKNOWN = LinkView()


def known(rtt_s: float = 0.05, rate: float = 1e6, now: float = 0.0) -> NetworkEstimate:
    return NetworkEstimate().round_trip(rtt_s, now).transfer(16_384, 16_384 / rate, now)


def test_nothing_is_known_at_first() -> None:
    assert NetworkEstimate().view(0.0) == UNKNOWN


def test_the_round_trip_is_averaged_as_rfc_6298_does() -> None:
    estimate = NetworkEstimate().round_trip(0.1, 0.0)
    assert (estimate.rtt_s, estimate.rtt_var_s) == (0.1, 0.05)
    estimate = estimate.round_trip(0.2, 1.0)
    assert estimate.rtt_var_s == pytest.approx(0.75 * 0.05 + 0.25 * 0.1)
    assert estimate.rtt_s == pytest.approx(7 / 8 * 0.1 + 1 / 8 * 0.2)


def test_a_link_that_narrows_a_thousandfold_is_believed_after_a_few_transfers() -> None:
    estimate = known(rate=8e6)
    for second in range(5):
        estimate = estimate.transfer(4096, 4096 / 8e3, float(second))
    assert estimate.view(5.0).bytes_per_s == pytest.approx(8e3, rel=0.3)


def test_a_link_that_widens_is_believed_as_soon() -> None:
    estimate = known(rate=8e3)
    for second in range(5):
        estimate = estimate.transfer(4096, 4096 / 8e6, float(second))
    assert estimate.view(5.0).bytes_per_s == pytest.approx(8e6, rel=0.3)


def test_a_short_transfer_tells_no_throughput() -> None:
    assert NetworkEstimate().transfer(100, 1.0, 0.0).view(0.0).bytes_per_s is None


def test_a_padded_probe_counts_what_it_took_beyond_the_round_trip() -> None:
    estimate = NetworkEstimate().round_trip(0.1, 0.0).probe(10_000, 1.1, 1.0)
    assert estimate.view(1.0).bytes_per_s == pytest.approx(10_000)
    assert estimate.rtt_s == 0.1, "it says nothing of the round trip"


def test_a_padded_probe_as_fast_as_an_empty_one_tells_the_least() -> None:
    estimate = NetworkEstimate().round_trip(0.1, 0.0).probe(16_384, 0.1, 1.0)
    assert estimate.view(1.0).bytes_per_s == pytest.approx(163_840)


def test_an_empty_probe_is_a_round_trip() -> None:
    assert NetworkEstimate().probe(0, 0.1, 1.0).view(1.0).rtt_s == 0.1


@pytest.mark.parametrize("sample", [math.nan, math.inf, -1.0])
def test_an_impossible_sample_changes_no_figure(sample: float) -> None:
    estimate = known()
    assert estimate.round_trip(sample, 1.0) == estimate
    assert estimate.transfer(16_384, sample, 1.0) == estimate


def test_failures_in_a_row_make_it_down_and_one_answer_up_again() -> None:
    estimate = known().failed(1.0).failed(2.0)
    assert not estimate.view(2.0).down
    estimate = estimate.failed(3.0)
    assert estimate.view(3.0) == LinkView(down=True), "the figures were those of another link"
    assert not estimate.reached().view(3.0).down


def test_failures_far_apart_are_not_in_a_row() -> None:
    estimate = known()
    for second in (0.0, 100.0, 200.0, 300.0):
        estimate = estimate.failed(second)
    assert not estimate.view(300.0).down


def test_what_is_old_is_unknown_neither_fine_nor_dead() -> None:
    assert known().view(30.0).rtt_s == 0.05
    assert known().view(30.1) == UNKNOWN
    down = known().failed(1.0).failed(1.0).failed(1.0)
    assert down.view(16.0).down
    assert down.view(16.1) == UNKNOWN


def test_an_old_figure_has_no_part_in_the_next() -> None:
    estimate = known(rtt_s=5.0, rate=10.0).round_trip(0.01, 100.0).transfer(16_384, 0.016384, 100.0)
    assert estimate.view(100.0).rtt_s == 0.01
    assert estimate.view(100.0).bytes_per_s == pytest.approx(1e6)


class TestProbes:
    def test_one_is_due_at_first_and_then_when_no_round_trip_was_measured_for_a_while(self) -> None:
        estimate = NetworkEstimate()
        assert estimate.probe_due(0.0)
        assert not estimate.probe_sent(0.0).probe_due(1.9), "it is on its way"
        assert estimate.probe_sent(0.0).probe_due(2.0)
        assert not estimate.round_trip(0.1, 5.0).probe_due(6.9)

    def test_traffic_that_measures_no_round_trip_does_not_put_it_off(self) -> None:
        assert known().reached().transfer(16_384, 1.0, 2.0).probe_due(2.0)

    def test_a_link_that_is_down_is_probed_on(self) -> None:
        down = known().failed(1.0).failed(1.0).failed(1.0)
        assert not down.probe_due(2.9)
        assert down.probe_due(3.0)

    def test_the_first_is_empty_and_the_next_padded(self) -> None:
        assert NetworkEstimate().probe_bytes(0.0) == 0
        assert NetworkEstimate().round_trip(0.1, 0.0).probe_bytes(0.0) == 16_384

    def test_padding_is_left_out_while_the_throughput_is_young(self) -> None:
        assert known().probe_bytes(7.9) == 0
        assert known().probe_bytes(8.0) == 16_384

    def test_padding_is_sized_so_that_a_narrow_link_is_not_clogged(self) -> None:
        assert known(rate=10_000.0).probe_bytes(8.0) == 5_000
        assert known(rate=100.0).probe_bytes(8.0) == 2_048, "never too short to tell"

    def test_a_round_trip_unlike_the_others_puts_the_throughput_in_doubt(self) -> None:
        estimate = known(rtt_s=0.01)
        assert estimate.round_trip(0.012, 1.0).probe_bytes(1.0) == 0
        doubted = estimate.round_trip(0.5, 1.0)
        assert doubted.probe_bytes(1.0) == 16_384
        assert doubted.probe(16_384, 2.0, 2.0).probe_bytes(2.0) == 0


def test_the_link_in_one_word() -> None:
    assert link_condition(known().view(0.0)) is LinkCondition.KNOWN
    assert link_condition(NetworkEstimate().round_trip(0.1, 0.0).view(0.0)) is LinkCondition.PARTLY_KNOWN
    assert link_condition(UNKNOWN) is LinkCondition.UNKNOWN
    assert link_condition(LinkView(down=True)) is LinkCondition.DOWN


@pytest.mark.parametrize("bad", ["throughput_weight", "down_after", "stale_after_s", "probe_interval_s"])
def test_settings_that_make_no_sense_are_refused_by_name(bad: str) -> None:
    with pytest.raises(ValueError, match=bad):
        NetworkSettings(**{bad: 0})  # type: ignore[arg-type]
