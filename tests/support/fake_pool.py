"""Prompt pool without servers: scripted answers, and a record of the requests."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from batch_agent.backends.endpoints.hostfile import Endpoint
from batch_agent.core.errors import ErrorKind
from batch_agent.pools.pool_protocol import OnResponse
from batch_agent.pools.response import Response


@dataclass(frozen=True, slots=True)
class Asked:
    agent: int
    """Its number in the whole pool, also where a sub-pool was asked."""
    prompt: str
    max_tokens: int | None = None


Answer = Callable[[Asked], str | Response]
Hold = Callable[[Asked], Awaitable[None]]


async def _at_once(asked: Asked) -> None:
    pass


def echo(asked: Asked) -> str:
    return f"{asked.agent}<{asked.prompt}>"


def failed(error: str = "it broke", kind: ErrorKind = ErrorKind.SERVER) -> Response:
    return Response(0, error=error, kind=kind)


def cut(text: str) -> Response:
    return Response(0, text, "cut off at max_tokens", ErrorKind.TRUNCATED, "length")


def endpoints(count: int) -> list[Endpoint]:
    return [Endpoint(f"gpu{number}") for number in range(count)]


def with_roles(*roles: str) -> list[Endpoint]:
    return [Endpoint(f"gpu{number}", fields={"role": role}) for number, role in enumerate(roles)]


@dataclass(slots=True)
class FakePool:
    """`hold` is waited for before an answer is given."""

    endpoints: Sequence[Endpoint]
    answer: Answer = echo
    hold: Hold = _at_once
    max_tokens_aggregation: int = 1000
    asked: list[Asked] = field(default_factory=list)
    """All that was asked, also of sub-pools, in its order."""
    numbers: Sequence[int] = ()
    """Of its agents in the whole pool."""

    def __post_init__(self) -> None:
        self.numbers = self.numbers or range(len(self.endpoints))

    @property
    def size(self) -> int:
        return len(self.endpoints)

    async def post(self, agent_index: int, prompt: str, max_tokens: int | None = None) -> Response:
        asked = Asked(self.numbers[agent_index], prompt, max_tokens)
        self.asked.append(asked)
        await self.hold(asked)
        given = self.answer(asked)
        response = Response(0, given) if isinstance(given, str) else given
        return replace(response, endpoint=self.endpoints[agent_index].host, agent_index=agent_index)

    async def post_batch(
        self, agent_index: int, prompts: Sequence[str], max_tokens: int | None = None
    ) -> list[Response]:
        return await self.select([agent_index]).send_all(prompts, max_tokens)

    async def send_all(
        self, prompts: Sequence[str], max_tokens: int | None = None, *, on_response: OnResponse | None = None
    ) -> list[Response]:
        async def ask(index: int, prompt: str) -> Response:
            response = replace(await self.post(index % self.size, prompt, max_tokens), index=index)
            if on_response is not None:
                on_response(response)
            return response

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(index, prompt)) for index, prompt in enumerate(prompts)]
        return [task.result() for task in tasks]

    async def send_all_batched(
        self, prompts: Sequence[str], max_tokens: int | None = None, *, on_response: OnResponse | None = None
    ) -> list[Response]:
        return await self.send_all(prompts, max_tokens, on_response=on_response)

    async def broadcast_prompt(self, prompt: str, max_tokens: int | None = None) -> list[Response]:
        return await self.send_all([prompt] * self.size, max_tokens)

    def by_tag(self, key: str, value: str | None = None) -> "FakePool":
        tag = key if value is None else f"{key}={value}"
        return self.select([at for at, endpoint in enumerate(self.endpoints) if endpoint.has(tag)])

    def select(self, indices: Sequence[int]) -> "FakePool":
        chosen = [self.endpoints[at] for at in indices]
        return replace(self, endpoints=chosen, numbers=[self.numbers[at] for at in indices])

    def slice(self, start: int, stop: int) -> "FakePool":
        return self.select(range(self.size)[start:stop])

    def sample(self, n: int) -> "FakePool":
        return self.slice(0, n)
