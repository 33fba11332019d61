"""An encoder in float32, by transformers: the features a head is fitted on, and what a release is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quantize.errors import QuantizeError
from release.planes import Floats
from runtime.ort.classify import batches


class FloatEncoder:
    """The encoder in `folder`; torch's threads are bounded to `threads` for the whole process."""

    def __init__(self, folder: Path, threads: int, layers: int | None = None) -> None:
        """`layers`: the first so many alone."""
        import torch
        from transformers import AutoModel
        from transformers.utils import logging

        logging.disable_progress_bar()  # whoever calls shows the progress
        torch.set_num_threads(threads)
        try:
            self.model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise QuantizeError(f"{folder} cannot be loaded in float32 to fit a classifier on it: {error}") from error

        if layers is not None:
            self.model.encoder.layer = self.model.encoder.layer[:layers]

    def features(self, rows: Sequence[Sequence[int]], told: Callable[[int], None] | None = None) -> Floats:
        """float32 [N, H]: the mean over the tokens of each row of ids. `told` hears of rows done."""
        import torch

        found: Floats = np.empty((len(rows), self.model.config.hidden_size), np.float32)
        with torch.inference_mode():
            for batch in batches([len(row) for row in rows]):
                tokens, mask = padded([rows[index] for index in batch])
                states = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state
                weights = mask[..., None].float()
                found[batch] = ((states * weights).sum(1) / weights.sum(1).clamp(min=1)).numpy()
                if told is not None:
                    told(len(batch))
        return found


def padded(rows: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    """Token ids and mask, int64 [B, S], padded on the right."""
    import torch

    width = max(len(row) for row in rows)
    tokens, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        tokens[index, : len(row)], mask[index, : len(row)] = torch.tensor(list(row)), 1
    return tokens, mask
