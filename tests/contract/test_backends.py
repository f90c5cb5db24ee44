"""The contract of backends, kept by those that need no engine."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest
from tests.contract.backend_contract import SEARCH, BackendContract, Subject, deltas_of
from tests.support.bedrock_server import Fault, Heard, Said, bedrock_server, use_keys

from batch_agent import BackendError, ErrorKind
from batch_agent.backends.connect import connect
from batch_agent.core.messages import Prompt, User
from batch_agent.core.protocols.backend import Backend
from batch_agent.core.requests import CallDelta, Request, Sampling
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import Answer, ScriptedBackend, call, say


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(zero_latency=True), Script()) as server:
        yield server


@pytest.fixture(params=["scripted", "http", "bedrock"])
async def subject(
    request: pytest.FixtureRequest, sim: SimServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Subject]:
    async with AsyncExitStack() as stack:
        backend: Backend
        if request.param == "http":
            backend = await connect(sim.url, None, uses_tools=True, notify=lambda text: None)
        elif request.param == "bedrock":
            server = await stack.enter_async_context(bedrock_server(as_bedrock_does))
            use_keys(monkeypatch, server.url)
            backend = await connect("bedrock://us-east-1/a.model-v1:0", None, uses_tools=True, notify=lambda text: None)
        else:
            backend = ScriptedBackend(as_the_sim_does)
        stack.push_async_callback(backend.aclose)
        yield subject_of(backend)


def subject_of(backend: Backend) -> Subject:
    def ask(directive: dict[str, object], prompt: Prompt) -> Request:
        text = f"Hi [[sim: {json.dumps(directive)}]]" if directive else "Hi"
        return Request(prompt, (User(text),), backend.traits.model, Sampling())

    brief = Prompt("Be brief.")
    return Subject(
        backend, ask({"text": "Hello"}, brief), ask({"fault": "500"}, brief), ask({}, Prompt("Be brief.", (SEARCH,)))
    )


async def as_the_sim_does(request: Request) -> Answer:
    await asyncio.sleep(0.001)
    text = request.messages[0].text if isinstance(request.messages[0], User) else ""
    if "fault" in text:
        return BackendError(ErrorKind.SERVER, "simulated failure with status 500")
    if request.prompt.tools and request.may_call_tools and len(request.messages) == 1:
        return call("search", query="key-1")
    return say("Hello")


def as_bedrock_does(heard: Heard) -> Said | Fault:
    first = heard.body["messages"][0]["content"][0]["text"]
    if "fault" in first:
        return Fault(500, "InternalServerException", "simulated failure")
    if "toolConfig" in heard.body and len(heard.body["messages"]) == 1:
        use = {"toolUseId": "t1", "name": "search", "input": {"query": "key-1"}}
        return Said([{"toolUse": use}], stop="tool_use")
    return Said([{"text": "Hello"}])


class TestBackends(BackendContract):
    async def test_a_request_that_forbids_tool_calls_gets_none(self, subject: Subject) -> None:
        assert subject.calls is not None
        if subject.backend.traits.name == "bedrock":
            return  # Converse has no word for it: the agent ends with max_turns if the model calls anyway
        request = Request(
            subject.calls.prompt, subject.calls.messages, subject.calls.model, Sampling(), may_call_tools=False
        )
        deltas = await deltas_of(subject.backend, request)
        assert not [delta for delta in deltas if isinstance(delta, CallDelta)]
