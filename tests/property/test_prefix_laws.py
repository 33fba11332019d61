"""Laws of kept prefixes: a hit is a common prefix of the same tenant and weights, and memory stays in its bounds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edge.engine.prefix import PrefixCache, Trail, root
from runtime.ort.steps import BLOCK_TOKENS
from tests.fakes.steps import FakeSteps

_tenants = st.sampled_from(["", "a", "b"])
# Few different tokens and halves of blocks, so that prefixes are shared.
_prompts = st.lists(st.integers(1, 2), min_size=1, max_size=14).map(
    lambda halves: [half for half in halves for _ in range(BLOCK_TOKENS // 2)] + [3, 3]
)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 6), st.lists(st.tuples(_tenants, _prompts), max_size=20))
def test_a_hit_is_a_common_prefix_within_a_tenant(blocks: int, asked: list[tuple[str, list[int]]]) -> None:
    steps = FakeSteps(prefix_blocks=blocks, prefill_chunk=1000, capacity=1000)
    cache, seen = PrefixCache(steps), []
    for tenant, prompt in asked:
        trail, most, length = Trail(root(tenant, "m@1", "8", "digest")), len(prompt) - 2, 0
        length = cache.take(trail, prompt, 0, 0, most)
        common = max((_common(prompt, other) for whose, other in seen if whose == tenant), default=0)
        assert length <= min(common, most)
        assert length % BLOCK_TOKENS == 0
        assert steps.rows[0][:length] == prompt[:length], "what was copied is what was asked for"
        steps.prefill(0, prompt[length:], length)
        cache.add(trail, prompt, 0, len(prompt))
        assert cache.tokens <= blocks * BLOCK_TOKENS
        seen.append((tenant, prompt))
        if blocks * BLOCK_TOKENS >= len(prompt):
            again = cache.take(Trail(root(tenant, "m@1", "8", "digest")), prompt, 1, 0, most)
            assert again == most // BLOCK_TOKENS * BLOCK_TOKENS, "what was just kept is found"


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_no_two_salts_share_a_root(one: list[str], other: list[str]) -> None:
    assert (root(*one) == root(*other)) is (one == other)


def test_closing_gives_everything_back_and_keeps_no_more() -> None:
    steps = FakeSteps(prefix_blocks=4, prefill_chunk=100)
    cache, prompt = PrefixCache(steps), [1] * 40
    steps.prefill(0, prompt, 0)
    cache.add(Trail(root("t")), prompt, 0, 40)
    assert (cache.tokens, len(steps.kept)) == (32, 2)
    cache.close()
    assert cache.tokens == 0
    assert [cache.give_back(3), cache.give_back(3)] == [False, True], "slice by slice"
    cache.add(Trail(root("t")), prompt, 0, 40)
    assert (cache.tokens, steps.kept) == (0, {})
    assert cache.take(Trail(root("t")), prompt, 1, 0, 38) == 0


def test_nothing_is_kept_until_what_was_forgotten_has_gone() -> None:
    steps = FakeSteps(prefix_blocks=4, prefill_chunk=100)
    cache, prompt = PrefixCache(steps), [1] * 40
    steps.prefill(0, prompt, 0)
    for kept in (0, 32):
        cache.forget()
        while kept and not cache.give_back(1):
            pass
        cache.add(Trail(root("t")), prompt, 0, 40)
        assert cache.tokens == kept


def test_what_there_was_no_time_to_copy_is_told_and_copied_later() -> None:
    steps = FakeSteps(slots=2, prefix_blocks=4, prefill_chunk=100)
    cache, prompt = PrefixCache(steps), [1] * 70
    steps.prefill(0, prompt, 0)
    cache.add(Trail(root("t")), prompt, 0, 70)
    trail, looks = Trail(root("t")), iter([True, False, True, True, True])
    length = cache.take(trail, prompt, 1, 0, 68, go_on=lambda: next(looks))
    assert (length, trail.more) == (16, True)
    length = cache.take(trail, prompt, 1, length, 68, go_on=lambda: next(looks))
    assert (length, trail.more) == (64, False)


def _common(one: list[int], other: list[int]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
