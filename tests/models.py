"""Small real models for tests: random weights, a trained byte-level tokenizer, a chat template.

Everything is made here from a seed, so that tests need no network. The folders have the shape of any
Hugging Face folder: config.json, model.safetensors, tokenizer.json, tokenizer_config.json,
chat_template.jinja. Their answers mean nothing; shapes, streams and arithmetic are real.
"""

from __future__ import annotations

import json
from pathlib import Path

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


def _write(folder: Path, kind: type, config: object, seed: int) -> Path:
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
        model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder
