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


@pytest.mark.parametrize(("before", "after"), [(8e6, 8e3), (8e3, 8e6)])
def test_a_link_that_changed_a_thousandfold_is_believed_when_two_transfers_agree(before: float, after: float) -> None:
    estimate = known(rate=before).transfer(4096, 4096 / after, 1.0)
    assert estimate.view(1.0).bytes_per_s == pytest.approx((before * after) ** 0.5), "one may be an outlier"
    assert estimate.transfer(4096, 4096 / after, 2.0).view(2.0).bytes_per_s == pytest.approx(after)


def test_outliers_that_disagree_with_each_other_only_pull_the_mean() -> None:
    estimate = known(rate=1e6).transfer(4096, 4.096, 1.0).transfer(4096, 0.0004096, 2.0)
    assert 1e4 < (estimate.view(2.0).bytes_per_s or 0.0) < 1e7


def test_a_short_transfer_tells_no_throughput() -> None:
    assert NetworkEstimate().transfer(100, 1.0, 0.0).view(0.0).bytes_per_s is None


def test_a_padded_probe_counts_what_it_took_beyond_the_round_trip() -> None:
    estimate = NetworkEstimate().round_trip(0.1, 0.0).probe(10_000, 1.1, 1.0)
    assert estimate.view(1.0).bytes_per_s == pytest.approx(10_000)
    assert estimate.rtt_s == 0.1, "it says nothing of the round trip"


def test_a_padded_probe_as_fast_as_an_empty_one_is_told_from_noise_no_further_than_an_eighth() -> None:
    estimate = NetworkEstimate().round_trip(0.1, 0.0).probe(16_384, 0.1, 1.0)
    assert estimate.view(1.0).bytes_per_s == pytest.approx(8 * 163_840)


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
        doubted = estimate.round_trip(0.05, 1.0)
        assert doubted.probe_bytes(1.0) == 16_384
        assert doubted.probe(16_384, 0.066, 2.0).probe_bytes(2.0) == 0, "it was as good as ever"

    def test_more_delay_alone_is_not_taken_for_a_narrower_link(self) -> None:
        estimate = known(rtt_s=0.01).round_trip(0.1, 1.0).probe(16_384, 0.1 + 0.016384, 2.0)
        assert estimate.view(2.0).bytes_per_s == pytest.approx(1e6)

    def test_a_transfer_unlike_the_others_is_looked_at_again(self) -> None:
        once = known(rate=1e6).transfer(16_384, 16.384, 1.0)
        assert once.probe_bytes(1.0) > 0
        twice = once.transfer(16_384, 16.384, 2.0).transfer(16_384, 16.384, 3.0)
        assert twice.probe_bytes(3.0) == 0, "the mean has followed"


def test_the_link_in_one_word() -> None:
    assert link_condition(known().view(0.0)) is LinkCondition.KNOWN
    assert link_condition(NetworkEstimate().round_trip(0.1, 0.0).view(0.0)) is LinkCondition.PARTLY_KNOWN
    assert link_condition(UNKNOWN) is LinkCondition.UNKNOWN
    assert link_condition(LinkView(down=True)) is LinkCondition.DOWN


@pytest.mark.parametrize("bad", ["throughput_weight", "down_after", "stale_after_s", "probe_transfer_s"])
def test_settings_that_make_no_sense_are_refused_by_name(bad: str) -> None:
    with pytest.raises(ValueError, match=bad):
        NetworkSettings(**{bad: 0})  # type: ignore[arg-type]


def test_two_round_trips_that_agree_replace_the_mean_of_another_link() -> None:
    estimate = NetworkEstimate()
    for second in range(20):
        estimate = estimate.round_trip(0.03, float(second))
    once = estimate.round_trip(2.0, 20.0)
    assert once.rtt_s is not None
    assert once.rtt_s < 0.3, "one odd sample is one sample"
    twice = once.round_trip(2.2, 21.0)
    assert twice.rtt_s == 2.2
    assert twice.rtt_var_s == 1.1
    assert twice.round_trip(2.0, 22.0).rtt_s == pytest.approx(2.2 * 7 / 8 + 2.0 / 8)


def test_a_round_trip_of_nothing_is_survived() -> None:
    estimate = NetworkEstimate().round_trip(0.0, 0.0).round_trip(0.0, 1.0).round_trip(1.0, 2.0).round_trip(1.0, 3.0)
    assert estimate.rtt_s == 1.0
