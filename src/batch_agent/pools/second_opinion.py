"""Second opinions on what an endpoint refused: whether the endpoint is at fault, or one of the prompts, and which."""

import asyncio
import sys
from typing import TYPE_CHECKING

from ..backends.failover import EndpointRejection
from ..core.errors import BackendError, ErrorKind
from .endpoint_state import PendingPrompt, PromptBatch
from .failure_policy import is_refusal

if TYPE_CHECKING:
    from .dispatcher import Dispatcher


class SecondOpinion:
    """Of one call of a pool."""

    def __init__(self, sending: "Dispatcher") -> None:
        self._sending = sending

    async def on_list(self, asked: list[PendingPrompt], refusal: EndpointRejection) -> None:
        """Whether another endpoint takes a list that one has refused. If not, a prompt in it is to blame."""
        place = self._sending.free(len(asked), {refusal.place}, most=sys.maxsize)
        if place is None or place == refusal.place or refusal.error.kind is not ErrorKind.BAD_REQUEST:
            await self._isolate(asked)
            return
        batch = self._sending.begin(place, asked)
        failed = await self._refusal(batch)
        if failed is None:
            self._sending.fleet.blame(refusal)
        elif is_refusal(batch, failed):
            await self._isolate(batch.left)
        else:
            self._sending.try_again(batch, failed)

    def on_prompt(self, asked: PendingPrompt, refusal: EndpointRejection) -> None:
        """One endpoint may be wrong about a prompt, two are not."""
        places = {each.place for each in asked.refusals} | {refusal.place}
        is_counted_on = self._sending.fleet.routing.is_healthy
        others = [at for at in self._sending.places if at not in places and is_counted_on(at)]
        if len(places) > 1 or not others or refusal.error.kind is not ErrorKind.BAD_REQUEST:
            self._sending.fail(asked, refusal.error, refusal.place)
            return
        asked.refusals.append(refusal)
        asked.avoids.add(refusal.place)
        asked.company = 1
        self._sending.again([asked])

    async def _isolate(self, suspects: list[PendingPrompt]) -> None:
        """Finds the prompt for which a list was refused, with one request for each halving. Those that turn out not to
        be it are answered, or in line again."""
        cleared: list[PendingPrompt] = []
        refusal: EndpointRejection | None = None
        while len(suspects) > 1:
            half, rest = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
            place = self._sending.free(len(half), most=sys.maxsize)
            if place is None:
                cleared += suspects
                break
            batch = self._sending.begin(place, half)
            ticket = self._sending.ticket(batch)
            failed = await self._refusal(batch)
            if failed is None:
                suspects, refusal = rest, None
            elif is_refusal(batch, failed):
                cleared += rest
                suspects, refusal = half, EndpointRejection(place, ticket, failed)
            else:
                self._sending.try_again(batch, failed)
                cleared += rest
                break
        else:
            if refusal is not None:
                self.on_prompt(suspects[0], refusal)
            else:  # perhaps the server only minded that there were so many
                suspects[0].company = 1
                cleared += suspects
        self._sending.again(cleared)

    async def _refusal(self, batch: PromptBatch) -> BackendError | None:
        """What is wrong with a list. Nothing as soon as the server begins to answer: what comes after that is seen to
        on the side."""
        sending = self._sending.group.create_task(self._sending.send(batch))
        begins = self._sending.group.create_task(batch.accepted.wait())
        await asyncio.wait([sending, begins], return_when=asyncio.FIRST_COMPLETED)
        begins.cancel()
        if sending.done():
            return sending.result()
        self._sending.group.create_task(self._see_to(batch, sending))
        return None

    async def _see_to(self, batch: PromptBatch, sending: "asyncio.Task[BackendError | None]") -> None:
        error = await sending
        if error is not None:
            self._sending.try_again(batch, error)
