"""Whether a session that was just made computes what the release's builder computed.

A release carries known prompts with the logits of their likeliest next tokens. A file that passed its
hashes can still compute wrongly: another kernel, a broken runtime, memory that lies. Entries recorded
on this box's CPU class are compared within their tolerance; where there are none, those of other
classes are, whose kernels round otherwise, within their wider one.

Must not know: files, what happens to a session that fails.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from release.manifest import SelfTest
from runtime.ort.generate import prefill
from runtime.ort.session import GraphError
from runtime.ort.steps import Logits, ModelBroken, StepModel

_log = logging.getLogger("weir.runtime")


def first_logits(steps: StepModel) -> Logits:
    """The logits of a prefill and of a decode step on row 0. Raises GraphError when they are none."""
    try:
        prefilled = steps.prefill(0, [0, min(1, steps.vocab_size - 1)], 0).copy()
        return np.concatenate([prefilled, steps.decode([0], [2])[0]])
    except ModelBroken as error:
        raise GraphError(f"the model's first steps failed: {error}; build the release anew") from error


def try_out(steps: StepModel, precision: int, entries: Sequence[SelfTest], cpu: str) -> None:
    """Takes steps on row 0 and compares them with what is known. `cpu` is this box's class.

    Raises GraphError with the worst difference.
    """
    if not np.isfinite(first_logits(steps)).all():
        raise GraphError("the model's first logits are not finite; build the release anew")
    of_precision = [entry for entry in entries if entry.precision == precision]
    own = [entry for entry in of_precision if entry.cpu_class == cpu]
    try:
        for entry in own or of_precision:
            _compare(steps, entry, entry.tolerance if own else entry.tolerance_elsewhere)
    except ModelBroken as error:
        raise GraphError(f"the model's self-test broke it: {error}; build the release anew") from error


def _compare(steps: StepModel, entry: SelfTest, tolerance: float) -> None:
    """Once with the prompt's last token prefilled and once with it decoded: those are different kernels."""
    prompt = entry.prompt_ids
    if max(*prompt, *entry.token_ids) >= steps.vocab_size:
        raise GraphError(f"the self-test names tokens past the model's {steps.vocab_size}: build the release anew")
    if len(prompt) > steps.capacity:
        _log.warning("the self-test's prompt of %d tokens does not fit a context of %d", len(prompt), steps.capacity)
        return
    demand_close(prefill(steps, 0, prompt), entry, tolerance)
    if len(prompt) > 1:
        demand_close(steps.decode([prompt[-1]], [len(prompt) - 1])[0], entry, tolerance)


def demand_close(logits: Logits, entry: SelfTest, tolerance: float) -> None:
    """Raises GraphError with the worst difference where the logits [V] are not those that are known."""
    found = logits[list(entry.token_ids)].astype(np.float64)
    differences = np.abs(found - np.asarray(entry.logits, np.float64))
    worst = int(np.argmax(np.where(np.isfinite(differences), differences, np.inf)))
    if not differences[worst] <= tolerance:
        raise GraphError(
            f"the {entry.precision}-bit weights failed their self-test: token {entry.token_ids[worst]} has logit "
            f"{found[worst]:.4f} here and {entry.logits[worst]:.4f} where the release was built ({entry.cpu_class}), "
            f"{differences[worst]:.4f} apart with {tolerance:g} allowed; fetch the release again, and if it fails "
            "still, build it on a box of this CPU class"
        )
