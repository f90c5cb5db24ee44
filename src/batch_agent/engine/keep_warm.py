"""Keep-warm requests and context hints, which keep the contexts of waiting agents in the server's cache."""

import asyncio
from dataclasses import replace

from .. import aio
from ..core.errors import BackendError
from ..core.messages import Prompt
from ..core.protocols.backend import Backend, ServerLoad, TakesHints
from ..core.requests import ContextHint, Request, Sampling, Usage
from ..core.run_reports import KeepWarmStats
from ..plan.compile import prefix_chars
from ..schedule.keep_warm_policy import KeepWarmPolicy
from ..schedule.slot_queue import Priority
from .reply_assembly import collect
from .slots import Slots

_LOWEST_PRIORITY = Priority(is_fresh=True, turns_left=1_000_000)
_PRIORITY_OFFSET = -50
"""Below every turn of the run, above those of runs with a lower priority."""
_TIMEOUT = 30.0
_MAX_IN_FLIGHT = 2
"""Keep-warm requests at a time. One whose context is already lost computes it again, and turns wait for that."""
_PAUSE_SECONDS = 30.0
"""Seconds without keep-warm requests after one that failed."""


class KeepWarm:
    """Sends requests for one token with the exact prompt of an agent's last turn, and cancels them if its tools return
    first. A failure pauses keep-warm requests, nothing else. Even a refusal is not reported to the slots, since the
    server may still accept the turns of the run."""

    def __init__(self, backend: Backend, slots: Slots, kv_tokens: int) -> None:
        self._backend = backend
        self._slots = slots
        self._policy = KeepWarmPolicy(kv_tokens)
        self._requests: dict[str, Request] = {}
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(_MAX_IN_FLIGHT)
        self._polls = 0
        self._missed_at = -1
        """The poll after which a keep-warm request found its context lost."""
        self._paused_until = 0.0
        self._reports_cache = False
        self._shared: tuple[Prompt, int] | None = None
        self._sampling: tuple[Sampling, Sampling] | None = None
        self.stats = KeepWarmStats()

    def on_wait(self, agent: str, request: Request, tokens: int, back_at: float | None) -> None:
        own = max(0, tokens - self._shared_tokens(request.prompt))
        self._requests[agent] = request
        self._policy.on_wait(agent, own, back_at)

    def on_return(self, agent: str) -> None:
        self._policy.on_return(agent)
        self._requests.pop(agent, None)
        if agent in self._in_flight:
            self._in_flight[agent].cancel()

    def on_load(self, load: ServerLoad, speed: float | None, *, has_room: bool) -> None:
        loop = asyncio.get_running_loop()
        due = self._policy.on_load(load, loop.time(), speed, has_room=has_room)
        self._polls += 1
        if loop.time() < self._paused_until:
            return
        for agent in due:
            if agent not in self._in_flight:
                task = self._in_flight[agent] = loop.create_task(self._keep(agent, self._polls), name=agent)
                task.add_done_callback(self._forget)

    def prefetch(self, agent: str, request: Request) -> None:
        """Sends a request for one token now, so that the server loads the agent's context from a slower tier."""
        if agent not in self._in_flight and aio.now() >= self._paused_until:
            task = asyncio.get_running_loop().create_task(self._send(agent, request), name=agent)
            self._in_flight[agent] = task
            task.add_done_callback(self._forget)

    async def aclose(self) -> None:
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        del self._in_flight[task.get_name()]

    async def _keep(self, agent: str, poll: int) -> None:
        """Sends a keep-warm request when one may be sent, unless an earlier one came too late: this one would too, and
        the next poll decides with what was learned."""
        async with self._room:
            if self._missed_at != poll and agent in self._requests:
                await self._send(agent, self._requests[agent], poll)

    async def _send(self, agent: str, request: Request, poll: int | None = None) -> None:
        if self._slots.is_full:
            return  # keep-warm requests do not wait for a slot
        slot = await self._slots.acquire(_LOWEST_PRIORITY)
        try:
            async with asyncio.timeout(_TIMEOUT), self._backend.stream(self._for_one_token(request)) as deltas:
                reply, _ = await collect(deltas, lambda: 0.0)
            slot.settle(reply.usage)
        except BackendError as error:
            self._pause(error.retry_after)
        except TimeoutError:
            self._pause()
        else:
            if not self._count(agent, reply.usage) and poll is not None:
                self._missed_at = poll
        finally:
            slot.release()

    def _pause(self, seconds: float | None = None) -> None:
        self._paused_until = aio.now() + max(_PAUSE_SECONDS, seconds or 0.0)

    def _count(self, agent: str, usage: Usage) -> bool:
        """Whether the context was still cached, or may have been."""
        self._reports_cache = self._reports_cache or usage.cached > 0
        computed = max(0, usage.input - usage.cached)
        was_cached = self._policy.on_reply(agent, computed if self._reports_cache else 0)
        is_hit = was_cached and self._reports_cache
        so_far = self.stats
        self.stats = KeepWarmStats(so_far.requests + 1, so_far.tokens + computed + usage.output, so_far.hits + is_hit)
        return was_cached

    def _for_one_token(self, request: Request) -> Request:
        """The schema of the answer stays: some servers put it into the prompt."""
        if self._sampling is None or self._sampling[0] is not request.sampling:
            # One object for all keep-warm requests: dialects cache its encoding for the whole run.
            self._sampling = request.sampling, replace(request.sampling, max_tokens=1)
        return replace(request, sampling=self._sampling[1], stream=False, priority=request.priority + _PRIORITY_OFFSET)

    def _shared_tokens(self, prompt: Prompt) -> int:
        if self._shared is None or self._shared[0] is not prompt:
            self._shared = prompt, prefix_chars(prompt) // 4
        return self._shared[1]


