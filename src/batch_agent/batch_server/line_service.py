"""Answers the lines of batch files on a backend, with the slots, pace, retries and failover of a run."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from ..agent.conversation import Generate
from ..aio import Deadlines, unwrap_group
from ..backends.endpoints.endpoint_loads import addresses_of, endpoint_loads
from ..batch_api.api_error import ApiError
from ..batch_api.lines import InputLine
from ..core.agent_config import AgentConfig, Job
from ..core.errors import BackendError
from ..core.fast_dataclass import dataclass
from ..core.json import dumps
from ..core.messages import Prompt
from ..core.options.backend_settings import NAMED
from ..core.protocols.agent_executor import Slot
from ..core.protocols.backend import ChangesEndpoints, ReportsRateLimits, Traits
from ..core.requests import Reply, Request, Sampling
from ..core.spec import BatchSpec
from ..engine.admission_setup import build_admission
from ..engine.monitor import monitor_load
from ..engine.slots import shared_slots
from ..engine.turn_runner import BackendTurnRunner
from ..plan.layout import CHARS_PER_TOKEN
from ..programs.action_adapter import ActionAdapter
from ..programs.gateway.api_protocol import ResponseMeta
from ..programs.gateway.gateway_error import GatewayError, gateway_error_for
from ..programs.gateway.openai_protocol import OpenAIProtocol
from ..run.admissions import follow_endpoints
from ..schedule.health import Health
from ..tools import Tool, ToolExecutor
from .pass_through import ENDPOINTS, open_line_backend, pass_through_request
from .server_tools import ServerTools, check_server_tools, with_total_usage

Body = Mapping[str, Any]
_CHAT = "/v1/chat/completions"


class LineCodec(Protocol):
    """Codec for a kind of backend."""

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
    """For OpenAI-compatible servers: leaves bodies and responses unchanged."""

    model: str
    endpoints: tuple[str, ...] = ENDPOINTS

    def request(self, url: str, body: Body, key: str, turn: int) -> Request:
        sent = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        return pass_through_request(url, {"model": self.model, **sent}, self.model, key, turn)

    def response(self, url: str, body: Body, reply: Reply, turn: int) -> bytes:
        return reply.text.encode()


class ChatCodec:
    """For other backends: translates a chat request in the same way as those of programs. Fields that BatchAgent does
    not know are not sent."""

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


_OUTAGE_SECONDS_PER_RETRY = 5.0
"""Seconds to wait for an unavailable backend, per retry, before no further lines are sent."""
_OPENAI = OpenAIProtocol()


@dataclass(frozen=True, slots=True)
class LineResponse:
    """Response to a line. `body` is JSON: the error if `status` is not 200."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        return self.status == 200


Deliver = Callable[[InputLine, LineResponse], Awaitable[None]]


@asynccontextmanager
async def open_line_service(
    spec: BatchSpec, tools: Sequence[Tool], notify: Callable[[str], None]
) -> AsyncIterator["LineService"]:
    """Opens a line service. `spec`: only its backend, model, limits, retries and timeouts apply, not task and inputs.
    Raises SpecError and BackendError."""
    check_server_tools(tools)
    assert isinstance(spec.backend, NAMED)
    async with AsyncExitStack() as stack:
        backend, is_openai = await open_line_backend(spec.backend, spec.model, notify)
        stack.push_async_callback(backend.aclose)
        server = backend.server
        admission = build_admission(spec, backend, 0, CHARS_PER_TOKEN, None, has_later_turns=bool(tools), server=server)
        addresses = addresses_of(spec.backend, server)
        stack.enter_context(shared_slots(admission.slots, endpoint_loads(), addresses))
        if isinstance(server, ChangesEndpoints):
            stack.callback(follow_endpoints(server, admission, spec, None))
        await stack.enter_async_context(monitor_load(server, admission))
        if isinstance(server, ReportsRateLimits) and server.traits.reports_rate_limits:
            stack.callback(server.observe_rate_limits(admission.slots.on_service_limits))
        health = Health(spec.retry.max_retries * _OUTAGE_SECONDS_PER_RETRY)
        runner = BackendTurnRunner(backend, admission, health, Deadlines(spec.timeouts.turn), spec.retry)
        codec = PassThroughCodec(backend.traits.model) if is_openai else ChatCodec(backend.traits)
        executor = ToolExecutor(tools, timeout=spec.timeouts.tool, max_tokens=spec.context.max_tool_tokens)
        stack.push_async_callback(executor.aclose)
        yield LineService(runner, codec, ServerTools(executor, spec.max_turns))


