"""An early stop is fitted where the items support one, keeps its promise on other items, and saves tokens."""

from __future__ import annotations

import dataclasses

import numpy as np

from quantize.early_stop import Looks, fit_early_stop, stops_after, with_early_stop
from quantize.fit import Fitted, Purpose, fit
from release.manifest import EarlyStop
from router.confidence import Signals
from tests.unit.quantize.test_fit import calibrator

PURPOSE = Purpose("tiny", 4, "x86-avx2", "end", 0.1)
THRESHOLD = 0.7


def answers(count: int, seed: int) -> list[tuple[tuple[Signals, ...], bool]]:
    """Signals after every token, and whether the answer agreed: the unsure ones go on for long."""
    random, made = np.random.default_rng(seed), []
    for _ in range(count):
        doubt = float(random.choice([0.2, 2.0], p=[0.65, 0.35]))
        one, trajectory = Signals(prompt_tokens=30), []
        for _ in range(int(random.integers(1, 4)) if doubt < 1 else int(random.integers(4, 20))):
            entropy = float(random.exponential(doubt))
            one = one.then(-entropy, entropy, float(random.exponential(1 / doubt)))
            trajectory.append(one)
        made.append((tuple(trajectory), bool(random.random() < (0.95 if doubt < 1 else 0.1))))
    return made


def fitted(items: list[tuple[tuple[Signals, ...], bool]], prefix: int | None = None) -> Fitted:
    trajectories, agreed = [trajectory for trajectory, _ in items], [same for _, same in items]
    end = fit(PURPOSE, [trajectory[-1] for trajectory in trajectories], agreed)
    if prefix is None:
        return with_early_stop(end, end, trajectories)
    shown = dataclasses.replace(PURPOSE, commit_rule=f"prefix:{prefix}")
    early = fit(shown, [trajectory[: max(prefix, 1)][-1] for trajectory in trajectories], agreed)
    return with_early_stop(early, end, trajectories, prefix)


def test_unsure_answers_are_given_up_and_hardly_any_sure_one() -> None:
    """On items that were not fitted on, over several draws: the share given up in vain is within the bound."""
    well = stopped = tokens = saved = 0
    for seed in range(8):
        made = fitted(answers(200, seed)).calibration
        assert made.early_stop is not None
        confidence = calibrator(made).confidence
        for trajectory, _ in answers(200, 100 + seed):
            running = [confidence(signals) for signals in trajectory]
            after = stops_after(made.early_stop.levels, running)
            if running[-1] >= made.threshold:
                well, stopped = well + 1, stopped + (after is not None)
            else:
                tokens, saved = tokens + len(running), saved + (0 if after is None else len(running) - after)
    assert well > 800
    assert stopped / well <= 0.02 + 3 * (0.02 * 0.98 / well) ** 0.5
    assert saved / tokens > 0.5


def test_its_own_figures_are_of_held_out_items() -> None:
    stop = fitted(answers(300, 1)).calibration.early_stop
    assert stop is not None
    assert stop.max_false_stops == 0.02
    assert stop.n > 150
    assert stop.false_stops / stop.n <= 0.05
    assert 0 < stop.tokens_saved < stop.tokens


def test_few_items_support_no_early_stop() -> None:
    """With fewer than 49 answers that end well, two in a hundred cannot be told from none."""
    assert fitted(answers(50, 0)).calibration.early_stop is None
    plain = fit(PURPOSE, [trajectory[-1] for trajectory, _ in answers(50, 0)], [same for _, same in answers(50, 0)])
    assert fitted(answers(50, 0)).calibration == plain.calibration


def test_answers_that_all_end_well_leave_nothing_to_give_up() -> None:
    looks = [Looks((0.5 + n / 1000, 0.9), True) for n in range(200)]
    assert fit_early_stop(looks, looks, [n % 5 for n in range(200)], THRESHOLD, 0.02) is None


def test_a_length_that_few_well_ended_answers_reached_takes_the_level_before_it() -> None:
    """And one that no answer reached has none."""
    random = np.random.default_rng(0)
    looks = [Looks(tuple(random.uniform(0.6, 1.0, 2)), True) for _ in range(150)]
    looks += [Looks(tuple(random.uniform(0.0, 0.5, 9)), False) for _ in range(50)]
    stop = fit_early_stop(looks, looks, [n % 5 for n in range(200)], THRESHOLD, 0.02)
    assert stop is not None
    assert len(stop.levels) == 4  # 1, 2 to 3, 4 to 7, 8 to 15
    assert stop.levels[1] == stop.levels[2] == stop.levels[3] > 0


def test_what_would_do_as_it_stands_is_never_given_up() -> None:
    """First tokens of all are surer than the threshold: their level is not above it."""
    random = np.random.default_rng(0)
    looks = [Looks((float(random.uniform(0.9, 1.0)), float(random.uniform(0.8, 1.0))), True) for _ in range(150)]
    looks += [Looks((float(random.uniform(0.75, 0.85)), 0.2, 0.2), False) for _ in range(50)]
    stop = fit_early_stop(looks, looks, [n % 5 for n in range(200)], THRESHOLD, 0.02)
    assert stop is not None
    assert all(level <= THRESHOLD for level in stop.levels)


def test_an_answer_committed_at_its_prefix_ended_well() -> None:
    """What it is like afterwards is looked at by nobody: the client has seen it."""
    items = answers(300, 3)
    made = fitted(items, prefix=2).calibration
    assert made.commit_rule == "prefix:2"
    assert isinstance(made.early_stop, EarlyStop)
    assert made.early_stop.tokens_saved > 0


def test_the_id_tells_the_early_stop() -> None:
    items = answers(300, 1)
    plain = fit(PURPOSE, [trajectory[-1] for trajectory, _ in items], [same for _, same in items]).calibration
    made = fitted(items).calibration
    assert made.id.startswith("tiny-")
    assert made.id != plain.id
    assert dataclasses.replace(made, id=plain.id, early_stop=None) == plain
    assert fitted(items).calibration == made
