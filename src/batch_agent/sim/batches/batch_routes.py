"""Routes of the batch APIs, and of the clock and faults for tests."""

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import orjson

from ...batch_api.api_error import ApiError
from ..faults import Faults
from ..http import ClientConnection
from ..http_parser import HttpRequest
from ..request_errors import RequestError
from ..request_reader import Requests
from ..sim_config import BatchConfig
from .anthropic_batches import AnthropicBatches
from .anthropic_messages import anthropic_error
from .armed_faults import ArmedFault, ArmedFaults, BatchFault
from .batch_work import MovableClock
from .line_runner import Billing, LineRunner
from .openai_batches import Files, OpenAIBatches


class _Content(NamedTuple):
    body: bytes
    content_type: bytes
    fault: ArmedFault | None = None


class BatchRoutes:
    """Handlers of all paths below /v1/files, /v1/batches, /v1/messages/batches and /sim."""

    def __init__(self, config: BatchConfig, requests: Requests, faults: Faults) -> None:
        self.armed = ArmedFaults()
        self.billing = Billing()
        self._clock = MovableClock()
        runner = LineRunner(faults, self.billing)
        self._files = Files(self._clock)
        shared = (config, requests, runner, self.billing, self._clock, self.armed)
        self._openai = OpenAIBatches(*shared, self._files)
        self._anthropic = AnthropicBatches(*shared)
        self._routes: dict[str, Callable[[HttpRequest, list[str]], Any]] = {
            "files": self._route_files,
            "batches": self._route_batches,
            "messages": self._route_messages,
            "sim": self._route_sim,
        }

    def handle(self, request: HttpRequest, connection: ClientConnection) -> bool:
        """Answers the request. Returns False if it is for none of these routes."""
        parts = request.path.decode(errors="replace").strip("/").split("/")
        if parts[0] == "v1":
            parts = parts[1:]
        route = self._routes.get(parts[0]) if parts else None
        if route is None or parts[:2] == ["messages"]:
            return False
        try:
            answer = route(request, parts[1:])
        except ApiError as error:
            connection.reply(error.status, orjson.dumps(error.body()))
        except RequestError as error:
            connection.reply(error.status, anthropic_error(error.status, str(error)))
        else:
            _reply(answer, connection)
        return True

    def _route_files(self, request: HttpRequest, parts: list[str]) -> Any:
        match request.method, parts:
            case b"POST", []:
                return self._files.upload(request.header(b"content-type"), request.body).as_json()
            case b"GET", []:
                return self._files.page(_query(request))
            case b"GET", [file_id]:
                return self._files.retrieve(file_id).as_json()
            case b"DELETE", [file_id]:
                return self._files.delete(file_id)
            case b"GET", [file_id, "content"]:
                return _Content(self._files.content(file_id), b"application/octet-stream")
        raise _no_route(request)

    def _route_batches(self, request: HttpRequest, parts: list[str]) -> Any:
        match request.method, parts:
            case b"POST", []:
                batch, fault = self._openai.create(_object(request.body))
                return _Content(orjson.dumps(batch.as_json()), b"application/json", fault)
            case b"GET", []:
                return self._openai.page(_query(request))
            case b"GET", [batch_id]:
                return self._openai.retrieve(batch_id).as_json()
            case b"POST", [batch_id, "cancel"]:
                return self._openai.cancel(batch_id).as_json()
        raise _no_route(request)

    def _route_messages(self, request: HttpRequest, parts: list[str]) -> Any:
        host = request.header(b"host").decode(errors="replace")
        match request.method, parts:
            case b"POST", ["batches"]:
                batch, fault = self._anthropic.create(_object(request.body), host)
                return _Content(orjson.dumps(batch), b"application/json", fault)
            case b"GET", ["batches"]:
                return self._anthropic.page(_query(request), host)
            case b"GET", ["batches", batch_id]:
                return self._anthropic.retrieve(batch_id, host)
            case b"DELETE", ["batches", batch_id]:
                return self._anthropic.delete(batch_id)
            case b"POST", ["batches", batch_id, "cancel"]:
                return self._anthropic.cancel(batch_id, host)
            case b"GET", ["batches", batch_id, "results"]:
                return _Content(self._anthropic.results(batch_id), b"application/x-jsonl")
        raise RequestError(f"{request.method.decode()} {request.path.decode()} does not exist", 404)

    def _route_sim(self, request: HttpRequest, parts: list[str]) -> Any:
        match request.method, parts:
            case b"GET", ["clock"]:
                return {"now": self._clock.now()}
            case b"POST", ["clock"]:
                seconds = _object(request.body).get("advance_s")
                if not isinstance(seconds, int | float) or seconds < 0:
                    raise ApiError(f"advance_s must be a number of seconds, got {seconds!r}", param="advance_s")
                self._clock.advance(seconds)
                return {"now": self._clock.now()}
            case b"POST", ["faults"]:
                self.armed.arm(_object(request.body))
                return {}
            case b"DELETE", ["faults"]:
                self.armed.clear()
                return {}
        raise _no_route(request)


def _reply(answer: Any, connection: ClientConnection) -> None:
    if not isinstance(answer, _Content):
        connection.reply(200, orjson.dumps(answer))
        return
    match answer.fault and answer.fault.kind:
        case BatchFault.LOST_ANSWER:
            connection.close()
        case BatchFault.ERROR_AFTER_CREATE:
            error = ApiError("simulated failure after the batch was created", 500, kind="server_error")
            connection.reply(500, orjson.dumps(error.body()))
        case _:
            connection.reply(200, answer.body, answer.content_type)


def _no_route(request: HttpRequest) -> ApiError:
    where = request.path.decode(errors="replace")
    return ApiError(f"Invalid URL ({request.method.decode(errors='replace')} {where})", 404)


def _query(request: HttpRequest) -> dict[str, str]:
    return dict(parse_qsl(request.query.decode(errors="replace")))


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(f"We could not parse the JSON body of your request: {error}") from error
    if not isinstance(body, dict):
        raise ApiError("The JSON body of your request must be an object.")
    return body
