"""Tools in chat templates: handed over where the template knows them, told in plain text where it does not."""

from __future__ import annotations

import json

import pytest

from runtime.chat import ToolSpec, Turn
from runtime.tokenizer import TemplateError, Tokenizer
from runtime.tool_calls import TAGGED, Call
from tests.unit.runtime.test_tokenizer import CHAT, byte_tokenizer

WEATHER = ToolSpec("weather", "Tells the weather.", json.dumps({"type": "object", "properties": {"city": {}}}))
KNOWS = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}|{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{% set f = c.function %}<{{ f.name }} {{ f.arguments | tojson }} {{ c.id }}>"
    "{% endfor %}"
    "{{ m.tool_call_id }}{% endfor %}"
)
TALK = (
    Turn("user", "Weather in Graz?"),
    Turn("assistant", "", (Call("weather", '{"city": "Graz"}', "abc"),)),
    Turn("tool", "sunny", call_id="abc"),
    Turn("tool", "warm"),
)


def of(template: str) -> Tokenizer:
    return Tokenizer(byte_tokenizer(), {"eos_token": "<|im_end|>"}, template)


def test_a_template_that_knows_tools_gets_them() -> None:
    text = of(KNOWS).render(TALK, [WEATHER])
    tool = json.loads(text.split("|")[0])
    assert tool["function"]["parameters"]["properties"] == {"city": {}}
    assert '|assistant:<weather {"city": "Graz"} abc>' in text
    assert text.endswith("|tool:sunnyabc|tool:warm")


def test_without_tools_such_a_template_is_told_of_none() -> None:
    assert of(KNOWS).render([("user", "hi")]) == "|user:hi"


def test_a_template_without_tools_is_told_in_plain_text() -> None:
    tokenizer = of(CHAT)
    assert tokenizer.call_form is TAGGED
    text = tokenizer.render([Turn("system", "Be brief."), *TALK], [WEATHER])
    system, user, assistant, tool, _ = text.split("<|im_start|>")[1:]
    assert system.startswith("system\nBe brief.\n\nYou can call these tools")
    assert '{"name": "weather", "description": "Tells the weather.", "parameters"' in system
    assert user == "user\nWeather in Graz?<|im_end|>\n"
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Graz"}}\n</tool_call>' in assistant
    assert tool.count("<tool_response>") == 2
    assert "tool\n" not in text.replace("<|im_start|>", "").split("\n")


def test_without_a_system_turn_one_is_put_before() -> None:
    assert of(CHAT).render([("user", "hi")], [WEATHER]).startswith("<|im_start|>system\nYou can call")


def test_a_template_that_refuses_system_turns_tells_the_user_turn() -> None:
    refuses = "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    strict = f"{{% for m in messages %}}{refuses}|{{{{ m.role }}}}:{{{{ m.content }}}}{{% endfor %}}"
    text = of(strict).render([("user", "hi")], [WEATHER])
    assert text.startswith("|user:You can call")
    assert text.endswith("\n\nhi")


@pytest.mark.parametrize("parameters", ["{", "[1]", "[" * 5000])
@pytest.mark.parametrize("template", [CHAT, KNOWS])
def test_parameters_that_are_no_schema_are_refused(parameters: str, template: str) -> None:
    with pytest.raises(TemplateError, match="parameters of tool 'weather'"):
        of(template).render([("user", "hi")], [ToolSpec("weather", "", parameters)])