class LineService:
    """Answers lines. Callers share its slots evenly, because each waits for one slot at a time."""

    def __init__(self, runner: BackendTurnRunner, codec: LineCodec, tools: ServerTools) -> None:
        self._runner = runner
        self._codec = codec
        self._tools = tools

    @property
    def model(self) -> str:
        return self._runner.backend.traits.model

    @property
    def endpoints(self) -> tuple[str, ...]:
        return self._codec.endpoints

    async def answer(
        self, prefix: str, lines: Iterable[InputLine], deliver: Deliver, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Answers lines in order, as slots become free, and calls `deliver` with each response. `prefix`: unique prefix
        of the keys of these lines. Once `stopped` returns True, no further line is begun. Raises RunStopped if the
        backend cannot be used; lines in flight are then cancelled."""
        admission = self._runner.admission
        try:
            async with asyncio.TaskGroup() as group:
                for line in lines:
                    if stopped():
                        return
                    job = Job(line.number, f"{prefix}.{line.number}", None, dumps(line.body).decode())
                    slot = await admission.admit(job, ())
                    if stopped():
                        slot.release()
                        admission.release(job.key)
                        return
                    group.create_task(self._answer_line(line, job, slot, deliver))
        except BaseExceptionGroup as failures:
            raise unwrap_group(failures) from None

    async def _answer_line(self, line: InputLine, job: Job, slot: Slot, deliver: Deliver) -> None:
        try:
            response = await self._response(line, job, slot)
        finally:
            slot.release()
            self._runner.admission.release(job.key)
        await self._runner.backend.leave(job.key)
        await deliver(line, response)

    async def _response(self, line: InputLine, job: Job, slot: Slot) -> LineResponse:
        try:
            return LineResponse(200, await self._body(line, job, slot))
        except ApiError as error:
            return LineResponse(error.status, dumps(error.body()))
        except BackendError as error:
            shown = gateway_error_for(error)
            is_clients = error.status is not None and 400 <= error.status < 500
            return LineResponse(error.status if is_clients and error.status else shown.status, _OPENAI.error(shown))

    async def _body(self, line: InputLine, job: Job, slot: Slot) -> bytes:
        prepared = self._tools.prepare(line.body)
        first: Slot | None = slot
        if prepared is None:
            return await self._turn(line.url, line.body, job, first, 0, 1)
        responses: list[bytes] = []
        for turn in range(self._tools.max_turns):
            turns_left = self._tools.max_turns - turn
            responses.append(await self._turn(line.url, prepared, job, first, turn, turns_left))
            first = None
            calls = self._tools.calls_in(responses[-1])
            if not calls or turns_left == 1:
                break
            with self._runner.admission.tool_wait(job.key, calls, None):
                results = await self._tools.results(job.key, calls)
            prepared = self._tools.next_body(prepared, responses[-1], results, turns_left - 1)
        return with_total_usage(responses)

    async def _turn(
        self, url: str, body: Mapping[str, Any], job: Job, slot: Slot | None, turn: int, turns_left: int
    ) -> bytes:
        request = self._codec.request(url, body, job.key, turn)
        task = asyncio.current_task()
        assert task is not None
        fact = await self._runner.turn(job, Generate(request, turns_left), slot, task)
        return self._codec.response(url, body, fact.reply, turn)
