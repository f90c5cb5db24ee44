"""Many prompts in one HTTP request, each answered as soon as it is done."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from .. import aio
from ..core.errors import BackendError, ErrorKind
from ..core.fast_dataclass import dataclass
from ..core.requests import Sampling
from .dialects.completions.decoder import (
    BatchStreamDecoder,
    PromptDelta,
    PromptEvent,
    PromptFinished,
    decode_batch_reply,
)
from .dialects.completions.encoder import CHATS_PATH, PATH, encode, encode_chats
from .error_mapping import translate_failure, translate_status
from .http.client import ServerClient, display_url, redact_key
from .http.transport import LARGEST_BODY, LARGEST_STREAM

_STREAM = "text/event-stream"
_STREAM_INTERVAL = 16
"""Tokens in an event, where the server can be told: progress is seen, and costs a sixteenth."""
_BYTES_PER_TOKEN = 512
"""At most, with the JSON around it: the limit of an answer grows with the list."""
_UNKNOWN_TOKENS = 4096

OnPromptEvent = Callable[[PromptEvent], None]


@dataclass(frozen=True, slots=True)
class BatchCompletionClient:
    """How lists of prompts go to one server."""

    server: ServerClient
    model: str
    are_chats: bool = False
    """The server puts the chat template around each prompt. It gives all answers together then."""
    is_raw: bool = False
    """Prompts are sent without any template."""
    only_standard: bool = False
    """The server is not known to take what only vLLM takes."""

    async def ask(
        self, prompts: Sequence[str], sampling: Sampling, patience: float | None, hear: OnPromptEvent
    ) -> None:
        """`hear` is told of answers in the order in which they come. `patience`: seconds without any news. Raises
        BackendError; prompts that were told as done stay done."""
        url = self.server.url(CHATS_PATH if self.are_chats else PATH)
        more = len(prompts) * _BYTES_PER_TOKEN * (sampling.max_tokens or _UNKNOWN_TOKENS)
        try:
            async with asyncio.timeout(patience) as clock:
                answer = await self.server.ask(url, self._body(prompts, sampling), None)
                try:
                    if answer.status != 200:
                        said = redact_key(await answer.read(), answer.sent_headers)
                        raise translate_status(answer.status, answer.headers, said, display_url(url))
                    if answer.content_type != _STREAM:
                        for event in _whole(await answer.read(LARGEST_BODY + more), len(prompts)):
                            hear(event)
                        return
                    decoder = BatchStreamDecoder(len(prompts))
                    while chunk := await answer.chunk(LARGEST_STREAM + more):
                        if patience is not None:
                            clock.reschedule(aio.now() + patience)
                        for event in decoder.feed(chunk):
                            hear(event)
                    if not decoder.ended:
                        decoder.close()
                finally:
                    answer.close()
        except TimeoutError as error:
            message = f"{display_url(url)} has said nothing for {patience:g} s."
            raise BackendError(ErrorKind.TURN_TIMEOUT, message) from error
        except BackendError as error:
            raise self.server.without_secrets(error) from None
        except OSError as error:
            raise self.server.without_secrets(translate_failure(error, display_url(url))) from None

    def _body(self, prompts: Sequence[str], sampling: Sampling) -> bytes:
        if self.are_chats:
            return encode_chats(prompts, self.model, sampling)
        if not self.only_standard:
            sampling = replace(sampling, extra={"stream_interval": _STREAM_INTERVAL, **sampling.extra})
        return encode(prompts, self.model, sampling, only_standard=self.only_standard, is_raw=self.is_raw)


def _whole(body: bytes, count: int) -> Iterator[PromptEvent]:
    """A server that does not stream, as events. Raises BackendError, after the last one, if some have no answer."""
    whole = decode_batch_reply(body, count)
    for answer in whole.answers:
        usage = whole.usage if count == 1 else None
        yield PromptDelta(answer.index, answer.text)
        yield PromptFinished(answer.index, answer.finish, usage)
    if whole.missing:
        raise BackendError(ErrorKind.SERVER, f"The server gave up {len(whole.missing)} of {count} answers.")
