"""Tools and forms in the engine: what a model is told of them, what holds its answer to them, its calls.

The grammar of a request is compiled in a thread of its own, one at a time: a schema that takes long
delays those who bring schemas, nobody else.

Must not know: batching, ONNX Runtime, transports.
"""

from __future__ import annotations

import asyncio
import secrets
import string
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from edge.engine.job import Token
from runtime.chat import ToolSpec, Turn
from runtime.constrain import ConstraintMaker, Unconstrainable
from runtime.grammars import GrammarError, NotASchema
from runtime.ort.sampling import Constraint
from runtime.tokenizer import Tokenizer
from runtime.tool_calls import Call, CallForm, CallSplitter
from wire.deadline import Deadline
from wire.errors import CannotConstrain, DeadlineExceeded, InvalidRequest
from wire.messages import Final, GenerateRequest, ToolCall

# Capabilities (wire.capabilities) of a model whose tokens can be held to a grammar, and of any with a chat template.
CONSTRAINED = ("json_schema", "tools")
TURNS = ("tool_turns",)

_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # the only length that Mistral's templates take back


def constraint_maker(tokenizer: Tokenizer, rows: int) -> ConstraintMaker | None:
    """None where the tokenizer's tokens cannot be held to a grammar. Takes most of a second the first time."""
    try:
        return ConstraintMaker(tokenizer, rows)
    except Unconstrainable:
        return None


def capabilities(tokenizer: Tokenizer, maker: ConstraintMaker | None) -> tuple[str, ...]:
    """What a model serves of tools and forms."""
    if maker is None:
        return TURNS if tokenizer.has_chat_template else ()
    return (*CONSTRAINED, *TURNS) if tokenizer.has_chat_template else CONSTRAINED[:1]


def turns(request: GenerateRequest) -> list[Turn]:
    """A request's messages as the chat template takes them."""
    return [
        Turn(
            message.role,
            message.content,
            tuple(Call(call.name, call.arguments, call.id) for call in message.tool_calls),
            message.tool_call_id,
            message.name,
        )
        for message in request.messages
    ]


def tools(request: GenerateRequest) -> list[ToolSpec]:
    """The tools a model is told of; none where it may not call any. Raises InvalidRequest."""
    if request.tool_choice == "none" or not request.tools:
        return []
    if not request.messages:
        raise InvalidRequest("tools go with messages: a raw prompt has no place to tell of them")
    return [ToolSpec(tool.name, tool.description, tool.parameters) for tool in request.tools]


class Grammars:
    """Makes the constraint of a request's answer, away from the event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "grammar")

    async def constraint(
        self, request: GenerateRequest, maker: ConstraintMaker | None, form: CallForm, deadline: Deadline
    ) -> Constraint | None:
        """What holds the answer to its form, if anything.

        Raises CannotConstrain for what another tier may be able to hold, InvalidRequest, DeadlineExceeded.
        """
        if not _wanted(request) or maker is None:
            return None
        work = asyncio.get_running_loop().run_in_executor(self._thread, _made, request, maker, form)
        try:
            async with asyncio.timeout(max(deadline.remaining_s(), 0.0)):
                return await work
        except TimeoutError as error:
            raise DeadlineExceeded("the deadline passed while the grammar of the answer was made") from error

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _wanted(request: GenerateRequest) -> bool:
    form = request.response_format
    return bool(tools(request)) or (form is not None and form.type in ("json_object", "json_schema"))


def _made(request: GenerateRequest, maker: ConstraintMaker, form: CallForm) -> Constraint | None:
    offered, wanted = tools(request), request.response_format
    try:
        if offered:
            if wanted is not None and wanted.type not in ("", "text"):
                raise InvalidRequest("response_format and tools are not served together; leave one out")
            return _held_to_tools(request, offered, maker, form)
        if wanted is None:
            return None
        return maker.json_object() if wanted.type == "json_object" else maker.json_schema(wanted.json_schema)
    except GrammarError as error:
        field = "tools" if offered else "response_format"
        kind = InvalidRequest if isinstance(error, NotASchema) else CannotConstrain
        raise kind(f"{field}: {error}") from error


def _held_to_tools(
    request: GenerateRequest, offered: list[ToolSpec], maker: ConstraintMaker, form: CallForm
) -> Constraint | None:
    how, _, name = request.tool_choice.partition(":")
    if how == "function":
        return maker.call([tool for tool in offered if tool.name == name], form)
    if how == "required":
        return maker.call(offered, form)
    if form.trigger:
        return maker.call_if_begun(offered, form)
    if strict := next((tool for tool in request.tools if tool.strict), None):
        raise CannotConstrain(
            f"tools: {strict.name} is strict, and with tool_choice auto nothing marks where a call of this model "
            "begins; set tool_choice to required or to a function, or leave strict out"
        )
    return None


class CallReader:
    """One answer's text on its way to the caller: calls of tools taken out, where any were offered."""

    def __init__(self, request: GenerateRequest) -> None:
        offered = tools(request)
        self._splitter = CallSplitter([tool.name for tool in offered]) if offered else None

    def seen(self, token: Token) -> Token:
        """A token, with what may be shown of its text now."""
        return token if self._splitter is None else replace(token, text=self._splitter.push(token.text))

    def finish(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """The last of the text, and the calls. The answer ended with `text`."""
        if self._splitter is None:
            return text, ()
        shown = self._splitter.push(text)
        rest, calls = self._splitter.finish()
        return shown + rest, tuple(ToolCall(_call_id(), call.name, call.arguments) for call in calls)

    @staticmethod
    def told(final: Final, calls: tuple[ToolCall, ...]) -> Final:
        """The Final of an answer with these calls."""
        return replace(final, finish_reason="tool_calls", tool_calls=calls) if calls else final


def _call_id() -> str:
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
