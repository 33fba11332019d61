"""Known answers: a fixed prompt and the logits each precision gives after it, recorded when a release is built.

A node takes the prompt through its session before it serves (`runtime.ort.selftest`). What it allows is
measured here, per model and precision, over the likeliest tokens:

- On the CPU class of the build the same step gives the same bits, whatever the threads. But a node may cut
  the prompt so that its end goes through the kernels of single tokens, which round inputs otherwise. Allowed
  is twice what lies between the prompt in one step and token by token, or with its last token decoded.
- Another class rounds the inputs of products in its own way, hardly further away than not rounding them at
  all is. Allowed is three times that distance, and twice what the class of the build may differ.

A session that multiplies by wrong weights or reads its cache wrongly is off by several times as much.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantize.errors import QuantizeError
from quantize.levels import FLOAT_INPUTS, at_level
from quantize.progress import Progress, Silent
from quantize.sealing import reseal
from release.folder import Release, open_release
from release.manifest import Manifest, SelfTest
from release.planes import Floats
from runtime.cpu import cpu_class
from runtime.ort.classify import CLASSIFY, ClassifierModel, shortened
from runtime.ort.session import OrtSession, OrtStepModel
from runtime.tokenizer import Tokenizer

_PROMPT = "The keeper of the lower lock wrote down the height of the water every morning, and on the ninth of June she"
_MOST_TOKENS = 32
_RECORDED = 8
_WATCHED = 64  # the largest of more distances says more reliably how far kernels lie apart
_LEAST_TOLERANCE = 0.05
_SAME, _OTHER_CLASS, _FLOAT_INPUTS = 2.0, 2.0, 3.0
_TASK = "recording self-tests"


def record_self_tests(folder: Path, *, threads: int = 1, progress: Progress | None = None) -> Manifest:
    """Runs every precision of the release in `folder` and writes its self-tests into the manifest.

    A classifier's name labels, by their place, where a decoder's name tokens. Raises QuantizeError or
    ReleaseError; the release is then as it was.
    """
    progress = progress or Silent()
    release = open_release(folder, verify=False)
    answers = _labels if release.manifest.task == CLASSIFY else _tokens
    progress.start(_TASK, len(release.precisions), "steps")
    found = []
    for bits in release.precisions:
        found.append(_recorded(bits, answers(release, bits, threads)))
        progress.advance(_TASK, 1)
    progress.finish(_TASK)
    return reseal(folder, dataclasses.replace(release.manifest, self_tests=tuple(found)))


@dataclass(frozen=True, slots=True)
class _Answers:
    """Logits after the prompt: as they are, by other kernels of this box, and with float inputs."""

    prompt: Sequence[int]
    plain: Floats
    others: Sequence[Floats]
    floats: Floats


def _recorded(bits: int, answers: _Answers) -> SelfTest:
    plain = answers.plain
    if not all(np.isfinite(logits).all() for logits in (plain, *answers.others)):
        raise QuantizeError(f"the release gives logits that are no numbers at {bits} bits: the build is broken")
    likeliest = np.argsort(-plain, kind="stable")[:_WATCHED]
    tokens = likeliest[:_RECORDED]
    tolerance = max(_LEAST_TOLERANCE, *(_SAME * _apart(plain, other, likeliest) for other in answers.others))
    return SelfTest(
        precision=bits,
        prompt_ids=tuple(answers.prompt),
        token_ids=tuple(int(token) for token in tokens),
        logits=tuple(float(plain[token]) for token in tokens),
        cpu_class=cpu_class(),
        tolerance=tolerance,
        tolerance_elsewhere=max(_OTHER_CLASS * tolerance, _FLOAT_INPUTS * _apart(plain, answers.floats, likeliest)),
    )


def _tokens(release: Release, bits: int, threads: int) -> _Answers:
    prompt = Tokenizer.load(release.path).encode(_PROMPT)[:_MOST_TOKENS]
    graph, arrays = release.graph(bits), release.initializers(bits)
    session = OrtSession(graph, arrays, threads)
    floats = OrtSession(at_level(graph, FLOAT_INPUTS), arrays, threads)
    whole = len(prompt)
    others = (_after(session, prompt, 1), _decoded(session, prompt))
    return _Answers(prompt, _after(session, prompt, whole), others, _after(floats, prompt, whole))


def _labels(release: Release, bits: int, threads: int) -> _Answers:
    """The other way to the same logits is in a batch, beside a longer text."""
    longest = release.manifest.architecture.context_length
    prompt = shortened(Tokenizer.load(release.path).encode(_PROMPT), longest)
    model = ClassifierModel(release, bits, threads)
    floats = ClassifierModel(release, bits, threads, at_level(release.graph(bits), FLOAT_INPUTS))
    alone, beside = ([_PROMPT], [_PROMPT, f"{_PROMPT} slept"])
    return _Answers(prompt, model.logits(alone)[0], [model.logits(beside)[0]], floats.logits(alone)[0])


def _after(session: OrtSession, prompt: Sequence[int], chunk: int) -> Floats:
    """Logits [V] after the prompt, taken `chunk` tokens at a time."""
    steps = OrtStepModel(session, 1, len(prompt), chunk)
    for start in range(0, len(prompt), chunk):
        logits = steps.prefill(0, prompt[start : start + chunk], start)
    return logits.copy()


def _decoded(session: OrtSession, prompt: Sequence[int]) -> Floats:
    """Logits [V] after the prompt with its last token decoded, as a node tries it."""
    steps = OrtStepModel(session, 1, len(prompt), len(prompt))
    steps.prefill(0, prompt, 0)
    logits: Floats = steps.decode([prompt[-1]], [len(prompt) - 1])[0].copy()
    return logits


def _apart(left: Floats, right: Floats, tokens: NDArray[np.int64]) -> float:
    return float(np.abs(left[tokens] - right[tokens]).max())
