"""A rank's chat template: messages it cannot take are the caller's error, however it fails on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud.rank.chat import Chat
from tests.models import write_tokenizer
from wire.errors import InvalidRequest
from wire.messages import GenerateRequest, Message

REQUEST = GenerateRequest(messages=(Message("user", "hi"),))


def chat(folder: Path, template: str | None = None) -> Chat:
    write_tokenizer(folder)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return Chat(folder)


def test_messages_become_tokens_and_tokens_text(tmp_path: Path) -> None:
    model = chat(tmp_path)
    assert "hi" in model.decode(model.encode(REQUEST))


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no such role') }}",
        "{{ messages[0].content + 1 }}",  # TypeError
        "{{ '%d' % 'a' }}",  # TypeError or ValueError
        "{{ 1 / 0 }}",
        "{{ messages[0]['content'].encode('nothing') }}",  # LookupError
        "{{ messages[7].content }}",
    ],
)
def test_whatever_a_template_fails_with_is_an_invalid_request(tmp_path: Path, template: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template refuses these messages"):
        chat(tmp_path, template).encode(REQUEST)


def test_messages_without_any_token_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="gives no token"):
        chat(tmp_path, "{{ '' }}").encode(REQUEST)
