"""Keep-warm: a context that its agent will need again is touched before the server throws it out."""

import asyncio
from dataclasses import dataclass, replace

from ..core.errors import BackendError
from ..core.interfaces import Backend
from ..core.load import Load
from ..core.requests import Request
from ..core.scheduling import Warmth
from ..schedule.admission import Rank
from ..schedule.hints import WarmthPlan
from .replies import collect
from .slots import Slots

_LAST = Rank(is_fresh=True, turns_left=1_000_000)
_LOWEST = -99
"""Below every turn of the run, above those of runs with a lower priority."""
_TIMEOUT = 30.0


@dataclass(slots=True)
class _Touched:
    request: Request
    task: "asyncio.Task[None] | None" = None


class KeepWarm:
    """Touches are requests for one token on the exact prompt of the agent's last turn. They are called off when its
    tools return first, and a touch that fails changes nothing."""

    def __init__(self, backend: Backend, slots: Slots, kv_tokens: int) -> None:
        self._backend = backend
        self._slots = slots
        self._plan = WarmthPlan(kv_tokens)
        self._waiting: dict[str, _Touched] = {}
        self.warmth = Warmth()

    def waits(self, agent: str, request: Request, tokens: int, back_at: float | None) -> None:
        self._waiting[agent] = _Touched(request)
        self._plan.waits(agent, tokens, back_at)

    def returned(self, agent: str) -> None:
        self._plan.returned(agent)
        waiting = self._waiting.pop(agent, None)
        if waiting is not None and waiting.task is not None:
            waiting.task.cancel()

    def looked(self, load: Load, speed: float | None, *, has_room: bool) -> None:
        for agent in self._plan.looked(load, asyncio.get_running_loop().time(), speed, has_room=has_room):
            waiting = self._waiting[agent]
            if waiting.task is None and not self._slots.is_full:
                waiting.task = asyncio.get_running_loop().create_task(self._touch(agent, waiting))

    async def aclose(self) -> None:
        tasks = [waiting.task for waiting in self._waiting.values() if waiting.task is not None]
        for agent in list(self._waiting):
            self.returned(agent)
        if tasks:
            await asyncio.wait(tasks)

    async def _touch(self, agent: str, waiting: _Touched) -> None:
        asked = waiting.request
        sampling = replace(asked.sampling, max_tokens=1)
        request = replace(asked, sampling=sampling, answer_schema=None, stream=False, priority=asked.priority + _LOWEST)
        slot = await self._slots.acquire(_LAST)
        try:
            async with asyncio.timeout(_TIMEOUT), self._backend.stream(request) as deltas:
                reply, _ = await collect(deltas, lambda: 0.0)
        except (BackendError, TimeoutError):
            return
        finally:
            waiting.task = None
            slot.release()
        usage, so_far = reply.usage, self.warmth
        self._plan.touched(agent)
        self.warmth = Warmth(
            so_far.touches + 1,
            so_far.tokens + usage.input - usage.cached + usage.output,
            so_far.hits + (2 * usage.cached >= usage.input),
        )
