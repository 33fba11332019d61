"""The official client against a real node: forms, tools, log-probs, several answers, and what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from runtime.tokenizer import Tokenizer
from tests.integration.edge_process import EdgeProcess, calibrated_release, edge_process

SURE = 5.0
MESSAGES: list[Any] = [{"role": "user", "content": "Where is my parcel?"}]
# Whatever a random model likes, this ends soon.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["late", "lost"]}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind", "days"],
    "additionalProperties": False,
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "parcel", "strict": True, "schema": SCHEMA}}
CHOICE: Any = {"type": "choice", "choices": ["late", "lost", "in the city"]}
# The random model's tokens are little more than bytes, and its context holds 512.
SURENESS: dict[str, Any] = {"properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "track", "parameters": SURENESS}},
    {"type": "function", "function": {"name": "greet", "parameters": {"additionalProperties": False}}},
]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="module")
def node(tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeProcess]:
    folder = tmp_path_factory.mktemp("openai") / "release"
    calibrated_release(tiny_release, folder, "1.0.0", SURE)
    with edge_process(folder) as running:
        yield running


@pytest.fixture
def client(node: EdgeProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{node.http}/v1", api_key="unused", max_retries=0)


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=MESSAGES, **{"max_tokens": 24, **fields})


def token_id(release: Path, spelled: list[int]) -> int:
    """The one token of these bytes, which is all that OpenAI's log-probs tell of it."""
    tokenizer = Tokenizer.load(release)
    (found,) = (token for token in range(tokenizer.id_count) if tokenizer.token_bytes(token) == bytes(spelled))
    return found


