"""A tiny Qwen2 as a GGUF file, made from a Hugging Face folder of tests.models."""

from __future__ import annotations

import json
from pathlib import Path

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def write_qwen2_gguf(source: Path, target: Path) -> Path:
    """`source` is a folder of tests.models.tiny_qwen2_folder; weights are kept at 32 bits."""
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(target, "qwen2")
    writer.add_license("apache-2.0")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    _add_tokenizer(writer, source)
    for name, tensor in load_file(source / "model.safetensors").items():
        writer.add_tensor(_name(name), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add_tokenizer(writer: object, source: Path) -> None:
    import gguf

    assert isinstance(writer, gguf.GGUFWriter)
    document = json.loads((source / "tokenizer.json").read_text())
    vocabulary = document["model"]["vocab"]
    special = {item["content"] for item in document["added_tokens"] if item["special"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in document["model"]["merges"]]
    )
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template((source / "chat_template.jinja").read_text())


def _name(name: str) -> str:
    for theirs, ours in _NAMES.items():
        name = name.replace(theirs, ours)
    return name
