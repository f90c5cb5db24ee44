"""What the patterns need of a pool."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..backends.hostfile import Endpoint
from .response import Response

OnResponse = Callable[[Response], Any]


class Pool(Protocol):
    """Agents, each at an endpoint of its own and known by its number. What goes wrong at an endpoint is told in a
    response; `max_tokens` of None leaves the pool's own limit. Sub-pools count their agents anew, from 0."""

    @property
    def size(self) -> int: ...

    @property
    def endpoints(self) -> Sequence[Endpoint]: ...

    @property
    def max_tokens_aggregation(self) -> int:
        """For answers that stand for many."""
        ...

    async def post(self, agent_index: int, prompt: str, max_tokens: int | None = None) -> Response:
        """Asks this agent."""
        ...

    async def post_batch(
        self, agent_index: int, prompts: Sequence[str], max_tokens: int | None = None
    ) -> list[Response]:
        """Asks this agent all of them, in the order of which the responses come."""
        ...

    async def send_all(self, prompts: Sequence[str], max_tokens: int | None = None) -> list[Response]:
        """Each prompt as a request of its own, to whoever is done first. Responses are in the order of the prompts."""
        ...

    async def send_all_batched(
        self, prompts: Sequence[str], max_tokens: int | None = None, *, on_response: OnResponse | None = None
    ) -> list[Response]:
        """As `send_all`, with many prompts in one request where the server takes that. `on_response` is told each
        response once, as soon as it is there."""
        ...

    async def broadcast_prompt(self, prompt: str, max_tokens: int | None = None) -> list[Response]:
        """The same to every agent. Responses are in the order of the agents."""
        ...

    def by_tag(self, key: str, value: str | None = None) -> "Pool": ...

    def select(self, indices: Sequence[int]) -> "Pool": ...

    def slice(self, start: int, stop: int) -> "Pool": ...

    def sample(self, n: int) -> "Pool": ...