def test_a_model_says_what_it_serves(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.model_extra is not None
    assert {"json_schema", "tools", "tool_turns", "top_logprobs"} <= set(model.model_extra["weir"]["capabilities"])


def test_seeds_repeat_and_stops_end(client: openai.OpenAI) -> None:
    one = ask(client, temperature=1.0, seed=11)
    assert ask(client, temperature=1.0, seed=11).choices[0].message.content == one.choices[0].message.content
    text = one.choices[0].message.content
    stop = text[len(text) // 2 :][:2]
    stopped = ask(client, temperature=1.0, seed=11, stop=[stop]).choices[0]
    assert stopped.message.content == text[: text.index(stop)]
    assert stopped.finish_reason == "stop"


def test_several_answers_are_those_of_their_seeds(client: openai.OpenAI) -> None:
    several = ask(client, temperature=1.0, seed=20, n=3)
    alone = [ask(client, temperature=1.0, seed=20 + n).choices[0].message.content for n in range(3)]
    assert [choice.message.content for choice in several.choices] == alone
    assert several.usage.completion_tokens <= 3 * 24
    texts = ["", "", ""]
    for chunk in ask(client, temperature=1.0, seed=20, n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == alone


def test_log_probs_name_every_token_and_its_alternatives(client: openai.OpenAI) -> None:
    answer = ask(client, logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert (
        b"".join(bytes(entry.bytes) for entry in entries).decode(errors="replace") == answer.choices[0].message.content
    )
    for entry in entries:
        tops = [other.logprob for other in entry.top_logprobs]
        assert len(tops) == 3
        assert tops == sorted(tops, reverse=True)
        assert entry.logprob == pytest.approx(tops[0])  # greedy
    text = client.completions.create(model="tiny", prompt="The answer", max_tokens=8, logprobs=2)
    logprobs = text.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    assert len(logprobs.tokens) == 8 == len(logprobs.text_offset)


def test_a_bias_and_penalties_change_the_answer(client: openai.OpenAI, tiny_release: Path) -> None:
    answer = ask(client, logprobs=True, top_logprobs=2).choices[0]
    plain, likeliest = answer.message.content, answer.logprobs.content[0]
    banned, second = (token_id(tiny_release, other.bytes) for other in likeliest.top_logprobs)
    assert bytes(likeliest.bytes) == bytes(likeliest.top_logprobs[0].bytes)
    biased = ask(client, logprobs=True, logit_bias={str(banned): -100}).choices[0].logprobs.content[0]
    assert token_id(tiny_release, biased.bytes) == second
    assert ask(client, frequency_penalty=2.0, presence_penalty=2.0).choices[0].message.content != plain
    assert ask(client, extra_body={"repetition_penalty": 5.0}).choices[0].message.content != plain
    assert ask(client, temperature=2.0, seed=1, extra_body={"min_p": 1.0}).choices[0].message.content == plain


@pytest.mark.parametrize("seed", range(4))
def test_a_form_is_kept_to(client: openai.OpenAI, seed: int) -> None:
    answer = ask(client, response_format=FORM, temperature=1.5, seed=seed, max_tokens=200)
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMA)
    streamed = ask(client, response_format=FORM, temperature=1.5, seed=seed, max_tokens=200, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == answer.choices[0].message.content


def test_a_choice_is_one_of_its_options_whatever_the_chance(client: openai.OpenAI) -> None:
    one = ask(client, response_format=CHOICE)
    assert one.choices[0].message.content in CHOICE["choices"]
    assert one.choices[0].finish_reason == "stop"
    other = ask(client, response_format=CHOICE, temperature=2.0, top_p=0.5, seed=9, max_tokens=200, logprobs=True)
    assert other.choices[0].message.content == one.choices[0].message.content
    spelled = b"".join(bytes(entry.bytes) for entry in other.choices[0].logprobs.content)
    assert spelled.decode() == one.choices[0].message.content
    streamed = ask(client, response_format=CHOICE, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == one.choices[0].message.content


def test_a_form_that_is_cut_says_so(client: openai.OpenAI) -> None:
    assert ask(client, response_format=FORM, max_tokens=2).choices[0].finish_reason == "length"
    assert ask(client, response_format={"type": "json_object"}, max_tokens=3).choices[0].message.content[0] == "{"


@pytest.mark.parametrize("choice", ["required", "named"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_demanded_call_is_made(client: openai.OpenAI, choice: str, stream: bool) -> None:
    named = {"type": "function", "function": {"name": "track"}}
    told = named if choice == "named" else choice
    answer = ask(client, tools=TOOLS, tool_choice=told, temperature=1.5, seed=3, max_tokens=90, stream=stream)
    if stream:
        chunks = list(answer)
        assert not any(chunk.choices[0].delta.content for chunk in chunks)
        (call,) = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        reason = chunks[-1].choices[0].finish_reason
    else:
        assert answer.choices[0].message.content is None
        (call,) = answer.choices[0].message.tool_calls
        reason = answer.choices[0].finish_reason
    assert reason == "tool_calls"
    assert call.function.name in ("track", "greet")
    if choice == "named":
        assert call.function.name == "track"
    if call.function.name == "track":
        jsonschema.validate(json.loads(call.function.arguments), SURENESS)


def test_tools_leave_other_answers_alone(client: openai.OpenAI) -> None:
    answer = ask(client, tools=TOOLS)  # a random model has no idea of calls
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content
    assert (
        ask(client, tools=TOOLS, tool_choice="none").choices[0].message.content
        == ask(client).choices[0].message.content
    )


def test_a_conversation_with_calls_goes_on(client: openai.OpenAI) -> None:
    called = ask(client, tools=TOOLS, tool_choice="required", max_tokens=90).choices[0].message
    turns = [*MESSAGES, called.model_dump(exclude_none=True)]
    turns.append({"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "It is in Graz."})
    answer = client.chat.completions.create(model="tiny", messages=turns, max_tokens=8)
    assert answer.choices[0].finish_reason in ("length", "stop")


def schema(document: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": document}}


def deep(levels: int) -> Any:
    document: Any = {}
    for _ in range(levels):
        document = {"properties": {"a": document}}
    return document


REFUSED: list[tuple[str, dict[str, Any], type[openai.APIStatusError], str]] = [
    ("unsupported keyword", {"response_format": schema({"not": {}})}, openai.BadRequestError, "not"),
    (
        "joined patterns",
        {
            "response_format": schema(
                {"allOf": [{"type": "string", "pattern": f".*{c}.*"} for c in "abcdefghijklmnopqrst"]}
            )
        },
        openai.BadRequestError,
        "patterns",
    ),
    (
        "huge multiple",
        {"response_format": schema({"type": "integer", "multipleOf": 999_983})},
        openai.BadRequestError,
        "multipleOf",
    ),
    ("itself", {"response_format": schema({"$ref": "#"})}, openai.BadRequestError, "cannot be answered by"),
    (
        "remote",
        {"response_format": schema({"$ref": "http://127.0.0.1:1/a"})},
        openai.BadRequestError,
        "cannot be answered by",
    ),
    ("too deep", {"response_format": schema(deep(40))}, openai.BadRequestError, "nested too deeply"),
    ("a megabyte", {"response_format": schema({"title": "x" * (1 << 20)})}, openai.APIStatusError, "65536"),
    (
        "a thousand tools",
        {"tools": [{"type": "function", "function": {"name": f"f{n}"}} for n in range(1000)]},
        openai.APIStatusError,
        "1000 tools",
    ),
    (
        "a broken tool",
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
        openai.BadRequestError,
        "must be of type object",
    ),
    ("a choice and a stop", {"response_format": CHOICE, "stop": "a"}, openai.BadRequestError, "stop does not go"),
    ("a biased choice", {"response_format": CHOICE, "logit_bias": {"5": 1}}, openai.BadRequestError, "logit_bias does"),
    (
        "a penalised choice",
        {"response_format": CHOICE, "presence_penalty": 1.0},
        openai.BadRequestError,
        "presence_penalty does",
    ),
    (
        "a choice in too few tokens",
        {"response_format": CHOICE, "max_tokens": 1},
        openai.BadRequestError,
        "longest option",
    ),
    ("choices twice", {"response_format": CHOICE, "n": 2}, openai.BadRequestError, "n is 2"),
    ("unknown field", {"extra_body": {"grammar": "x"}}, openai.BadRequestError, "grammar is not supported"),
    ("a bias on nothing", {"logit_bias": {"99999": 1}}, openai.BadRequestError, "logit_bias"),
    ("another model", {"model": "other"}, openai.NotFoundError, "other"),
]


@pytest.mark.parametrize(("name", "fields", "kind", "words"), REFUSED)
def test_what_cannot_be_is_refused_with_its_name(
    client: openai.OpenAI, name: str, fields: dict[str, Any], kind: type[openai.APIStatusError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, "max_tokens": 8, **fields})


def test_heavy_schemas_hold_nobody_up(client: openai.OpenAI) -> None:
    heavy = schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(400)}})
    undisturbed: list[str] = []

    def stream() -> None:
        chunks = ask(client, max_tokens=300, stream=True, temperature=1.0, seed=5)
        undisturbed.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks))

    alone = ask(client, max_tokens=300, temperature=1.0, seed=5).choices[0].message.content
    other = threading.Thread(target=stream)
    other.start()
    for seed in range(3):
        assert ask(client, response_format=heavy, max_tokens=20, temperature=1.0, seed=seed).choices[0].message.content
    other.join(60)
    assert undisturbed == [alone]


@pytest.mark.real_model
def test_a_real_model_answers_by_schema_and_calls_tools(smollm2_release: Path, tmp_path: Path) -> None:
    calibrated_release(smollm2_release, tmp_path / "release", "1.0.0", SURE)
    with edge_process(tmp_path / "release") as running:
        client = openai.OpenAI(base_url=f"{running.http}/v1", api_key="unused", max_retries=0)
        city = {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 40}, "nights": {"type": "integer"}},
            "required": ["city", "nights"],
            "additionalProperties": False,
        }
        name = "smollm2-135m-instruct"
        turns: list[Any] = [
            {"role": "user", "content": "As JSON: a hotel in Cambridge for 3 nights. Keys: city, nights."}
        ]
        answer = client.chat.completions.create(
            model=name, messages=turns, max_tokens=64, response_format=schema(city), logprobs=True
        )
        found = json.loads(answer.choices[0].message.content or "")
        jsonschema.validate(found, city)
        assert found["city"] == "Cambridge"
        assert answer.choices[0].logprobs is not None
        tools: list[Any] = [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "The weather in a city",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string", "maxLength": 40}},
                        "required": ["city"],
                        "additionalProperties": False,
                    },
                },
            }
        ]
        turns = [{"role": "user", "content": "What is the weather in Paris?"}]
        called = client.chat.completions.create(
            model=name, messages=turns, tools=tools, tool_choice="required", max_tokens=64
        )
        calls = called.choices[0].message.tool_calls
        assert calls is not None
        assert calls[0].type == "function"
        assert "Paris" in calls[0].function.arguments
