"""Small real models for tests: random weights, a trained byte-level tokenizer, a chat template.

Everything is made here from a seed, so that tests need no network. The folders have the shape of any
Hugging Face folder: config.json, model.safetensors, tokenizer.json, tokenizer_config.json,
chat_template.jinja. Their answers mean nothing; shapes, streams and arithmetic are real.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 384
CONTEXT = 512

_TEXT = (
    "A weir keeps the water back until it rises over the crest.",
    "Where is my parcel? It was sent on Monday and has not arrived.",
    "Please cancel the order and send the money back to my card.",
    "The answer is the city, the date and the number of nights.",
    "user assistant system question answer yes no 0 1 2 3 4 5 6 7 8 9",
)


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer of VOCABULARY entries with its chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT * 4, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def tiny_llama_folder(folder: Path, seed: int = 0, tied: bool = False) -> Path:
    """A random Llama: 2 layers, hidden 64, 4 heads, 2 KV heads; head and embedding apart unless `tied`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **_SHAPE, tie_word_embeddings=tied, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}
    )
    return _write(folder, LlamaForCausalLM, config, seed)


def tiny_qwen2_folder(folder: Path, seed: int = 1, tied: bool = True) -> Path:
    """A random Qwen2 with biases on q, k and v and, unless told otherwise, a tied embedding."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        **_SHAPE, tie_word_embeddings=tied, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}
    )
    return _write(folder, Qwen2ForCausalLM, config, seed)


def tiny_family_folder(folder: Path, family: str | tuple[str, Mapping[str, Any]], seed: int = 3) -> Path:
    """A random model of one of FAMILY_SETTINGS, or of other settings, its norms' weights random too."""
    import transformers

    kind, settings = FAMILY_SETTINGS[family] if isinstance(family, str) else family
    config_kind = {"Gemma3": "Gemma3TextConfig"}.get(kind, f"{kind}Config")
    config = getattr(transformers, config_kind)(**{**_SHAPE, **settings})
    return _write(folder, getattr(transformers, f"{kind}ForCausalLM"), config, seed, norms=True)


_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_LONG_ROPE = {
    **_ROPE,
    "rope_type": "longrope",
    "short_factor": [1 + 0.1 * step for step in range(8)],
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 64,
}
# Windows are shorter than the tests' prompts where layers have one, so that it shows if it is not kept.
FAMILY_SETTINGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True, "rope_parameters": _ROPE}),
    "mistral": ("Mistral", {"head_dim": 32, "sliding_window": 32, "rope_parameters": _ROPE}),
    "phi3": ("Phi3", {"sliding_window": 32, "rope_parameters": {**_ROPE, "partial_rotary_factor": 1.0}}),
    "phi3-long": (
        "Phi3",
        {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rope_parameters": {**_LONG_ROPE, "partial_rotary_factor": 0.5},
            "original_max_position_embeddings": 64,
        },
    ),
    "gemma": ("Gemma", {"head_dim": 32, "rope_parameters": _ROPE}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 24,
            "sliding_window": 8,
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 1.5,
            "rope_parameters": _ROPE,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 24,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": _ROPE,
                "full_attention": {**_ROPE, "rope_theta": 1000000.0},
            },
        },
    ),
}
_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _write(folder: Path, kind: type, config: object, seed: int, norms: bool = False) -> Path:
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config).to(torch.float32).eval()
        for name, parameter in model.named_parameters():
            # The default initialization is so small that every answer would be near uniform.
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.15)
            elif name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.3)
            elif norms:
                parameter.data += torch.randn(parameter.shape) * 0.2
        model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def tiny_encoder_folder(folder: Path, kind: str = "Bert", seed: int = 5) -> Path:
    """A random encoder, "Bert" or "Roberta"; its tokenizer file asks for padding and truncation, as real ones do."""
    import transformers

    settings = {**_SHAPE, "max_position_embeddings": 66, "type_vocab_size": 2, "pad_token_id": 1}
    del settings["num_key_value_heads"]
    config = getattr(transformers, f"{kind}Config")(**settings, hidden_act="gelu")
    _write(folder, getattr(transformers, f"{kind}Model"), config, seed, norms=True)
    document = json.loads((folder / "tokenizer.json").read_text())
    document["padding"] = {
        "strategy": {"Fixed": 48}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1, "pad_type_id": 0,
        "pad_token": SPECIAL[1],
    }  # fmt: skip
    document["truncation"] = {"direction": "Right", "max_length": 48, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


def tiny_onnx_classifier(
    folder: Path, labels: tuple[str, ...] = ("parcel", "refund", "room"), seed: int = 7, types: bool = False
) -> Path:
    """A ready-made classifier as an exporter might leave it: embedding, two products, a masked mean, a Gemm.

    With `types` it takes token_type_ids as well.
    """
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save_model

    random, hidden = np.random.default_rng(seed), 192
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    weights = {
        "words": random.normal(size=(VOCABULARY, hidden)),
        "onnx::MatMul_7": random.normal(size=(hidden, 96)) / 8,
        "onnx::MatMul_9": random.normal(size=(96, hidden)) / 8,
        "odd": random.normal(size=(hidden, 1)),
        "up.bias": random.normal(size=96),
        "head": random.normal(size=(len(labels), hidden)) / 8,
    }
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["embedded"], name="embed"),
        helper.make_node("MatMul", ["embedded", "onnx::MatMul_7"], ["up"], name="up"),
        helper.make_node("Add", ["up", "up.bias"], ["biased"], name="bias"),
        helper.make_node("Tanh", ["biased"], ["active"], name="tanh"),
        helper.make_node("MatMul", ["active", "onnx::MatMul_9"], ["down"], name="down"),
        helper.make_node("Add", ["down", "embedded"], ["state"], name="add"),
        helper.make_node("Cast", ["attention_mask"], ["mask"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"], name="unsqueeze"),
        helper.make_node("Mul", ["state", "column"], ["kept"], name="mul"),
        helper.make_node("ReduceSum", ["kept", "one"], ["pooled"], name="sum", keepdims=0),
        helper.make_node("Gemm", ["pooled", "head"], ["scores"], name="gemm", transB=1),
    ]
    inputs = ["input_ids", "attention_mask"]
    if types:
        inputs.append("token_type_ids")
        weights["kinds"] = random.normal(size=(2, hidden))
        nodes[0].output[0] = "word"
        nodes[1:1] = [
            helper.make_node("Gather", ["kinds", "token_type_ids"], ["kind"], name="kind"),
            helper.make_node("Add", ["word", "kind"], ["embedded"], name="both"),
        ]
    values = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    values += [numpy_helper.from_array(np.array([value]), name) for name, value in (("last", -1), ("one", 1))]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "classifier",
        [info(name, TensorProto.INT64, ["batch", "sequence"]) for name in inputs],
        [info("scores", TensorProto.FLOAT, ["batch", len(labels)])],
        values,
    )
    save_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx"
    )
    config = {"id2label": dict(enumerate(labels)), "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
