"""Many prompts to several endpoints, in lists: nobody waits for a slow one, and a prompt that no server takes costs the
others nothing."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from .. import aio
from ..backends.dialects.completions.decoder import PromptDelta, PromptEvent, PromptFinished
from ..backends.endpoint_pool import EndpointPool
from ..backends.failover import EndpointRejection
from ..core.errors import BackendError, ErrorKind
from ..schedule.retry import is_overload_refusal
from ..schedule.routing import Ticket
from .endpoint_state import EndpointState, PendingPrompt, PromptBatch, choose_endpoint, find_stragglers, pause
from .failure_policy import TAKEN_BACK, are_next, blames_endpoint, is_refusal, record_failure
from .prompt_queue import DispatchOptions, PromptQueue
from .prompt_transport import AskList, OnPrompt
from .response import Response, response_of
from .second_opinion import SecondOpinion

_TICK = 0.2


class Dispatcher:
    """One call of a pool, from its prompts to the last response."""

    def __init__(
        self,
        fleet: EndpointPool,
        lanes: Sequence[EndpointState],
        places: Sequence[int],
        ask: AskList,
        orders: DispatchOptions,
        deliver: Callable[[Response], None],
    ) -> None:
        """`places`: of the endpoints that may be asked."""
        self.fleet = fleet
        self._lanes = lanes
        self.places = places
        self._ask_list = ask
        self._orders = orders
        self._deliver = deliver
        self._line: PromptQueue
        self._under_way: dict[PromptBatch, Ticket] = {}
        self._unanswered = 0
        self._answered_chars = 0
        self._answered = 0
        self._changed = asyncio.Event()
        self.group: asyncio.TaskGroup
        self._down_since: float | None = None
        self._looked = 0.0
        self._second_opinion = SecondOpinion(self)
        self._slow: set[int] = set()
        """Endpoints that seemed to be, when it was last looked."""

    async def run(self, asked: Sequence[PendingPrompt]) -> None:
        """Returns when each has its response."""
        self._line = PromptQueue(asked, len(self.places), self._orders.longest)
        self._unanswered = len(asked)
        try:
            async with asyncio.TaskGroup() as self.group:
                while self._unanswered:
                    self._fill()
                    self._give_up_if_down()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_TICK):
                            await self._changed.wait()
                    self._changed.clear()
                    self._take_back()
        finally:
            for batch in list(self._under_way):  # called off before its request began
                self._ended(batch)

    def _fill(self) -> None:
        while self._line:
            size = self._line.size
            place = self.free(size, self._line.head.avoids)
            if place is None:
                return
            batch = self.begin(place, self._line.next_list(self._size_for(place, size)))
            self.group.create_task(self._work(batch))

    def _size_for(self, place: int, size: int) -> int:
        """An endpoint that may be down gets a single prompt."""
        lane = self._lanes[place]
        if not self.fleet.routing.is_up(place):
            return 1
        if lane.batches:
            size = min(size, max(1, self._orders.most - lane.unfinished))
        return self._line.size_at(place, size)

    def free(self, count: int, avoided: Collection[int] = (), most: int | None = None) -> int | None:
        """Where a list of so many prompts goes, if anybody may be given it."""
        usable = self._usable()
        others = [place for place in usable if place not in avoided]
        return choose_endpoint(self._lanes, others or usable, count, self._orders.most if most is None else most)

    def _usable(self) -> list[int]:
        now = aio.now()
        return [
            place
            for place in self.fleet.routing.available(now)
            if place in self.places and self._lanes[place].rests_until <= now
        ]

    def begin(self, place: int, asked: Sequence[PendingPrompt]) -> PromptBatch:
        """It counts from now on, not only when its request is sent: else all would go where one may."""
        batch = PromptBatch(place, asked, is_whole=self._orders.are_whole)
        self._under_way[batch] = self.fleet.routing.sent(place, len(asked), aio.now())
        self._lanes[place].began(batch, aio.now())
        return batch

    def ticket(self, batch: PromptBatch) -> Ticket:
        """Of one that is under way."""
        return self._under_way[batch]

    def _ended(self, batch: PromptBatch) -> None:
        self.fleet.routing.abandoned(self._under_way.pop(batch), aio.now())
        self._lanes[batch.place].ended(batch)
        self._changed.set()

    async def _work(self, batch: PromptBatch) -> None:
        """A list, and whatever it takes until each of its prompts is answered, or in line again."""
        ticket = self._under_way[batch]
        error = await self.send(batch)
        if error is None:
            return
        if not is_refusal(batch, error):
            self.try_again(batch, error)
        elif len(batch.asked) > 1:
            await self._second_opinion.on_list(batch.left, EndpointRejection(batch.place, ticket, error))
        else:
            self._second_opinion.on_prompt(batch.asked[0], EndpointRejection(batch.place, ticket, error))

    def try_again(self, batch: PromptBatch, error: BackendError) -> None:
        """After a request that broke off, or was taken back."""
        hopeless = record_failure(batch, error, self._lanes[batch.place], self.places)
        again = [each for each in batch.left if each not in hopeless]
        if is_overload_refusal(error) and again and self._lanes[batch.place].rests_until <= aio.now():
            self.group.create_task(self._wait(again, pause(max(each.waits for each in again) - 1, error.retry_after)))
        else:
            self.again(again, come_next=are_next(error))
        for each in hopeless:
            self.fail(each, error, batch.place)

    async def _wait(self, asked: Sequence[PendingPrompt], seconds: float) -> None:
        """The others go on meanwhile: the endpoint refused only these."""
        await asyncio.sleep(seconds)
        self.again(asked)

    async def send(self, batch: PromptBatch) -> BackendError | None:
        """One request. What went wrong, if anything; who is not answered is still open in the batch."""
        fleet, lane, ticket = self.fleet, self._lanes[batch.place], self._under_way[batch]
        try:
            async with asyncio.timeout(None) as batch.scope:
                await self._ask_list(batch.place, [each.prompt for each in batch.asked], self._hearing(batch))
        except BackendError as error:
            if blames_endpoint(batch, error, lane) or not fleet.routing.is_up(batch.place):
                fleet.close(ticket, batch.place, error, is_certain=error.kind is not ErrorKind.BAD_REQUEST)
                fleet.miss(batch.place, error)
            if is_overload_refusal(error):
                lane.refused(batch, error.retry_after, aio.now())
            return error
        except TimeoutError:
            return TAKEN_BACK
        else:
            fleet.routing.done(ticket, aio.now())
            fleet.greet(batch.place)
            return BackendError(ErrorKind.SERVER, "The answer has no end.") if batch.open else None
        finally:
            self._ended(batch)

    def _hearing(self, batch: PromptBatch) -> OnPrompt:
        lane = self._lanes[batch.place]

        def hear(event: PromptEvent) -> None:
            if event.index not in batch.open:
                return
            asked = batch.asked[event.index]
            if not batch.accepted.is_set():
                lane.accepted(batch, aio.now())
            match event:
                case PromptDelta(_, text):
                    asked.received.append(text)
                    asked.chars += len(text)
                    lane.heard(len(text), aio.now())
                case PromptFinished(index):
                    lane.answered(batch, index)
                    self._answer(asked, event, batch.place)

        return hear

    def _answer(self, asked: PendingPrompt, done: PromptFinished, place: int) -> None:
        for refusal in asked.refusals:  # by others
            self.fleet.blame(refusal)
        asked.refusals.clear()
        self._answered += 1
        self._answered_chars += asked.chars
        text, url = "".join(asked.received), self.fleet.members[place].url
        self._hand_over(response_of(asked.index, text, done.finish, done.usage, url, place))

    def fail(self, asked: PendingPrompt, error: BackendError, place: int) -> None:
        url = self.fleet.members[place].url if place >= 0 else ""
        self._hand_over(Response(asked.index, "", str(error), error.kind, endpoint=url, agent_index=place))

    def _hand_over(self, response: Response) -> None:
        self._unanswered -= 1
        self._changed.set()
        self._deliver(response)

    def again(self, asked: Sequence[PendingPrompt], *, come_next: bool = True) -> None:
        """They are in line again."""
        self._line.take_again(asked, come_next=come_next)
        self._changed.set()

    def _take_back(self) -> None:
        """When nothing is in line any more, who is done helps those who are slow."""
        now = aio.now()
        if self._line or now < self._looked + _TICK:
            return
        self._looked = now
        found = find_stragglers(self._lanes, self._usable(), self._under_way, self._usual_chars, now)
        slow, self._slow = self._slow, {batch.place for batch in found}
        for batch in found:  # of who seemed slow twice: answers come in bursts, and one may be half read
            if batch.place in slow and batch.scope is not None:
                batch.is_taken_back = True
                batch.scope.reschedule(now)

    @property
    def _usual_chars(self) -> float:
        """Of an answer. Those that are there first are the short ones: the others get at least as long as the longest
        is by now, and as much again while few are there."""
        answered = self._answered_chars / self._answered if self._answered else 0.0
        opened = (each.chars for lane in self._lanes for batch in lane.batches for each in batch.left)
        share = self._answered / max(1, self._answered + self._unanswered)
        return max(1.0, answered, (2.0 - share) * max(opened, default=0))

    def _give_up_if_down(self) -> None:
        now = aio.now()
        if any(self.fleet.routing.is_healthy(place) for place in self.places):
            self._down_since = None
            return
        self._down_since = now if self._down_since is None else self._down_since
        if now - self._down_since >= self._orders.patience:
            error = self.fleet.nobody((), self.places)
            for asked in self._line.dissolve():
                self.fail(asked, error, -1)
