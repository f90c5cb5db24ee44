"""Codecs between the lines of a batch file and the requests of a backend."""

import secrets
import time
from collections.abc import Mapping
from typing import Any, Protocol

from ..batch_api.api_error import ApiError
from ..core.agent_config import AgentConfig
from ..core.fast_dataclass import dataclass
from ..core.messages import Prompt
from ..core.protocols import Traits
from ..core.requests import Reply, Request, Sampling
from ..programs.action_adapter import ActionAdapter
from ..programs.gateway.api_protocol import ResponseMeta
from ..programs.gateway.gateway_error import GatewayError
from ..programs.gateway.openai_protocol import OpenAIProtocol
from .pass_through import ENDPOINTS, pass_through_request

Body = Mapping[str, Any]
_CHAT = "/v1/chat/completions"


class LineCodec(Protocol):
    """Codec for one kind of backend."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The URLs that lines may have."""
        ...

    def request(self, url: str, body: Body, key: str, turn: int) -> Request:
        """Raises ApiError for a body that cannot be sent."""
        ...

    def response(self, url: str, body: Body, reply: Reply, turn: int) -> bytes:
        """The response in OpenAI's format, as JSON."""
        ...


@dataclass(frozen=True, slots=True)
class PassThroughCodec:
    """For OpenAI-compatible servers: bodies and responses stay as they are."""

    model: str
    endpoints: tuple[str, ...] = ENDPOINTS

    def request(self, url: str, body: Body, key: str, turn: int) -> Request:
        sent = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        return pass_through_request(url, {"model": self.model, **sent}, self.model, key, turn)

    def response(self, url: str, body: Body, reply: Reply, turn: int) -> bytes:
        return reply.text.encode()


class ChatCodec:
    """For other backends: a chat request is translated, as those of programs are. Fields that BatchAgent does not know
    are not sent."""

    endpoints = (_CHAT,)

    def __init__(self, traits: Traits) -> None:
        config = AgentConfig(Prompt(""), traits.model, Sampling(), "native", None, None, None, 1, 0)
        self._adapter = ActionAdapter(config, traits, uses_actions=not traits.native_tools)
        self._model = traits.model
        self._protocol = OpenAIProtocol()

    def request(self, url: str, body: Body, key: str, turn: int) -> Request:
        model = body.get("model", self._model)
        if model != self._model:
            raise ApiError(f"The model '{model}' does not exist.", 404, param="model", code="model_not_found")
        try:
            completion = self._protocol.read(body).request
        except GatewayError as error:
            raise ApiError(str(error), error.status, code=error.code) from error
        except RecursionError as error:
            raise ApiError("The request is nested too deeply.") from error
        return self._adapter.request(completion, key, turn, {})

    def response(self, url: str, body: Body, reply: Reply, turn: int) -> bytes:
        read = self._adapter.reply(self._protocol.read(body).request, reply, turn)
        return self._protocol.reply(read, ResponseMeta(secrets.token_hex(12), int(time.time()), self._model))
