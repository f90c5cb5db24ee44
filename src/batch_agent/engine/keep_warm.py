"""Keep-warm: a context that its agent will need again is touched before the server throws it out."""

import asyncio
from dataclasses import replace

from .. import aio
from ..core.errors import BackendError
from ..core.messages import Prompt
from ..core.protocols import Backend, ServerLoad
from ..core.requests import Request, Sampling, Usage
from ..core.run_reports import KeepWarmStats
from ..plan.compile import prefix_chars
from ..schedule.keep_warm_policy import KeepWarmPolicy
from ..schedule.slot_queue import Priority
from .reply_assembly import collect
from .slots import Slots

_LAST = Priority(is_fresh=True, turns_left=1_000_000)
_LOWEST = -50
"""Below every turn of the run, above those of runs with a lower priority."""
_TIMEOUT = 30.0
_PAUSE = 30.0
"""Seconds without touches after one that failed."""


class KeepWarm:
    """Touches are requests for one token on the exact prompt of the agent's last turn; what was answered to it is
    short, and goes. They are called off when its tools return first. One that fails changes nothing but that there
    are none for a while: not even a refusal is told to the slots, since the turns of the run may still be welcome."""

    def __init__(self, backend: Backend, slots: Slots, kv_tokens: int) -> None:
        self._backend = backend
        self._slots = slots
        self._plan = KeepWarmPolicy(kv_tokens)
        self._asked: dict[str, Request] = {}
        self._touching: dict[str, asyncio.Task[None]] = {}
        self._paused_until = 0.0
        self._reports_cache = False
        self._shared: tuple[Prompt, int] | None = None
        self._sampling: tuple[Sampling, Sampling] | None = None
        self.warmth = KeepWarmStats()

    def waits(self, agent: str, request: Request, tokens: int, back_at: float | None) -> None:
        own = max(0, tokens - self._shared_tokens(request.prompt))
        self._asked[agent] = request
        self._plan.waits(agent, own, back_at)

    def returned(self, agent: str) -> None:
        self._plan.returned(agent)
        self._asked.pop(agent, None)
        if agent in self._touching:
            self._touching[agent].cancel()

    def looked(self, load: ServerLoad, speed: float | None, *, has_room: bool) -> None:
        loop = asyncio.get_running_loop()
        due = self._plan.looked(load, loop.time(), speed, has_room=has_room)
        if loop.time() < self._paused_until:
            return
        for agent in due:
            if agent not in self._touching:
                touch = self._touching[agent] = loop.create_task(self._touch(agent, self._asked[agent]), name=agent)
                touch.add_done_callback(self._forget)

    async def aclose(self) -> None:
        touches = list(self._touching.values())
        for touch in touches:
            touch.cancel()
        if touches:
            await asyncio.wait(touches)

    def _forget(self, touch: "asyncio.Task[None]") -> None:
        del self._touching[touch.get_name()]

    async def _touch(self, agent: str, asked: Request) -> None:
        if self._slots.is_full:
            return  # a touch waits for nobody
        slot = await self._slots.acquire(_LAST)
        try:
            async with asyncio.timeout(_TIMEOUT), self._backend.stream(self._for_one_token(asked)) as deltas:
                reply, _ = await collect(deltas, lambda: 0.0)
        except BackendError as error:
            self._pause(error.retry_after)
        except TimeoutError:
            self._pause()
        else:
            self._count(agent, reply.usage)
        finally:
            slot.release()

    def _pause(self, seconds: float | None = None) -> None:
        self._paused_until = aio.now() + max(_PAUSE, seconds or 0.0)

    def _count(self, agent: str, usage: Usage) -> None:
        self._reports_cache = self._reports_cache or usage.cached > 0
        computed = max(0, usage.input - usage.cached)
        was_there = self._plan.touched(agent, computed if self._reports_cache else 0) and self._reports_cache
        so_far = self.warmth
        self.warmth = KeepWarmStats(
            so_far.requests + 1, so_far.tokens + computed + usage.output, so_far.hits + was_there
        )

    def _for_one_token(self, asked: Request) -> Request:
        """The answer's schema stays: some servers put it into the prompt."""
        if self._sampling is None or self._sampling[0] is not asked.sampling:
            # One for all touches: dialects keep what they make of it for as long as the run lasts.
            self._sampling = asked.sampling, replace(asked.sampling, max_tokens=1)
        return replace(asked, sampling=self._sampling[1], stream=False, priority=asked.priority + _LOWEST)

    def _shared_tokens(self, prompt: Prompt) -> int:
        if self._shared is None or self._shared[0] is not prompt:
            self._shared = prompt, prefix_chars(prompt) // 4
        return self._shared[1]
