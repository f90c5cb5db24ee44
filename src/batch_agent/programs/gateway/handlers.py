"""HTTP handlers of the gateway."""

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
from .anthropic_protocol import AnthropicProtocol
from .api_protocol import ApiProtocol, ParsedRequest, ResponseMeta
from .gateway_error import GatewayError, gateway_error_for
from .openai_protocol import OpenAIProtocol
from .responses import ResponseWriter, StreamPace
from .responses_protocol import ResponsesProtocol
from .sessions import ClientSession, ClientSessions

OPENAI: ApiProtocol = OpenAIProtocol()
ANTHROPIC: ApiProtocol = AnthropicProtocol()
RESPONSES: ApiProtocol = ResponsesProtocol()
SUPPORTED = "Supported: POST /v1/chat/completions, POST /v1/responses, POST /v1/messages, GET /v1/models."
_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Handlers:
    """HTTP handlers, one method per route. All of them raise GatewayError."""

    service: CompletionService
    sessions: ClientSessions
    pace: StreamPace

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._respond(request, OPENAI)

    async def responses(self, request: web.Request) -> web.StreamResponse:
        return await self._respond(request, RESPONSES)

    async def messages(self, request: web.Request) -> web.StreamResponse:
        return await self._respond(request, ANTHROPIC)

    async def count(self, request: web.Request) -> web.StreamResponse:
        """Estimates tokens as characters / 4: the gateway has no tokenizer."""
        session = self.sessions.authenticate(request.headers)
        _, completion = await _read(request, ANTHROPIC, session)
        tools = sum(len(tool.name) + len(tool.description) + len(dumps(tool.parameters)) for tool in completion.tools)
        chars = len(completion.system) + chars_in(completion.messages) + tools
        return _json({"input_tokens": -(-chars // _CHARS_PER_TOKEN)})

    async def models(self, request: web.Request) -> web.StreamResponse:
        self.sessions.authenticate(request.headers)
        model = self.service.model
        return _json(
            {"object": "list", "data": [_model(model)], "first_id": model, "last_id": model, "has_more": False}
        )

    async def model(self, request: web.Request) -> web.StreamResponse:
        """Returns the run's model under any name."""
        self.sessions.authenticate(request.headers)
        return _json(_model(request.match_info["id"]))

    async def root(self, request: web.Request) -> web.StreamResponse:
        """Responds to programs that check whether the server is up."""
        return web.Response(text=f"BatchAgent gateway. {SUPPORTED}\n")

    async def unsupported(self, request: web.Request) -> web.StreamResponse:
        raise GatewayError(f"{request.path} is not supported. {SUPPORTED}")

    async def _respond(self, request: web.Request, protocol: ApiProtocol) -> web.StreamResponse:
        session = self.sessions.authenticate(request.headers)
        with session.tracked():
            parsed, completion = await _read(request, protocol, session)
            model = parsed.model or self.service.model
            meta = ResponseMeta(secrets.token_hex(12), int(time.time()), model, parsed.counts, parsed.body)
            writer, answer = ResponseWriter(protocol, meta), self._answer(session, completion)
            if parsed.stream:
                return await writer.stream(answer, request, self.pace)
            return await writer.write(answer)

    async def _answer(self, session: ClientSession, completion: CompletionRequest) -> Reply | GatewayError:
        try:
            reply = await self.service.complete(session.agent, completion)
        except BatchAgentError as error:
            return gateway_error_for(error)
        return session.unmask_reply(reply, completion)


async def _read(
    request: web.Request, protocol: ApiProtocol, session: ClientSession
) -> tuple[ParsedRequest, CompletionRequest]:
    data = await request.read()
    try:
        parsed = protocol.read(_object(data))
        return parsed, session.mask_request(parsed.request)
    except RecursionError as error:
        raise GatewayError("The request is nested too deeply.") from error


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        body = loads(data)
    except ValueError as error:
        raise GatewayError(f"The request body is not valid JSON: {error}.") from error
    if not isinstance(body, dict):
        raise GatewayError("The request body must be a JSON object.")
    return body


def _model(name: str) -> dict[str, Any]:
    """A model's entry, with the fields of both APIs."""
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
