"""Client for requests with many prompts, each of which is delivered as soon as it is complete."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from .. import aio
from ..core.errors import BackendError, ErrorKind
from ..core.fast_dataclass import dataclass
from ..core.messages import Prompt, User
from ..core.requests import NO_USAGE, Request, RequestObserver, Sampling
from ..lazy_imports import lazy_modules
from .dialects.completions.decoder import (
    BatchStreamDecoder,
    PromptDelta,
    PromptEvent,
    PromptFinished,
    decode_batch_reply,
)
from .dialects.completions.encoder import CHATS_PATH, PATH, encode, encode_chats
from .http.client import RequestClient, ServerClient, display_url, redact_key
from .http.transport import MAX_BODY_BYTES, MAX_STREAM_BYTES
from .http_errors import translate_failure, translate_status

with lazy_modules(globals()):
    from .http import exchange_recorder

_STREAM_TYPE = "text/event-stream"
_STREAM_INTERVAL = 16
"""Tokens per event, on servers that accept the option: progress stays visible at a sixteenth of the cost."""
_BYTES_PER_TOKEN = 512
"""Upper bound, including JSON: the size limit of the response grows with the number of prompts."""
_UNKNOWN_TOKENS = 4096

OnPromptEvent = Callable[[PromptEvent], None]


@dataclass(frozen=True, slots=True)
class BatchCompletionClient:
    """Sends lists of prompts to one server."""

    server: ServerClient
    model: str
    are_chats: bool = False
    """Whether the server applies the chat template to each prompt, and returns all replies together."""
    is_raw: bool = False
    """Whether prompts are sent without a template."""
    only_standard: bool = False
    """Whether to omit vLLM's extensions, which the server may not accept."""
    observe: RequestObserver | None = None
    """Called with each exchange."""

    async def send(
        self,
        prompts: Sequence[str],
        sampling: Sampling,
        timeout: float | None,
        on_event: OnPromptEvent,
        index: int | None = None,
    ) -> None:
        """Calls `on_event` for each event in the order of arrival. `timeout`: seconds without any event. `index`: of a
        single prompt, for the observer. Raises BackendError; prompts that were reported as finished stay finished."""
        if self.observe is None:
            await self._send(self.server, prompts, sampling, timeout, on_event)
            return
        request = Request(Prompt(""), tuple(map(User, prompts)), self.model, sampling, index=index)
        recorder = exchange_recorder.ExchangeRecorder(self.server, request, self.observe)

        def receive(event: PromptEvent) -> None:
            if isinstance(event, PromptFinished) and event.usage is not None:
                recorder.usage = (recorder.usage or NO_USAGE) + event.usage
            on_event(event)

        try:
            await self._send(recorder, prompts, sampling, timeout, receive)
        except BaseException as error:
            recorder.end(error)
            raise
        recorder.end(None)

    async def _send(
        self,
        server: RequestClient,
        prompts: Sequence[str],
        sampling: Sampling,
        timeout: float | None,
        on_event: OnPromptEvent,
    ) -> None:
        url = server.url(CHATS_PATH if self.are_chats else PATH)
        extra_bytes = len(prompts) * _BYTES_PER_TOKEN * (sampling.max_tokens or _UNKNOWN_TOKENS)
        try:
            async with asyncio.timeout(timeout) as clock:
                response = await server.post(url, self._body(prompts, sampling), None)
                try:
                    if response.status != 200:
                        body = redact_key(await response.read(), response.sent_headers)
                        raise translate_status(response.status, response.headers, body, display_url(url))
                    if response.content_type != _STREAM_TYPE:
                        for event in _reply_events(await response.read(MAX_BODY_BYTES + extra_bytes), len(prompts)):
                            on_event(event)
                        return
                    decoder = BatchStreamDecoder(len(prompts))
                    while chunk := await response.chunk(MAX_STREAM_BYTES + extra_bytes):
                        if timeout is not None:
                            clock.reschedule(aio.now() + timeout)
                        for event in decoder.feed(chunk):
                            on_event(event)
                    if not decoder.ended:
                        decoder.close()
                finally:
                    response.close()
        except TimeoutError as error:
            message = f"{display_url(url)} sent nothing for {timeout:g} s."
            raise BackendError(ErrorKind.TURN_TIMEOUT, message) from error
        except BackendError as error:
            raise server.redact(error) from None
        except OSError as error:
            raise server.redact(translate_failure(error, display_url(url))) from None

    def _body(self, prompts: Sequence[str], sampling: Sampling) -> bytes:
        if self.are_chats:
            return encode_chats(prompts, self.model, sampling)
        if not self.only_standard:
            sampling = replace(sampling, extra={"stream_interval": _STREAM_INTERVAL, **sampling.extra})
        return encode(prompts, self.model, sampling, only_standard=self.only_standard, is_raw=self.is_raw)


def _reply_events(body: bytes, count: int) -> Iterator[PromptEvent]:
    """The reply of a server that does not stream, as events. Raises BackendError, after the last event, if prompts have
    no reply."""
    reply = decode_batch_reply(body, count)
    for answer in reply.answers:
        usage = reply.usage if count == 1 else None
        yield PromptDelta(answer.index, answer.text)
        yield PromptFinished(answer.index, answer.finish, usage)
    if reply.missing:
        raise BackendError(ErrorKind.SERVER, f"The server aborted {len(reply.missing)} of {count} prompts.")
