"""Prefix warm-up: one request before the first agents, so that they find the shared prefix in the server's cache."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ..core.agent_config import AgentConfig
from ..core.errors import BackendError
from ..core.messages import User
from ..core.protocols.backend import Backend
from ..core.requests import Request

_TIMEOUT = 60.0


class PrefixWarmup:
    """Warm-up request that the first waiter sends, and all others wait for. A failure only costs cache hits."""

    def __init__(
        self,
        backend: Backend,
        config: AgentConfig,
        notify: Callable[[str], None],
        timeout: float | None = None,
        lead: str = "",
    ) -> None:
        """`lead`: the text with which every task begins."""
        self._lead = lead
        self._timeout = _TIMEOUT if timeout is None else min(_TIMEOUT, timeout)
        self._backend = backend
        self._config = config
        self._notify = notify
        self._lock = asyncio.Lock()
        self.is_done = False

    async def wait(self) -> bool:
        """Waits for the request. Returns whether this call sent it."""
        async with self._lock:
            if self.is_done:
                return False
            await self._warm()
            self.is_done = True
            return True

    async def _warm(self) -> None:
        config = self._config
        sampling = replace(config.sampling, max_tokens=1)
        message = User(f"{self._lead}Hi", len(self._lead))
        request = Request(config.prompt, (message,), config.model, sampling, may_call_tools=False)
        try:
            async with asyncio.timeout(self._timeout), self._backend.stream(request) as deltas:
                async for _ in deltas:
                    pass
        except (BackendError, TimeoutError) as error:
            self._notify(f"The warm-up request for the shared prefix failed: {str(error) or 'no answer in time'}")
