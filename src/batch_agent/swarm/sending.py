"""Many prompts to several endpoints, in lists: nobody waits for a slow one, and a prompt that no server takes costs the
others nothing."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil

from ..backends.dialects.completions_answers import Piece, PromptDone, PromptEvent
from ..backends.fleet import Fleet
from ..core.errors import BackendError, ErrorKind
from ..core.requests import NO_USAGE
from .lanes import Asked, Batch, Lane, lane_for, to_take_back
from .response import Response

_TICK = 0.2
_LISTS_EACH = 4
"""Lists of an endpoint: what it turns out to be slow with can be taken back in so many parts."""
_WORTH_LISTS = 8
"""Prompts in a list that is worth to be split further."""
_MOST_CHARS = 400_000
"""Characters in a list: a server reads all of it before it begins."""
_MOST_FAILURES = 3
"""Connections that may break under a prompt before it is given up."""
_REFUSED = frozenset({ErrorKind.BAD_REQUEST, ErrorKind.CONTEXT_OVERFLOW})
"""The server has read the list, and would say the same again."""
_MAYBE_THEIRS = frozenset({ErrorKind.SERVER, ErrorKind.CONNECTION, ErrorKind.TURN_TIMEOUT, ErrorKind.RATE_LIMITED})
"""What prompts may have brought about; not that nobody is there."""
_PAUSE = 0.5
_LONGEST_PAUSE = 30.0

Hear = Callable[[PromptEvent], None]
AskList = Callable[[int, Sequence[str], Hear], Awaitable[None]]
"""Sends a list to an endpoint, by its place. Raises BackendError."""


@dataclass(frozen=True, slots=True)
class Orders:
    """How much is sent at once."""

    most: int = 256
    """Prompts that an endpoint has under way."""
    longest: int = 128
    """Prompts in a list; 1: each goes alone."""
    patience: float = 30.0
    """Seconds for which endpoints are waited for when all are down."""


class Sending:
    """One call of a pool, from its prompts to the last response."""

    def __init__(
        self,
        fleet: Fleet,
        lanes: Sequence[Lane],
        places: Sequence[int],
        ask: AskList,
        orders: Orders,
        deliver: Callable[[Response], None],
    ) -> None:
        """`places`: of the endpoints that may be asked."""
        self._fleet = fleet
        self._lanes = lanes
        self._places = places
        self._ask_list = ask
        self._orders = orders
        self._deliver = deliver
        self._queue: deque[Asked] = deque()
        self._unanswered = 0
        self._answered_chars = 0
        self._answered = 0
        self._list_size = 1
        self._changed = asyncio.Event()
        self._group: asyncio.TaskGroup
        self._down_since: float | None = None
        self._looked = 0.0

    async def run(self, asked: Sequence[Asked]) -> None:
        """Returns when each has its response."""
        self._queue = deque(asked)
        self._unanswered = len(asked)
        self._list_size = self._fair_list(len(asked))
        async with asyncio.TaskGroup() as self._group:
            while self._unanswered:
                self._fill()
                self._give_up_if_down()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_TICK):
                        await self._changed.wait()
                self._changed.clear()
                self._take_back()

    def _fair_list(self, count: int) -> int:
        each = ceil(count / max(1, len(self._places)))
        parts = _LISTS_EACH if each >= _LISTS_EACH * _WORTH_LISTS else 2 if each >= 2 * _WORTH_LISTS else 1
        return max(1, min(self._orders.longest, ceil(each / parts)))

    def _fill(self) -> None:
        while self._queue:
            place = self._free(min(self._list_size, len(self._queue)))
            if place is None:
                return
            batch = Batch(place, self._next_list())
            self._lanes[place].began(batch, _now())
            self._group.create_task(self._work(batch))

    def _free(self, count: int) -> int | None:
        usable = [place for place in self._fleet.routing.usable(_now()) if place in self._places]
        return lane_for(self._lanes, usable, count, self._orders.most)

    def _next_list(self) -> list[Asked]:
        """One that a connection broke under twice goes alone: it may be why."""
        taken, chars = [self._queue.popleft()], 0
        while self._queue and len(taken) < self._list_size and taken[0].failures < 2:
            chars += len(self._queue[0].prompt)
            if chars > _MOST_CHARS or self._queue[0].failures >= 2:
                break
            taken.append(self._queue.popleft())
        return taken

    async def _work(self, batch: Batch) -> None:
        """A list, and whatever it takes until each of its prompts is answered, or in line again."""
        error = await self._send(batch)
        if error is not None and error.kind in _REFUSED and not batch.is_taken_back:
            await self._isolate(batch.left, error)
        elif error is not None:
            self._try_again(batch, error)

    def _try_again(self, batch: Batch, error: BackendError) -> None:
        """After a connection that broke, or a list that was taken back."""
        if batch.is_taken_back:
            self._again(batch.left, moves=1)
            return
        is_theirs = error.kind in _MAYBE_THEIRS
        hopeless = [each for each in batch.left if is_theirs and each.failures + 1 >= _MOST_FAILURES]
        self._again([each for each in batch.left if each not in hopeless], failures=int(is_theirs))
        for each in hopeless:
            self._fail(each, error, batch.place)

    async def _isolate(self, suspects: list[Asked], error: BackendError) -> None:
        """Finds the prompt for which a list was refused, with one request for each halving. Those that turn out not to
        be it are answered, or in line again."""
        place = -1
        while len(suspects) > 1:
            half, rest = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
            usable = self._free(len(half))
            if usable is None:
                self._again(suspects, failures=1)
                return
            place = usable
            batch = Batch(place, half)
            self._lanes[place].began(batch, _now())
            failed = await self._refusal(batch)
            if failed is None:
                suspects = rest
            elif failed.kind in _REFUSED:
                self._again(rest)
                self._changed.set()
                suspects, error = half, failed
            else:
                self._again([*batch.left, *rest], failures=1)
                return
        self._fail(suspects[0], error, place)

    async def _refusal(self, batch: Batch) -> BackendError | None:
        """What is wrong with a list. Nothing as soon as the server begins to answer: what comes after that is seen to
        on the side."""
        sending = self._group.create_task(self._send(batch))
        begins = self._group.create_task(batch.accepted.wait())
        await asyncio.wait([sending, begins], return_when=asyncio.FIRST_COMPLETED)
        begins.cancel()
        if sending.done():
            return sending.result()
        self._group.create_task(self._see_to(batch, sending))
        return None

    async def _see_to(self, batch: Batch, sending: "asyncio.Task[BackendError | None]") -> None:
        error = await sending
        if error is not None:
            self._try_again(batch, error)

    async def _send(self, batch: Batch) -> BackendError | None:
        """One request. What went wrong, if anything; who is not answered is still open in the batch."""
        fleet, lane = self._fleet, self._lanes[batch.place]
        ticket = fleet.routing.sent(batch.place, len(batch.asked), _now())
        try:
            async with asyncio.timeout(None) as batch.scope:
                await self._ask_list(batch.place, [each.prompt for each in batch.asked], self._hearing(batch))
        except BackendError as error:
            fleet.close(ticket, error)
            fleet.miss(batch.place, error)
            if error.kind is ErrorKind.RATE_LIMITED:
                await asyncio.sleep(min(error.retry_after or _PAUSE, _LONGEST_PAUSE))
            return error
        except TimeoutError:
            fleet.routing.left(ticket, _now())
            return BackendError(ErrorKind.CONNECTION, "It was taken back, to be done elsewhere.")
        else:
            fleet.routing.done(ticket, _now())
            fleet.greet(batch.place)
            return None
        finally:
            fleet.routing.left(ticket, _now())
            lane.ended(batch)
            self._changed.set()

    def _hearing(self, batch: Batch) -> Hear:
        lane = self._lanes[batch.place]

        def hear(event: PromptEvent) -> None:
            asked = batch.asked[event.index]
            batch.accepted.set()
            match event:
                case Piece(_, text):
                    asked.received.append(text)
                    asked.chars += len(text)
                    lane.heard(len(text), _now())
                case PromptDone(index):
                    lane.answered(batch, index)
                    self._answer(asked, event, batch.place)

        return hear

    def _answer(self, asked: Asked, done: PromptDone, place: int) -> None:
        self._answered += 1
        self._answered_chars += asked.chars
        self._hand_over(response_of(asked, done, self._fleet.members[place].url, place))

    def _fail(self, asked: Asked, error: BackendError, place: int) -> None:
        url = self._fleet.members[place].url if place >= 0 else ""
        self._hand_over(Response(asked.index, "", str(error), error.kind, endpoint=url, agent_index=place))

    def _hand_over(self, response: Response) -> None:
        self._unanswered -= 1
        self._changed.set()
        self._deliver(response)

    def _again(self, asked: Sequence[Asked], *, failures: int = 0, moves: int = 0) -> None:
        """They are next in line."""
        for each in reversed(asked):
            each.begin_anew()
            each.failures += failures
            each.moves += moves
            self._queue.appendleft(each)

    def _take_back(self) -> None:
        """When nothing is in line any more, who is done helps those who are slow."""
        now = _now()
        if self._queue or self._orders.longest == 1 or now < self._looked + _TICK:
            return
        self._looked = now
        usable = [place for place in self._fleet.routing.usable(_now()) if place in self._places]
        batch = to_take_back(self._lanes, usable, self._usual_chars, _now())
        if batch is not None and batch.scope is not None:
            batch.is_taken_back = True
            batch.scope.reschedule(_now())

    @property
    def _usual_chars(self) -> float:
        """Of an answer. Those that are there first are the short ones: the others get at least as long as the longest
        is by now, and as much again."""
        answered = self._answered_chars / self._answered if self._answered else 0.0
        opened = (each.chars for lane in self._lanes for batch in lane.batches for each in batch.left)
        return max(1.0, answered, 2.0 * max(opened, default=0))

    def _give_up_if_down(self) -> None:
        now = _now()
        if not all(self._fleet.members[place].is_missed for place in self._places):
            self._down_since = None
            return
        self._down_since = now if self._down_since is None else self._down_since
        if now - self._down_since >= self._orders.patience:
            error = self._fleet.nobody(())
            while self._queue:
                self._fail(self._queue.popleft(), error, -1)


def response_of(asked: Asked, done: PromptDone, url: str, place: int) -> Response:
    """Of an answer that has come to its end."""
    is_cut = done.finish == "length"
    return Response(
        asked.index,
        "".join(asked.received),
        "The answer was cut off at max_tokens." if is_cut else None,
        ErrorKind.TRUNCATED if is_cut else None,
        done.finish,
        done.usage or NO_USAGE,
        url,
        place,
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
