"""The same float model on other weights: its residual stream turned by a random orthogonal matrix.

A source that came from a 4-bit file lies on that file's grid, which flatters whoever rounds near it. With x
in the residual stream replaced by x·R, every product that reads the stream takes R along and every one that
writes it too, while the root-mean-square norms see no difference once their weights are folded into what
reads them. So the function stays and every weight leaves the grid. Head and embedding come apart: only the
head takes the last norm's weights.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.quality.errors import MeasurementError

if TYPE_CHECKING:
    from torch import Tensor

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_ALONGSIDE = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def rotate_model(source: Path, out: Path, *, seed: int) -> None:
    """Writes the rotated model of the folder `source` into `out`, in float32. Raises MeasurementError."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # whoever calls shows the progress
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, local_files_only=True).eval()
    if model.config.model_type not in FAMILIES:
        raise MeasurementError(f"{source}: no rotation is known for {model.config.model_type}, only {FAMILIES}")
    generator = torch.Generator().manual_seed(seed)
    size = model.config.hidden_size
    turn, _ = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    with torch.no_grad():
        _turn(model, turn)
    model.config.tie_word_embeddings = False
    model.save_pretrained(out)
    for name in _ALONGSIDE:
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)


def _turn(model: Any, turn: Tensor) -> None:
    import torch

    body, embedding = model.model, model.model.embed_tokens.weight.detach().clone()
    head = model.lm_head.weight.detach().clone()
    model.lm_head.weight = torch.nn.Parameter(_reading(head, body.norm, turn))
    body.embed_tokens.weight = torch.nn.Parameter((embedding.double() @ turn).float())
    body.norm.weight.fill_(1)
    for layer in body.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, readers in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            for reader in readers:
                reader.weight.copy_(_reading(reader.weight, norm, turn))
            norm.weight.fill_(1)
        for writer in (attention.o_proj, mlp.down_proj):
            writer.weight.copy_((turn.T @ writer.weight.double()).float())
            if writer.bias is not None:
                writer.bias.copy_((turn.T @ writer.bias.double()).float())


def _reading(weight: Tensor, norm: Any, turn: Tensor) -> Tensor:
    """A product that reads the normed stream [out, in], with the norm's weights and the turn folded in."""
    return ((weight.double() * norm.weight.double()) @ turn).float()
