"""One request ahead of the first agents, so that they find the shared prefix in the server's cache."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ..core.agent_config import AgentConfig
from ..core.errors import BackendError
from ..core.messages import User
from ..core.protocols import Backend
from ..core.requests import Request

_LIMIT = 60.0


class PrefixWarmup:
    """The first to ask sends the request; all others wait for its end. A failure changes nothing but the cost."""

    def __init__(
        self,
        backend: Backend,
        rules: AgentConfig,
        notify: Callable[[str], None],
        timeout: float | None = None,
        lead: str = "",
    ) -> None:
        """`lead`: the text with which every task begins."""
        self._lead = lead
        self._limit = _LIMIT if timeout is None else min(_LIMIT, timeout)
        self._backend = backend
        self._rules = rules
        self._notify = notify
        self._lock = asyncio.Lock()
        self.is_over = False

    async def wait(self) -> None:
        async with self._lock:
            if not self.is_over:
                await self._warm()
                self.is_over = True

    async def _warm(self) -> None:
        rules = self._rules
        sampling = replace(rules.sampling, max_tokens=1)
        said = User(f"{self._lead}Hi", len(self._lead))
        request = Request(rules.prompt, (said,), rules.model, sampling, may_call_tools=False)
        try:
            async with asyncio.timeout(self._limit), self._backend.stream(request) as deltas:
                async for _ in deltas:
                    pass
        except (BackendError, TimeoutError) as error:
            self._notify(f"The shared prefix could not be warmed: {str(error) or 'no answer in time'}")
