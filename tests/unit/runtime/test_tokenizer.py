"""The tokenizer: chat templates in a sandbox, end tokens, faults that say what is wrong."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from runtime.tokenizer import TemplateError, Tokenizer, TokenizerError, TooManyTokens

CHAT = (
    "{%- for m in messages %}\n    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def byte_tokenizer() -> bytes:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    return str(tokenizer.to_str()).encode()


def folder(tmp_path: Path, template: str | None = CHAT, **config: object) -> Path:
    (tmp_path / "tokenizer.json").write_bytes(byte_tokenizer())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", **config}))
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    return tmp_path


def test_a_conversation_ends_where_the_answer_begins(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder(tmp_path))
    text = tokenizer.render([("system", "Be brief."), ("user", "Grüß dich 😀")])
    assert text.endswith("<|im_start|>user\nGrüß dich 😀<|im_end|>\n<|im_start|>assistant\n")
    assert "Grüß dich 😀" in tokenizer.decode(tokenizer.encode_chat([("user", "Grüß dich 😀")]))


def test_end_tokens_are_the_named_the_usual_and_the_given(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder(tmp_path, eos_token={"content": "<|im_end|>"}), stop_ids=[7])
    assert tokenizer.stop_ids == {7, 257, 258}


def test_the_template_may_live_in_the_configuration(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder(tmp_path, template=None, chat_template="{{ messages[0].content }}"))
    assert tokenizer.render([("user", "hello")]) == "hello"


def test_a_template_cannot_leave_its_sandbox(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder(tmp_path, "{{ messages.__class__.__mro__[1].__subclasses__() }}"))
    with pytest.raises(TemplateError, match="refuses"):
        tokenizer.render([("user", "hello")])


def test_a_template_that_refuses_says_why(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder(tmp_path, "{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(TemplateError, match="roles must alternate"):
        tokenizer.render([("user", "hello")])


def test_without_a_template_only_prompts_are_served(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder(tmp_path, template=None))
    assert not tokenizer.has_chat_template
    with pytest.raises(TemplateError, match="no chat template"):
        tokenizer.encode_chat([("user", "hello")])


@pytest.mark.parametrize(("name", "content"), [("tokenizer.json", "{}"), ("tokenizer_config.json", "{")])
def test_a_broken_folder_names_the_file(tmp_path: Path, name: str, content: str) -> None:
    (folder(tmp_path) / name).write_text(content)
    with pytest.raises(TokenizerError, match=name):
        Tokenizer.load(tmp_path)


def test_a_template_that_does_not_compile_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="does not compile"):
        Tokenizer.load(folder(tmp_path, "{% if %}"))


def test_equal_files_have_equal_digests(tmp_path: Path) -> None:
    assert Tokenizer.load(folder(tmp_path)).digest == Tokenizer.load(tmp_path).digest


def test_too_many_tokens_are_counted(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder(tmp_path))
    assert len(tokenizer.encode("ten tokens", most=10)) == 10
    with pytest.raises(TooManyTokens, match="11 tokens, more than 10") as caught:
        tokenizer.encode("ten tokens!", most=10)
    assert caught.value.count == 11


def test_a_long_text_does_not_stop_other_threads(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder(tmp_path))
    gaps, done = [0.0], threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not done.is_set():
            time.sleep(0.001)
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    ticker = threading.Thread(target=tick)
    ticker.start()
    began = time.monotonic()
    with pytest.raises(TooManyTokens):
        tokenizer.encode("water over the weir " * 50_000, most=2048)
    took = time.monotonic() - began
    done.set()
    ticker.join()
    assert max(gaps) < max(took / 3, 0.05)
