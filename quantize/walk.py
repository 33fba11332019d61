"""Takes a calibration text through a decoder layer by layer, with one layer in float32 at a time.

What the model hands its layers besides the states (masks, rotary positions, each layer's own) is written down
once, by running the model with every layer replaced by one that only listens: so every family's layers are
called as the model itself calls them. Must not know: how weights are nested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quantize.architecture import SourceModel
from quantize.errors import QuantizeError
from quantize.gptq import inverse_factor


class Walk:
    """One pass over the model in `source`. Raises QuantizeError where it cannot be loaded.

    torch's threads are bounded to `threads` for the whole process.
    """

    def __init__(self, source: SourceModel, tokens: Sequence[Sequence[int]], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._threads, self._next = threads, 0
        self._body = _load(source)
        self._kept = list(self._body.layers)
        with torch.inference_mode():
            self._states, self._others = _listen(self._body, tokens)

    @property
    def layers(self) -> int:
        return len(self._kept)

    def step(self, firsts: Callable[[Any], Mapping[str, Any]], nest: Callable[[Any, Mapping[str, Any]], None]) -> None:
        """The next layer: `firsts` names modules of it; `nest` gets their inputs' covariances and replaces weights."""
        import torch

        with torch.inference_mode():
            layer = self._kept[self._next].float()
            covariances = self._covariances(layer, firsts(layer))
            torch.set_num_threads(1)  # thousands of short steps: waiting for each other costs more than it brings
            nest(layer, covariances)
            torch.set_num_threads(self._threads)
            self._states = [self._forward(layer, state) for state in self._states]
        self._kept[self._next] = None  # its memory goes
        self._next += 1

    def outputs(self) -> Any:
        """The inverse factor (`quantize.gptq`) of the covariance of the head's inputs, after the last layer."""
        import torch

        with torch.inference_mode():
            size = self._states[0].shape[-1]
            total = torch.zeros(size, size)
            for state in self._states:
                rows = self._body.norm(state)[0]
                total.addmm_(rows.T, rows)
            torch.set_num_threads(1)
            return inverse_factor(total)

    def _forward(self, layer: Any, state: Any) -> Any:
        made = layer(state, **self._others[self._next])
        return made[0] if isinstance(made, tuple) else made

    def _covariances(self, layer: Any, modules: Mapping[str, Any]) -> dict[str, Any]:
        """Sums of x xᵀ over every input of each module."""
        import torch

        sums = {name: torch.zeros(module.in_features, module.in_features) for name, module in modules.items()}

        def add(name: str, given: Any) -> None:
            rows = given.flatten(0, -2)
            sums[name].addmm_(rows.T, rows)

        hooks = [
            module.register_forward_pre_hook(lambda _, given, name=name: add(name, given[0]))
            for name, module in modules.items()
        ]
        for state in self._states:
            self._forward(layer, state)
        for hook in hooks:
            hook.remove()
        return sums


def _load(source: SourceModel) -> Any:
    """The decoder without its head, in the folder's own precision."""
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()  # whoever calls shows the progress
    logging.set_verbosity_error()  # that there is no head is meant
    try:
        return AutoModel.from_pretrained(source.path, dtype="auto", local_files_only=True).eval()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise QuantizeError(
            f"{source.path} cannot be loaded to compensate its rounding errors ({error}); "
            "--method rtn builds without loading it"
        ) from error


def _listen(body: Any, tokens: Sequence[Sequence[int]]) -> tuple[list[Any], list[dict[str, Any]]]:
    """The first layer's states for every piece of text, and what each layer is called with besides.

    Leaves `body` without layers, and what is left of it in float32.
    """
    import torch

    class Listener(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
        def __init__(self, replaced: Any) -> None:
            super().__init__()
            self.attention_type = getattr(replaced, "attention_type", "full_attention")
            self.state: Any = None
            self.others: dict[str, Any] = {}

        def forward(self, state: Any, **others: Any) -> Any:
            self.state, self.others = state, others
            return state

    listeners = [Listener(layer) for layer in body.layers]
    body.layers = torch.nn.ModuleList(listeners)
    body.float()
    states = []
    for piece in tokens:
        body(input_ids=torch.tensor([piece]), use_cache=False)
        states.append(listeners[0].state)
    return states, [listener.others for listener in listeners]
