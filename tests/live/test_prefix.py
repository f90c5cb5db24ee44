"""What a real engine finds in its prefix cache is what its own tokenizer says that the prompts have in common."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import aiohttp
import orjson
import pytest

from batch_agent import BatchAgent, Tool
from batch_agent.backends.connect import connect
from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.core.messages import ToolCall
from batch_agent.core.protocols.backend import Backend
from batch_agent.core.requests import CallDelta, Delta, Finished, Request, Usage

SYSTEM = "You keep the register of a small harbour, and you answer every question in one short sentence. " * 8
START = "Here is how the register is read: ships by name, berths by number, tides by hour. " * 6
COMMON = "the old ferry that comes in with the tide on the first Sunday of every month and leaves in the evening, " * 3
INPUTS = [COMMON + "its name", "the lighthouse", COMMON + "its berth", "the lighthouse"]
HEART = 'Reply exactly:\n<tool_call>\n{{"name": "look_up", "arguments": {{"name": "{it}"}}}}\n</tool_call>'

each_dialect = pytest.mark.parametrize("scheme", ["vllm", "anthropic"])
most_in_one_dialect = pytest.mark.parametrize("scheme", ["vllm", pytest.param("anthropic", marks=pytest.mark.nightly)])


@Tool.define(effect="read")
def look_up(name: str) -> str:
    """Look a person up."""
    return f"{name} is 36 years old."


@dataclass(frozen=True, slots=True)
class Turn:
    request: Request
    usage: Usage


class Noted:
    """A backend of which is noted, in order, what each turn asked for and what it used."""

    def __init__(self, inner: Backend, first_call: ToolCall | None = None) -> None:
        """`first_call`: what every agent calls in its first turn, whatever the model says."""
        self.traits = inner.traits
        self.turns: list[Turn] = []
        self._inner = inner
        self._first_call = first_call

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        async with self._inner.stream(request) as deltas, aclosing(self._noting(request, deltas)) as noted:
            yield noted

    async def leave(self, agent: str) -> None:
        await self._inner.leave(agent)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _noting(self, request: Request, deltas: AsyncIterator[Delta]) -> AsyncGenerator[Delta]:
        calls = self._first_call is not None and request.turn == 0
        async for delta in deltas:
            if isinstance(delta, Finished):
                self.turns.append(Turn(request, delta.usage))
                if calls and self._first_call is not None:
                    yield CallDelta(self._first_call)
                    yield Finished("calls", delta.usage)
                    return
            if not calls:
                yield delta


@each_dialect
@pytest.mark.parametrize("tools", [[], [look_up]], ids=["no tools", "tools"])
async def test_the_cached_tokens_of_an_agent_are_exactly_its_shared_prefix(
    vllm_url: str, scheme: str, tools: list[Tool]
) -> None:
    turns = await _run(
        vllm_url,
        scheme,
        system_prompt=SYSTEM,
        task=START + "What is {it}?",
        inputs=INPUTS,
        tools=tools,
        max_tokens=4,  # too few for a call
    )
    prompts, block = await _prompts(vllm_url, turns), await _block(vllm_url)
    found = [_in_blocks(_shared(prompt, prompts[:number]), block) for number, prompt in enumerate(prompts)]
    assert [turn.request.turn for turn in turns] == [0] * len(INPUTS)
    assert [turn.usage.cached for turn in turns] == found
    # Nobody was there before the first; all others share the run's bytes, and some, in any order, part of their input.
    assert found[0] == 0
    assert 8 * block < min(found[1:]) < max(found[1:]) - block


@most_in_one_dialect
async def test_a_turn_hits_the_whole_prompt_of_the_turn_before_it(vllm_url: str, scheme: str) -> None:
    turns = await _run(
        vllm_url, scheme, task=HEART, inputs=["Ada", "Bob", "Eve"], tools=[look_up], max_tokens=48, max_turns=2
    )
    prompts, block = await _prompts(vllm_url, turns), await _block(vllm_url)
    assert sorted(turn.request.turn for turn in turns) == [0, 0, 0, 1, 1, 1]
    asked = {turn.request.agent: turn.usage.input for turn in turns if turn.request.turn == 0}
    for number, turn in enumerate(turns):
        expected = _in_blocks(_shared(prompts[number], prompts[:number]), block)
        if turn.request.turn == 0:
            assert turn.usage.cached == expected, (turn.usage, expected)
        else:
            # The last turn: its tools may not be called, and are where they were. It may find more than it asked
            # before, namely what the model then said, as far as that is written again as it was.
            assert not turn.request.may_call_tools
            assert turn.usage.cached >= expected >= _in_blocks(asked[turn.request.agent], block), (turn.usage, expected)
    assert min(asked.values()) > 6 * block


@most_in_one_dialect
async def test_a_result_that_is_placed_first_is_computed_once_for_all_agents_that_read_it(
    vllm_url: str, scheme: str
) -> None:
    register = "The old ferry has berth four, the tide is at six, and the harbour master sleeps until noon. " * 12

    @Tool.define(effect="read", placement="first")
    def look_up(name: str) -> str:
        """Look a person up."""
        return register

    turns = await _run(
        vllm_url,
        scheme,
        ToolCall("call_1", "look_up", '{"name": "all"}'),
        task=START + "\n\nWhat does {it} need to know?",
        inputs=["Ada", "Bob", "Eve"],
        tools=[look_up],
        max_tokens=8,
        max_turns=2,
    )
    prompts, block = await _prompts(vllm_url, turns), await _block(vllm_url)
    assert sorted(turn.request.turn for turn in turns) == [0, 0, 0, 1, 1, 1]
    cached = [turn.usage.cached for turn in turns if turn.request.turn == 1]
    whole = [turn.usage.input for turn in turns if turn.request.turn == 1]
    own = [whole[number] - cached[number] for number in range(3)]
    assert own[0] > len(register) / 6, "the first to read it has it computed"
    assert max(own[1:]) < len(register) / 8, "the others find it"
    for number, turn in enumerate(turns):
        assert turn.usage.cached >= _in_blocks(_shared(prompts[number], prompts[:number]), block)


async def _run(url: str, scheme: str, first_call: ToolCall | None = None, **options: Any) -> list[Turn]:
    """The turns in the order in which they were taken, one at a time, in a cache where nobody was before."""
    address = url.replace("http", scheme, 1)
    server = await connect(address, None, uses_tools=bool(options["tools"]), notify=lambda text: None)
    backend = Noted(server, first_call)
    try:
        results = await BatchAgent.run(
            backend=backend, cache_salt=str(uuid4()), max_inflight=1, temperature=0.0, **options
        )
    finally:
        await backend.aclose()
    for result in results:
        used = [turn.usage for turn in backend.turns if turn.request.agent == result.key]
        assert sum(used, Usage()) == result.usage
    return backend.turns


async def _prompts(url: str, turns: Iterable[Turn]) -> list[list[int]]:
    """The tokens of each turn's prompt, from the server's own template and tokenizer."""
    prompts = []
    async with aiohttp.ClientSession() as http:
        for turn in turns:
            said = orjson.loads(OpenAIChat().encode(turn.request))
            body = {name: said[name] for name in ("model", "messages", "tools") if name in said}
            async with http.post(f"{url}/tokenize", json=body) as response:
                tokens = (await response.json())["tokens"]
            assert len(tokens) == turn.usage.input, "this is not the prompt that the server read"
            prompts.append(tokens)
    return prompts


async def _block(url: str) -> int:
    """How many tokens the server's cache keeps or finds together."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as response:
        found = re.search(r'^vllm:cache_config_info\{.*?\bblock_size="(\d+)"', await response.text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def _shared(prompt: list[int], earlier: Iterable[list[int]]) -> int:
    """The length of the longest start in common with an earlier prompt. Its last token is always computed."""
    return min(max((_common(prompt, other) for other in earlier), default=0), len(prompt) - 1)


def _common(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _in_blocks(tokens: int, block: int) -> int:
    return tokens // block * block
