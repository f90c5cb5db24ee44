"""Interface of a pool for the patterns."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..backends.endpoints.hostfile import Endpoint
from .response import Response

OnResponse = Callable[[Response], Any]


class Pool(Protocol):
    """Agents, one per endpoint, identified by index. Failures of an endpoint are returned as responses;
    `max_tokens=None` uses the pool's own limit. A sub-pool numbers its agents from 0."""

    @property
    def size(self) -> int: ...

    @property
    def endpoints(self) -> Sequence[Endpoint]: ...

    @property
    def max_tokens_aggregation(self) -> int:
        """Limit of an answer that merges others."""
        ...

    async def post(self, agent_index: int, prompt: str, max_tokens: int | None = None) -> Response:
        """Sends a prompt to one agent."""
        ...

    async def post_batch(
        self, agent_index: int, prompts: Sequence[str], max_tokens: int | None = None
    ) -> list[Response]:
        """Sends many prompts to one agent. Responses are in the order of the prompts."""
        ...

    async def send_all(self, prompts: Sequence[str], max_tokens: int | None = None) -> list[Response]:
        """Sends each prompt in its own request, to any agent. Responses are in the order of the prompts."""
        ...

    async def send_all_batched(
        self, prompts: Sequence[str], max_tokens: int | None = None, *, on_response: OnResponse | None = None
    ) -> list[Response]:
        """Like `send_all`, with many prompts per request if the server accepts that. `on_response`: called once for
        each response, when it is complete."""
        ...

    async def broadcast_prompt(self, prompt: str, max_tokens: int | None = None) -> list[Response]:
        """Sends the same prompt to every agent. Responses are in the order of the agents."""
        ...

    def by_tag(self, key: str, value: str | None = None) -> "Pool": ...

    def select(self, indices: Sequence[int]) -> "Pool": ...

    def slice(self, start: int, stop: int) -> "Pool": ...

    def sample(self, n: int) -> "Pool": ...
