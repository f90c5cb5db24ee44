"""Residency: the right to a place in the server's KV cache, from an agent's first turn to its end."""

import asyncio
import heapq
import itertools
import math
from types import TracebackType

from .. import aio
from ..core.requests import Usage
from ..schedule.estimators import ToolWaits
from ..schedule.fair_share import Demand
from ..schedule.kv_ledger import KvLedger
from ..schedule.slot_queue import Priority

_LEARNING = 0.2
_PUSHES_OUT = 8
"""Contexts that are lost for each one too many, as seen where a fifth too many are in the cache."""
_SHORTEST_IDLE = 0.05
_LONGEST_IDLE = 1.0


class Residency:
    """Lets agents in as the ledger says, those who come back before new ones. Waiting costs nothing; nobody polls."""

    def __init__(self, ledger: KvLedger, shared_chars: int, chars_per_token: float = 4.0) -> None:
        """`shared_chars`: of the prompt that all agents begin with; see `share` for others that begin otherwise."""
        self.ledger = ledger
        self.capacity = ledger.capacity
        """For all workers together; the ledger has this one's part of it."""
        ledger.shared = shared_chars / chars_per_token
        self._is_alone = True
        self._shared_chars = shared_chars
        self._chars_per_token = chars_per_token
        self._chars: dict[str, int] = {}
        self._waits = ToolWaits()
        self._turn_seconds = 0.0
        self._cycle: float | None = None
        """Seconds from one turn of an agent to its next."""
        self._queue: list[tuple[Priority, int, str, asyncio.Future[None]]] = []
        self._tickets = itertools.count()
        self._busy: set[str] = set()
        """Agents that have something to ask, or are asking it."""
        self._timer: asyncio.TimerHandle | None = None
        self._idle_since: float | None = None

    @property
    def is_crowded(self) -> bool:
        return bool(self._queue)

    def demand(self) -> Demand:
        """In tokens of the capacity."""
        return Demand(self.capacity, math.ceil(self.ledger.needs), self.is_crowded)

    def portion(self, most: int | None) -> None:
        """So much of the capacity is for the agents of this worker. None: all of it."""
        whole = self.capacity
        if whole is not None:
            self.ledger.resize(whole if most is None else min(most, whole))
        self._go_on()

    def shared(self, workers: int) -> None:
        """So many workers use the engine. Where there are several, none of them can tell that it is idle, and all would
        let somebody in at once."""
        self._is_alone = workers == 1
        self._go_on()

    def share(self, chars: int) -> None:
        """Agents of another kind come too: they have so many characters of prompt in common."""
        self._shared_chars += chars
        self.ledger.shared = self._shared_chars / self._chars_per_token

    async def enter(self, agent: str, chars: int, rank: Priority, shared_chars: int | None = None) -> None:
        """A new agent whose first prompt has so many characters of its own, after those that it shares: None where all
        begin alike."""
        self._chars[agent] = chars + (self._shared_chars if shared_chars is None else shared_chars)
        self.ledger.begin(agent, chars / self._chars_per_token)
        try:
            await self._let_in(agent, rank)
        except BaseException:
            self.leave(agent)
            raise

    async def back(self, agent: str, rank: Priority) -> None:
        """It wants its next turn."""
        await self._let_in(agent, rank)

    def heard(self, agent: str, usage: Usage, seconds: float, ttft: float | None) -> None:
        """It was answered."""
        chars = self._chars.pop(agent, None)
        if chars is not None and usage.input:
            self._learn(chars / usage.input)
        self._turn_seconds += _LEARNING * (seconds - self._turn_seconds)
        self.ledger.speed.heard(usage, seconds, ttft, aio.now())
        self.ledger.heard(agent, usage.input, usage.cached, usage.output, is_crowded=self.is_crowded)

    def on_lease(self, agent: str, tools: list[str]) -> "ResidencyLease":
        """It waits for these tools."""
        return ResidencyLease(self, agent, tools)

    def wait(self, agent: str, tools: list[str], now: float) -> float | None:
        """It begins to. When they are likely done, if that can be told."""
        likely = self._waits.likely(tools)
        self._busy.discard(agent)
        self.ledger.pause(agent, now, likely)
        self._go_on()
        return None if likely is None else now + likely

    def waited(self, tools: list[str], seconds: float) -> None:
        """They came back."""
        for tool in tools:
            self._waits.waited(tool, seconds)
        cycle = self._turn_seconds + seconds
        self._cycle = cycle if self._cycle is None else self._cycle + _LEARNING * (cycle - self._cycle)

    def leave(self, agent: str) -> None:
        self._chars.pop(agent, None)
        self._busy.discard(agent)
        self.ledger.leave(agent)
        self._go_on()

    def _learn(self, chars_per_token: float) -> None:
        self._chars_per_token += _LEARNING * (chars_per_token - self._chars_per_token)
        self.ledger.shared = self._shared_chars / self._chars_per_token

    async def _let_in(self, agent: str, rank: Priority) -> None:
        if self.ledger.is_resident(agent) or (not self._queue and self.ledger.let_in(agent, aio.now())):
            self._busy.add(agent)
            return
        granted = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (rank, next(self._tickets), agent, granted))
        self._go_on()
        try:
            await granted
        except asyncio.CancelledError:
            self._go_on()
            raise

    def _go_on(self) -> None:
        """Lets in who can be let in, and sets the clock for when that may change by itself."""
        if not self._queue and self._timer is None:
            return
        now = aio.now()
        while (first := self._first()) is not None and self.ledger.let_in(first, now, as_guest=self._is_idle(now)):
            heapq.heappop(self._queue)[3].set_result(None)
            self._busy.add(first)
        self._set_clock(now)

    def _first(self) -> str | None:
        """Who is next. Those who gave up stay in the queue until their turn comes."""
        while self._queue and self._queue[0][3].cancelled():
            heapq.heappop(self._queue)
        return self._queue[0][2] if self._queue else None

    def _is_idle(self, now: float) -> bool:
        """Whether the engine has so little to do that somebody is let in beyond the capacity."""
        if self._busy or not self._is_alone:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        if self._idle_since is not None and now >= self._idle_since + self._patience():
            return True
        return self._is_alone and self._can_take_guests()

    def _can_take_guests(self) -> bool:
        """Whether the engine has so little to do that one more agent brings more than it costs: what it pushes out of
        the cache is computed again in each of its turns, and everybody in flight waits for that."""
        speed, cycle = self.ledger.speed.tokens_per_second, self._cycle
        if speed is None or cycle is None or not self.ledger.residents:
            return False
        again = self.ledger.held / self.ledger.residents / speed
        return len(self._busy) * again * _PUSHES_OUT < cycle

    def _patience(self) -> float:
        """For how long the engine may have nothing to do before somebody is let in beyond the capacity: about as long
        as it takes to compute again what that pushes out."""
        speed = self.ledger.speed.tokens_per_second
        if speed is None or not self.ledger.residents:
            return _SHORTEST_IDLE
        return min(_LONGEST_IDLE, max(_SHORTEST_IDLE, self.ledger.held / self.ledger.residents / speed))

    def _set_clock(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._queue:
            self._idle_since = None
            return
        ends = self.ledger.next_lease_end()
        if self._idle_since is not None:
            ends = min(ends or float("inf"), self._idle_since + self._patience())
        if ends is not None:
            self._timer = asyncio.get_running_loop().call_at(max(ends, now), self._go_on)


class ResidencyLease:
    """An agent's place while it waits for its tools: `with residency.on_lease(agent, tools) as back_at: ...`, where
    `back_at` is when they are likely done, if that can be told."""

    __slots__ = ("_agent", "_began", "_residency", "_tools")

    def __init__(self, residency: Residency, agent: str, tools: list[str]) -> None:
        self._residency = residency
        self._agent = agent
        self._tools = tools
        self._began = 0.0

    def __enter__(self) -> float | None:
        self._began = aio.now()
        return self._residency.wait(self._agent, self._tools, self._began)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._residency.waited(self._tools, aio.now() - self._began)
        finally:
            self._residency.ledger.resume(self._agent)