_MIN_CORRECTION = 1.0
_CORRECTION_FACTOR = 1.5
"""An estimate that was sent with a request is corrected if the tools take this many times longer or shorter."""
_PREFETCH_LEAD = 2.0
"""Seconds before the tools are expected to return."""
_MIN_PREFETCH_WAIT = 60.0
"""During shorter waits a context stays on the device: the vLLM plugin pins it for as long."""


class ContextHints:
    """Hints to the server about when it will need the contexts of waiting agents. Each request carries the typical tool
    wait; a hint during the wait corrects it if the tools that were called differ."""

    def __init__(self, server: TakesHints | None = None, keep_warm: KeepWarm | None = None) -> None:
        """`server`: receives hints without a request; None: hints only go with requests. `keep_warm`: brings a context
        back from a slower tier before its agent returns; None: there is no slower tier."""
        self._server = server
        self._keep_warm = keep_warm
        self._hints: dict[str, ContextHint] = {}
        """The hint that went with each agent's last request."""
        self._corrections: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def attach(self, request: Request, hint: ContextHint) -> Request:
        self._hints[request.agent] = hint
        return replace(request, hint=hint)

    def on_wait(self, agent: str, request: Request, tokens: int, back_at: float | None) -> None:
        hint = self._hints.get(agent)
        if hint is None or back_at is None:
            return
        loop = asyncio.get_running_loop()
        expected = replace(hint, next_use=back_at - loop.time(), is_last=False)
        if self._server is not None and _needs_correction(hint, expected) and agent not in self._corrections:
            task = loop.create_task(self._server.hint(expected), name=agent)
            self._corrections[agent] = task
            task.add_done_callback(lambda _: self._corrections.pop(agent))
        if self._keep_warm is not None and back_at - loop.time() >= _MIN_PREFETCH_WAIT:
            soon = replace(request, hint=replace(expected, next_use=_PREFETCH_LEAD))
            self._timers[agent] = loop.call_at(back_at - _PREFETCH_LEAD, self._keep_warm.prefetch, agent, soon)

    def on_return(self, agent: str) -> None:
        if (timer := self._timers.pop(agent, None)) is not None:
            timer.cancel()
        if agent in self._corrections:
            self._corrections[agent].cancel()
        if self._keep_warm is not None:
            self._keep_warm.on_return(agent)

    def forget(self, agent: str) -> None:
        self._hints.pop(agent, None)

    async def aclose(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        tasks = list(self._corrections.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._keep_warm is not None:
            await self._keep_warm.aclose()


def _needs_correction(sent: ContextHint, expected: ContextHint) -> bool:
    if expected.next_use is None or sent.next_use is None:
        return expected.next_use is not None
    shorter, longer = sorted((sent.next_use, expected.next_use))
    return longer - shorter >= _MIN_CORRECTION and longer >= _CORRECTION_FACTOR * shorter
