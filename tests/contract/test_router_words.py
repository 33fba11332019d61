"""The router keeps its own copy of two of the wire's shapes, since it may not import wire. They are equal."""

from __future__ import annotations

from dataclasses import fields

import router.confidence
import router.decision
import wire.messages
from router.case import CLOUD_ONLY, EDGE_ONLY


def test_reasons_are_the_same_words_in_the_same_order() -> None:
    assert [(r.name, r.value) for r in router.decision.Reason] == [(r.name, r.value) for r in wire.messages.Reason]


def test_signals_have_the_same_fields_and_defaults() -> None:
    ours = [(f.name, f.type, f.default) for f in fields(router.confidence.Signals)]
    assert ours == [(f.name, f.type, f.default) for f in fields(wire.messages.Signals)]


def test_tier_constraints_are_the_same_words() -> None:
    assert {router.decision.Request().tier, EDGE_ONLY, CLOUD_ONLY} == {t.value for t in wire.messages.TierConstraint}
