"""HTTP to one endpoint: connections, a request's bytes and times, and bodies within bounds.

Whatever goes wrong on the way is a WeirError: DeadlineExceeded once the request's time is over, Unavailable
before. The key goes to the endpoint that was configured and nowhere else: redirects are not followed, and a proxy
of the environment is used for https alone, where it sees but the host.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from edge.openai_upstream.settings import OpenAiSettings
from edge.openai_upstream.words import words
from wire.deadline import PASSED
from wire.errors import DeadlineExceeded, Unavailable, WeirError
from wire.service import Call, Exchange, ExchangeObserver

_LAST_WORDS_S = 2.0  # after the end was said: for the usage, and for [DONE]
# After [DONE]: for the end of the body. Closing before it closes the connection, which would be of use again.
_BODY_END_S, _MOST_AFTER_DONE = 0.1, 64 << 10
# Shorter than servers keep an idle connection (5 s and more), or a request meets one that is just being closed.
_KEEP_IDLE_S = 4.0
# What httpx lets through of addresses and proxies (in the environment) that nothing can connect to.
_UNUSABLE = (ValueError, ImportError, OverflowError, ExceptionGroup)


@dataclass(frozen=True, slots=True)
class Asked:
    """One HTTP request. `document` becomes its JSON body."""

    method: str
    path: str
    document: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Meter:
    """One call's bytes and times, for the network estimate. Connecting does not count, which few requests need.

    The time from a request's head to its answer's, which waits for no model where /models is asked for, is the
    link's round trip.
    """

    def __init__(self, method: str, observer: ExchangeObserver | None) -> None:
        self._method, self._observer = method, observer
        self._began = time.monotonic()
        self._first: float | None = None
        self._sent = self._received = 0

    def sent(self, count: int) -> None:
        self._sent += count

    def received(self, data: bytes) -> None:
        self._received += len(data)
        self.answered()

    def answered(self) -> None:
        if self._first is None:
            self._first = (time.monotonic() - self._began) * 1e3

    async def traced(self, event: str, _info: Any) -> None:
        """httpcore's account of what it does."""
        if event == "http11.send_request_headers.started":
            self._began, self._first = time.monotonic(), None
        elif event == "http11.receive_response_headers.complete":
            self.answered()

    def finish(self, code: str) -> None:
        if self._observer is not None:
            total = (time.monotonic() - self._began) * 1e3
            self._observer.on_exchange(Exchange(self._method, self._sent, self._received, self._first, total, code))


class Connection:
    """Connections to the endpoint, made on first use."""

    def __init__(self, settings: OpenAiSettings) -> None:
        self._settings = settings
        self._base = settings.url.rstrip("/")
        self.host = httpx.URL(self._base).netloc.decode()
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @asynccontextmanager
    async def asking(self, asked: Asked, call: Call, meter: Meter) -> AsyncIterator[httpx.Response]:
        """A response whose body is not read yet. Whatever goes wrong with the connection is a WeirError."""
        left = call.deadline.remaining_s()
        if left <= 0:
            raise DeadlineExceeded(PASSED)
        try:
            request = self._http().build_request(
                asked.method,
                self._base + asked.path,
                json=asked.document,
                headers=asked.headers,
                timeout=httpx.Timeout(left, connect=min(self._settings.connect_s, left)),
                extensions={"trace": meter.traced},
            )
            meter.sent(0 if asked.document is None else len(request.content))
            # httpx bounds each wait; together they are bounded here.
            async with asyncio.timeout(left):
                response = await self._http().send(request, stream=True)
        except (httpx.TimeoutException, TimeoutError) as error:
            raise _late(call, self.host) from error
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError, *_UNUSABLE) as error:
            raise Unavailable(f"the upstream {self.host} cannot be reached: {_words(error)}") from error
        try:
            yield response
        finally:
            await response.aclose()

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            settings = self._settings
            verify: ssl.SSLContext | bool = True
            if settings.ca_file is not None or settings.certificate_file is not None:
                verify = ssl.create_default_context(cafile=None if settings.ca_file is None else str(settings.ca_file))
                if settings.certificate_file is not None:
                    verify.load_cert_chain(settings.certificate_file, settings.key_file)
            key = {"authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
            self._client = httpx.AsyncClient(
                headers={"accept-encoding": "identity", "user-agent": "weir", **key},
                follow_redirects=False,  # the key must not go elsewhere
                trust_env=self._base.startswith("https:"),  # a proxy would read plain HTTP, the key with it
                verify=verify,
                limits=httpx.Limits(max_connections=256, max_keepalive_connections=16, keepalive_expiry=_KEEP_IDLE_S),
            )
        return self._client


async def blocks(
    response: httpx.Response, ended: Callable[[], bool], done: Callable[[], bool], call: Call, meter: Meter
) -> AsyncGenerator[bytes, None]:
    """The body as it comes, and an empty block for its end.

    Once the answer has `ended`, not for much longer; once it is `done` as well, nothing more of it is given.
    """
    _demand_plain(response)
    parts = response.aiter_raw()
    try:
        last_words_at = None
        while True:
            left = call.deadline.remaining_s()
            if ended():
                last_words_at = last_words_at or time.monotonic() + _LAST_WORDS_S
                left = min(left, last_words_at - time.monotonic())
            try:
                async with asyncio.timeout(max(left, 0.0)):
                    block = await anext(parts)
            except StopAsyncIteration:
                break
            except (TimeoutError, httpx.TimeoutException) as error:
                if ended():
                    break
                raise DeadlineExceeded(PASSED) from error
            except (httpx.HTTPError, httpx.StreamError) as error:
                if ended():
                    break
                raise Unavailable(f"the upstream broke off: {_words(error)}") from error
            if block:
                meter.received(block)
                yield block
                if done():
                    await _to_the_end(parts, call)
                    return
        yield b""
    finally:
        await response.aclose()


async def _to_the_end(parts: AsyncIterator[bytes], call: Call) -> None:
    """Reads what is left of a body that says no more, which leaves its connection to the next request."""
    left = min(call.deadline.remaining_s(), _BODY_END_S)
    size = 0
    with suppress(TimeoutError, httpx.HTTPError, httpx.StreamError):
        async with asyncio.timeout(max(left, 0.0)):
            async for part in parts:
                size += len(part)
                if size > _MOST_AFTER_DONE:
                    return


async def read_all(response: httpx.Response, call: Call, meter: Meter, most: int) -> bytes:
    """A whole body of at most so many bytes. Raises Unavailable or DeadlineExceeded."""
    _demand_plain(response)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(max(call.deadline.remaining_s(), 0.0)):
            async for part in response.aiter_raw():
                meter.received(part)
                size += len(part)
                if size > most:
                    raise Unavailable(f"the upstream's answer has more than {most} bytes, which is the most")
                parts.append(part)
    except (TimeoutError, httpx.TimeoutException) as error:
        raise DeadlineExceeded(PASSED) from error
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise Unavailable(f"the upstream broke off: {_words(error)}") from error
    return b"".join(parts)


def _demand_plain(response: httpx.Response) -> None:
    """What is packed could unpack into anything."""
    encoding = response.headers.get("content-encoding", "identity").lower()
    if encoding not in ("", "identity"):
        raise Unavailable(f"the upstream's answer is {words(encoding, 40)}, which was not asked for")


def _late(call: Call, host: str) -> WeirError:
    """A wait that ended: the request's time, or that for connecting."""
    if call.deadline.expired:
        return DeadlineExceeded(PASSED)
    return Unavailable(f"the upstream {host} does not answer")


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error!s:.120}" if str(error) else type(error).__name__
