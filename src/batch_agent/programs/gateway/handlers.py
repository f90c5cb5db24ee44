"""What is answered at the addresses of the gateway."""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from ...agent.context_size import chars_in
from ...core.errors import BatchAgentError
from ...core.fast_dataclass import dataclass
from ...core.json import dumps, loads
from ...core.program_runtime import CompletionRequest, CompletionService
from ...core.requests import Reply
from .anthropic import AnthropicProtocol
from .errors import GatewayError, gateway_error_for
from .openai import OpenAIProtocol
from .protocol import ApiProtocol, ParsedRequest, ResponseMeta
from .responses import ResponseWriter, StreamPace
from .sessions import ClientSession, ClientSessions

OPENAI: ApiProtocol = OpenAIProtocol()
ANTHROPIC: ApiProtocol = AnthropicProtocol()
SUPPORTED = "Supported are POST /v1/chat/completions, POST /v1/messages and GET /v1/models."
_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Handlers:
    """One method for each; they raise Refused."""

    desk: CompletionService
    guests: ClientSessions
    pace: StreamPace

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answered(request, OPENAI)

    async def messages(self, request: web.Request) -> web.StreamResponse:
        return await self._answered(request, ANTHROPIC)

    async def count(self, request: web.Request) -> web.StreamResponse:
        """An estimate, a token for four characters: the gateway has no tokenizer."""
        guest = self.guests.who_asks(request.headers)
        _, asked = await _read(request, ANTHROPIC, guest)
        tools = sum(len(tool.name) + len(tool.description) + len(dumps(tool.parameters)) for tool in asked.tools)
        chars = len(asked.system) + chars_in(asked.messages) + tools
        return _json({"input_tokens": -(-chars // _CHARS_PER_TOKEN)})

    async def models(self, request: web.Request) -> web.StreamResponse:
        self.guests.who_asks(request.headers)
        model = self.desk.model
        return _json(
            {"object": "list", "data": [_model(model)], "first_id": model, "last_id": model, "has_more": False}
        )

    async def model(self, request: web.Request) -> web.StreamResponse:
        """There is one, by whatever name."""
        self.guests.who_asks(request.headers)
        return _json(_model(request.match_info["id"]))

    async def root(self, request: web.Request) -> web.StreamResponse:
        """For programs that look whether somebody is there."""
        return web.Response(text=f"A gateway of BatchAgent. {SUPPORTED}\n")

    async def unsupported(self, request: web.Request) -> web.StreamResponse:
        raise GatewayError(f"{request.path} is not supported. {SUPPORTED}")

    async def _answered(self, request: web.Request, words: ApiProtocol) -> web.StreamResponse:
        guest = self.guests.who_asks(request.headers)
        with guest.asking():
            wanted, asked = await _read(request, words, guest)
            envelope = ResponseMeta(
                secrets.token_hex(12), int(time.time()), wanted.model or self.desk.model, counts=wanted.counts
            )
            delivery, answer = ResponseWriter(words, envelope), self._answer(guest, asked)
            if wanted.stream:
                return await delivery.streamed(answer, request, self.pace)
            return await delivery.whole(answer)

    async def _answer(self, guest: ClientSession, asked: CompletionRequest) -> Reply | GatewayError:
        try:
            reply = await self.desk.complete(guest.agent, asked)
        except BatchAgentError as error:
            return gateway_error_for(error)
        return guest.said(reply, asked)


async def _read(
    request: web.Request, words: ApiProtocol, guest: ClientSession
) -> tuple[ParsedRequest, CompletionRequest]:
    data = await request.read()
    try:
        wanted = words.read(_object(data))
        return wanted, guest.heard(wanted.asked)
    except RecursionError as error:
        raise GatewayError("The request is nested too deep.") from error


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        body = loads(data)
    except ValueError as error:
        raise GatewayError(f"The body is not JSON: {error}.") from error
    if not isinstance(body, dict):
        raise GatewayError("The body must be a JSON object.")
    return body


def _model(name: str) -> dict[str, Any]:
    """As both protocols have it."""
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": 0,
        "created_at": "1970-01-01T00:00:00Z",
        "owned_by": "batch-agent",
    }


def _json(body: dict[str, Any]) -> web.Response:
    return web.Response(body=dumps(body), content_type="application/json")
