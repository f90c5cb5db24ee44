"""Fake program runtime: its programs are functions that send requests to the completion service and return text."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel
from tests.support.event_list import EventList

from batch_agent import AgentResult, BackendError
from batch_agent.agent.output import output_type
from batch_agent.aio import Deadlines
from batch_agent.core.agent_config import AgentConfig, Job
from batch_agent.core.messages import Assistant, Message, Prompt, ToolCall, ToolResult, ToolResults, ToolSpec, User
from batch_agent.core.options import Retry
from batch_agent.core.program_runtime import CompletionRequest, CompletionService, ProgramFailed, ProgramResult
from batch_agent.core.protocols.store import Store
from batch_agent.core.requests import Reply, Sampling, TokenRequest, Usage
from batch_agent.engine.admission import AdmissionController
from batch_agent.engine.agent_loop import AgentLoop
from batch_agent.engine.engine import Engine, EngineConfig
from batch_agent.engine.job_source import InputSource, JobSource
from batch_agent.engine.residency import Residency
from batch_agent.engine.slots import Slots
from batch_agent.engine.turn_runner import BackendTurnRunner
from batch_agent.programs.action_adapter import ActionAdapter
from batch_agent.programs.completion_service import GatewayService
from batch_agent.programs.program_sessions import ProgramSessions
from batch_agent.programs.program_turn_runner import ProgramTurnRunner
from batch_agent.rollouts.token_recorder import TokenRecorder
from batch_agent.schedule.concurrency_limit import InflightLimit
from batch_agent.schedule.health import Health
from batch_agent.schedule.kv_ledger import KvLedger
from batch_agent.store.memory_store import NoStore
from batch_agent.testing import ScriptedBackend, say
from batch_agent.tools import ToolExecutor

LOOK = ToolSpec("look", "Look at it.", {"type": "object", "properties": {"at": {"type": "string"}}})
Program = Callable[[CompletionService, str, str], Awaitable[str | ProgramResult]]


async def tool_loop(service: CompletionService, agent: str, text: str, *, seconds: float = 1.0) -> str:
    """What coding agents do: the model calls tools until it says something."""
    messages: list[Message] = [User(text)]
    while True:
        reply = await service.complete(agent, CompletionRequest(tuple(messages), "You look at things.", (LOOK,)))
        if not reply.calls:
            return reply.text
        await asyncio.sleep(seconds)
        messages += [Assistant(reply.text, reply.calls), ToolResults(tuple(ToolResult(c, "seen") for c in reply.calls))]


@dataclass
class FakeSession:
    runtime: "FakeRuntime"
    agent: str

    async def prompt(self, text: str) -> ProgramResult:
        self.runtime.prompts.append((self.agent, text))
        self.runtime.active += 1
        self.runtime.max_active = max(self.runtime.max_active, self.runtime.active)
        try:
            said = await self.runtime.program(self.runtime.service[0], self.agent, text)
        except BackendError as error:
            raise ProgramFailed(f"it gave up: {error}") from error
        finally:
            self.runtime.active -= 1
        return said if isinstance(said, ProgramResult) else ProgramResult(said)

    async def aclose(self) -> None:
        self.runtime.closed.append(self.agent)


@dataclass
class FakeRuntime:
    program: Program
    service: list[CompletionService] = field(default_factory=list)
    prompts: list[tuple[str, str]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    active: int = 0
    max_active: int = 0

    async def open_session(self, agent: str) -> FakeSession:
        self.opened.append(agent)
        return FakeSession(self, agent)


async def run_programs(
    runtime: FakeRuntime,
    backend: ScriptedBackend,
    inputs: Sequence[str],
    *,
    inflight: int = 8,
    kv_tokens: int | None = None,
    most: int = 20,
    max_turns: int = 50,
    schema: type[BaseModel] | None = None,
    retry: Retry | None = None,
    seconds: float | None = 1800.0,
    action_mode: bool = False,
    events: EventList | None = None,
    store: Store | None = None,
    tokens: bool = False,
) -> list[AgentResult]:
    retry, store = retry or Retry(), store or NoStore()
    recorder = TokenRecorder(store, backend) if tokens else None
    output = output_type(schema)
    prompt = Prompt("Answer with JSON." if schema else "")
    rules = AgentConfig(prompt, "scripted", Sampling(), "native", output, None, None, max_turns, retry.max_retries)
    if tokens:
        rules = replace(rules, tokens=TokenRequest())
    residency = None if kv_tokens is None else Residency(KvLedger(kv_tokens), 0)
    admission = AdmissionController(Slots(InflightLimit(inflight, fixed=True), events), residency)
    turns = BackendTurnRunner(backend, admission, Health(max_outage=15.0), Deadlines(300.0), retry, None, events)
    sessions = ProgramSessions(admission, events)
    adapter = ActionAdapter(rules, backend.traits, action_mode)
    gateway_service = GatewayService(turns, adapter, sessions, max_turns, recorder)
    runtime.service.append(gateway_service)
    program_turns = ProgramTurnRunner(
        runtime, sessions, admission, Deadlines(300.0), retry, gateway_service.leave, events
    )
    loop = AgentLoop(rules, program_turns, ToolExecutor([], timeout=None, max_tokens=1000), store, Deadlines(seconds))
    results: list[AgentResult] = []

    async def deliver(result: AgentResult) -> None:
        results.append(result)

    def job(index: int, value: Any) -> Job:
        return Job(index, f"agent-{index}", value, f"Do {value}")

    source = InputSource(JobSource(list(inputs)), job, None)
    config = EngineConfig(source, loop, store, admission, deliver, most, leave=program_turns.leave, events=events)
    engine = Engine(config)
    await engine.run()
    return sorted(results, key=lambda result: result.index)


def calls_then(answer: str, times: int = 1) -> Callable[[Any], Reply]:
    """A model that looks so often, and then answers."""

    def script(request: Any) -> Reply:
        looked = sum(isinstance(message, ToolResults) for message in request.messages)
        if looked < times:
            return Reply("", "calls", Usage(10, 0, 5), (ToolCall(f"c{looked}", "look", '{"at": "it"}'),))
        return say(answer, Usage(20, 10, 5))

    return script
