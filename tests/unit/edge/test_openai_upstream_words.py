"""What an OpenAI-compatible endpoint says beside its answer's text does no harm where it is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edge.http.provenance import headers
from edge.openai_upstream.events import EventReader
from edge.openai_upstream.words import words
from tests.fakes.openai_client import END, collect, connected, final_of
from tests.fakes.openai_endpoint import DONE, OpenAiEndpoint, Raw, chunk, event, fault
from wire.errors import Unavailable, WeirError
from wire.messages import Committed, Final, Reason, Tier, Usage

SPOILT = "v\ud800\u20ac\r\nx-evil: 1\x1b[2J\x00\u202e"


def shown(text: str, most: int = 512) -> bool:
    return text.isprintable() and len(text.encode()) <= 4 * most and len(text) <= most


@pytest.mark.parametrize("told", [None, 3, [], {}, b"a"])
def test_what_is_no_string_says_nothing(told: Any) -> None:
    assert words(told) == ""


def test_what_prints_is_left_as_it_is() -> None:
    for told in ("", "v1.2+ab", "Größe 日本 €", "x" * 512):
        assert words(told) == told


def test_what_does_not_print_is_replaced_and_what_is_long_is_cut() -> None:
    assert words("a\ud800b\x1b\x00\u202ec\u2066\u200f") == "a\ufffdb\ufffd\ufffd\ufffdc\ufffd\ufffd"
    assert words("a\r\nb\u2028c") == "a  b c"
    assert words("x" * 600) == "x" * 511 + "…"


async def test_every_word_of_a_node_above_can_be_passed_on() -> None:
    told = {
        "release": SPOILT + "v" * 200_000,
        "node": SPOILT * 1000,
        "weight_digest": SPOILT,
        "weight_format": SPOILT,
        "timings_ms": {
            SPOILT: 1.0,
            **{str(n) + "k" * 50_000: n for n in range(9)},
            **dict.fromkeys(map(str, range(200)), 1),
        },
    }
    ended = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "weir": told}
    endpoint = OpenAiEndpoint(next=[Raw(200, (chunk("a"), event(ended), DONE))])
    async with connected(endpoint) as (client, _):
        final = final_of(await collect(client))
    assert all(shown(text) for text in (final.release, final.node, final.weight_digest, final.weight_format))
    assert final.release.startswith("v\ufffd€")
    assert len(final.timings_ms) <= 64
    assert all(shown(name, 128) for name in final.timings_ms)
    assert headers([final])["x-weir-release"].startswith("v??  x-evil: 1?[2J??v")


async def test_the_release_of_a_header_is_made_plain() -> None:
    raw = Raw(200, (chunk("a"), END, DONE), headers={"x-weir-release": "v\u202e" + "w" * 600})
    async with connected(OpenAiEndpoint(next=[raw])) as (client, _):
        committed = (await collect(client))[0]
    assert isinstance(committed, Committed)
    assert shown(committed.release)


@pytest.mark.parametrize("status", [400, 401, 429, 503])
async def test_the_words_of_a_fault_can_be_shown(status: int) -> None:
    async with connected(OpenAiEndpoint(next=[fault(status, f"no {SPOILT} " + "y" * 5000)] * 2)) as (client, _):
        with pytest.raises(WeirError) as refused:
            await collect(client)
    assert shown(refused.value.message, 300)
    assert json.dumps(refused.value.message, ensure_ascii=False).encode()


def test_headers_are_printable_ascii_and_short_whoever_told_the_release() -> None:
    finals = [Final("stop", Usage(1, 1), Tier.CLOUD, release=f"{n}é\r\nx: y" + "v" * 900) for n in range(100)]
    value = headers([*finals, Committed(Tier.CLOUD, Reason.CLOUD_ONLY, "r", "\x00")])["x-weir-release"]
    assert value.isascii()
    assert value.isprintable()
    assert value.startswith("0???x: yv")
    assert len(value) <= 2048


def test_lines_without_data_do_not_pass_the_most_of_an_event() -> None:
    reader = EventReader(max_event=1000)
    with pytest.raises(Unavailable, match="more than 1000 bytes"):
        list(reader.feed(b"data:\n" * 1001))
