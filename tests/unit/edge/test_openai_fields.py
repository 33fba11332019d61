"""OpenAI's fields, each to where it belongs in Weir's request, and each refused by name where it has none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edge.engine.words import choices_of
from edge.http import chat, completion_schema, completions, errors, schema
from edge.http.asking import Headers
from edge.http.choices import copies, total
from edge.http.fields import LABELS, FieldRefused
from wire.errors import InvalidRequest, NotSupported, WeirError
from wire.messages import GenerateRequest, ResponseFormat, Sampling, Tool, ToolCall, Usage
from wire.validate import RequestLimits, check_request

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TEXT: dict[str, Any] = {"model": "m", "prompt": "Once"}


def asked(**fields: Any) -> GenerateRequest:
    return chat.to_request(schema.parse({**BODY, **fields}), Headers(), "id", "prefix:8")


def refused(document: Any, parse: Any = schema.parse) -> FieldRefused:
    with pytest.raises(FieldRefused) as caught:
        parse(document)
    return caught.value


def test_every_sampling_field_arrives() -> None:
    request = asked(
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=3,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias={"12": -100, "7": 1.5},
        stop=["a", "b"],
        logprobs=True,
        top_logprobs=5,
    )
    assert request.sampling == Sampling(7, 0.5, 0.9, 40, 3, 0.1, 0.5, -0.5, 1.1, {12: -100, 7: 1.5})
    assert (request.stop, request.return_logprobs, request.top_logprobs) == (("a", "b"), True, 5)


def test_what_was_not_given_stays_the_models_own() -> None:
    request = asked()
    assert request.sampling == Sampling()
    assert (request.tools, request.tool_choice, request.response_format) == ((), "", None)


def test_forms_arrive() -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"type": "object"}}}
    told = ResponseFormat("json_schema", '{"type": "object"}', name="x", strict=True)
    assert asked(response_format=form).response_format == told
    form["json_schema"] = {"name": "y", "description": "d", "strict": None, "schema": {"type": "object"}}
    told = ResponseFormat("json_schema", '{"type": "object"}', name="y", description="d")
    assert asked(response_format=form).response_format == told
    assert asked(response_format={"type": "json_object"}).response_format == ResponseFormat("json_object")
    assert asked(response_format={"type": "text"}).response_format is None
    choice = {"type": "choice", "choices": ["yes", "no"]}
    assert asked(response_format=choice).response_format == ResponseFormat("choice", choices=("yes", "no"))


def test_tools_and_their_turns_arrive() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "ok"}]},
    ]
    request = asked(messages=messages, tools=[TOOL])
    assert request.tools == (Tool("f", "", '{"type": "object"}'),)
    assert request.tool_choice == "auto"
    assert request.messages[1].tool_calls == (ToolCall("c1", "f", "{}"),)
    assert (request.messages[2].tool_call_id, request.messages[2].content) == ("c1", "ok")
    named = asked(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}})
    assert named.tool_choice == "function:f"
    assert asked(tools=[TOOL], tool_choice="required", parallel_tool_calls=False).tool_choice == "required"


@pytest.mark.parametrize("name", sorted(LABELS))
def test_labels_are_accepted_as_text(name: str) -> None:
    assert asked(**{name: "x"}) == asked(**{name: None}) == asked()
    for value in ({"nested": [1]}, 7, "x" * 513):
        for error in (refused({**BODY, name: value}), refused({**TEXT, name: value}, completion_schema.parse)):
            assert (error.param, error.code) == (name, "invalid_value")


@pytest.mark.parametrize("service_tier", ["auto", "default"])
def test_services_that_are_not_asked_for_are_accepted(service_tier: str) -> None:
    off = {"store": False, "metadata": {}, "service_tier": service_tier, "prompt_cache_retention": "in_memory"}
    assert asked(**off) == asked()
    assert completion_schema.parse({**TEXT, **off}) == completion_schema.parse(TEXT)


def test_services_that_are_asked_for_are_refused_by_name() -> None:
    for name, value in (
        ("store", True),
        ("store", 0),
        ("metadata", {"a": "b"}),
        ("service_tier", "priority"),
        ("service_tier", "flex"),
        ("prompt_cache_retention", "24h"),
    ):
        for error in (refused({**BODY, name: value}), refused({**TEXT, name: value}, completion_schema.parse)):
            assert (error.param, error.code) == (name, "unsupported_parameter")


OFF = {"n": 1, "logprobs": False, "tools": [], "tool_choice": "none", "parallel_tool_calls": True, "functions": []}


def test_fields_at_their_off_value_are_accepted() -> None:
    assert asked(**OFF, logit_bias={}, presence_penalty=None, modalities=["text"], audio=None) == asked()


REFUSED: list[tuple[dict[str, Any], str, str | None]] = [
    ({"best_of": 2}, "best_of", "unsupported_parameter"),
    ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_parameter"),
    ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
    ({"prediction": {"type": "content"}}, "prediction", "unsupported_parameter"),
    ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
    ({"modalities": ["audio"]}, "modalities", "unsupported_parameter"),
    ({"stream_options": {"include_usage": True}}, "stream_options", None),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
        "invalid_value",
    ),
    ({"n": 9}, "n", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"top_logprobs": 5}, "top_logprobs", None),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"logit_bias": {"word": 1}}, "logit_bias", None),
    ({"tools": [TOOL], "parallel_tool_calls": True}, "parallel_tool_calls", "unsupported_parameter"),
    ({"tools": [{"type": "custom"}]}, "tools[0].type", "invalid_value"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "code": "x"}}]},
        "tools[0].function.code",
        "unsupported_parameter",
    ),
    ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice", "invalid_value"),
    ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", None),
    ({"response_format": {"type": "grammar"}}, "response_format.type", "invalid_value"),
    ({"response_format": {"type": "text", "choices": ["a"]}}, "response_format.choices", None),
    ({"response_format": {"type": "choice", "choices": ["a", "b"]}, "n": 2}, "n", "unsupported_parameter"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", None),
    ({"messages": [{"role": "user"}]}, "messages[0].content", None),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
        "unsupported_value",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": ["a"]}]}]},
        "messages[0].content[1].type",
        "unsupported_value",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
        "missing_required_parameter",
    ),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content", "invalid_value"),
    ({"messages": [{"role": "user", "content": {"type": "text"}}]}, "messages[0].content", "invalid_value"),
    ({"stop": ["a", 1]}, "stop[1]", "invalid_value"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", "unsupported_value"),
    ({"tools": [TOOL], "tool_choice": ["auto"]}, "tool_choice", "invalid_value"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function"}},
        "tool_choice.function",
        "missing_required_parameter",
    ),
    ({"messages": [{"role": "user", "content": "x", "audio": {}}]}, "messages[0].audio", "unsupported_parameter"),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED)
def test_everything_else_is_refused_by_name(fields: dict[str, Any], param: str, code: str | None) -> None:
    if "logit_bias" in fields:
        with pytest.raises(FieldRefused) as caught:
            asked(**fields)
        error = caught.value
    else:
        error = refused({**BODY, **fields})
    assert (error.param, error.code) == (param, code)
    assert param.split(".", maxsplit=1)[0].split("[", maxsplit=1)[0] in error.message
    document = errors.body(error)["error"]
    assert (document["param"], document["code"], document["type"]) == (param, code, "invalid_request_error")


CHOICE = {"response_format": {"type": "choice", "choices": ["yes", "no"]}}
RESHAPING: list[dict[str, Any]] = [
    {"stop": "e"},
    {"stop": ["e", "o"]},
    {"logit_bias": {"5": -100}},
    {"presence_penalty": 0.5},
    {"frequency_penalty": -0.5},
    {"repetition_penalty": 1.2},
    {"logprobs": True, "top_logprobs": 2},
]


@pytest.mark.parametrize("fields", RESHAPING)
def test_what_a_choice_cannot_keep_to_is_refused_by_name(fields: dict[str, Any]) -> None:
    [name] = fields.keys() - {"logprobs"}
    with pytest.raises(InvalidRequest, match=f"^{name} does not go with response_format choice") as caught:
        choices_of(asked(**CHOICE, **fields))
    document = errors.body(caught.value)["error"]
    assert (errors.status(caught.value), document["param"]) == (400, name)


def test_what_changes_nothing_of_a_choice_is_taken() -> None:
    chance = {"temperature": 1.0, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 5, "max_tokens": 9}
    off = {"stop": [], "logit_bias": {}, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    assert choices_of(asked(**CHOICE, **chance, **off, n=1, logprobs=True)) == ("yes", "no")
    assert choices_of(asked(stop="e")) is None


def test_a_completion_arrives_prompt_by_prompt() -> None:
    body = completion_schema.parse({**TEXT, "prompt": ["a", "b"], "n": 2, "seed": 5, "logprobs": 3, "best_of": 1})
    requests = completions.to_requests(body, Headers("", "key"), "id", "end")
    assert [(one.prompt, one.sampling.seed) for one in requests] == [("a", 5), ("a", 6), ("b", 5), ("b", 6)]
    assert len({one.idempotency_key for one in requests}) == len({one.request_id for one in requests}) == 4
    assert all(one.return_logprobs and one.top_logprobs == 3 and not one.messages for one in requests)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": [[1, 2]]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"prompt": ["a"] * 4, "n": 5}, "n"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"logprobs": True}, "logprobs"),
        ({"tools": [TOOL]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_a_completion_may_not_say_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused({**TEXT, **fields}, completion_schema.parse).param == param


def test_copies_differ_in_seed_and_keys_alone() -> None:
    request = GenerateRequest(prompt="x", sampling=Sampling(seed=(1 << 64) - 1), idempotency_key="k", request_id="r")
    one, two, _ = copies(request, 3)
    assert one == request
    assert (two.sampling.seed, two.idempotency_key, two.request_id) == (0, "k#1", "r-1")
    assert copies(GenerateRequest(prompt="x"), 2)[1].sampling.seed is None


def test_a_prompt_counts_once_however_many_answers() -> None:
    usages = [Usage(10, 1, 4), Usage(10, 2, 4), Usage(20, 3), Usage(20, 4)]
    assert total(usages, 2) == Usage(30, 10, 4)


@pytest.mark.parametrize(
    ("error", "param", "code"),
    [
        (InvalidRequest("temperature is 9; it must lie between 0 and 2"), "temperature", None),
        (InvalidRequest("messages[3].role is 'x'; use one of …"), "messages[3].role", None),
        (InvalidRequest("somebody is wrong"), None, None),
        (NotSupported("this engine does not serve tools"), None, "not_supported"),
    ],
)
def test_faults_found_elsewhere_name_their_field(error: WeirError, param: str | None, code: str | None) -> None:
    document = errors.body(error)["error"]
    assert (document["param"], document["code"]) == (param, code)


HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    (
        "a thousand tools",
        {"tools": [{"type": "function", "function": {"name": f"f{n}"}} for n in range(1000)]},
        "1000 tools",
    ),
    (
        "a megabyte of schema",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"title": "x" * (1 << 20)}}}},
        "65536",
    ),
    ("tools of one name", {"tools": [TOOL, TOOL]}, "same name"),
    ("an odd name", {"tools": [{"type": "function", "function": {"name": "a b\n"}}]}, "named"),
    (
        "a tool that is not there",
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "'g'",
    ),
    ("no tools to demand", {"tool_choice": "required"}, "there are no tools"),
    ("a bias out of range", {"logit_bias": {"1": 101}}, "logit_bias"),
    ("a thousand biases", {"logit_bias": {str(n): 1 for n in range(2000)}}, "logit_bias"),
]


@pytest.mark.parametrize(("name", "fields", "words"), HOSTILE)
def test_hostile_bodies_are_refused_with_a_reason(name: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(WeirError, match=words):
        check_request(asked(**fields), RequestLimits())
    assert json.dumps(fields)
