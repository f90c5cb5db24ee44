"""Renderer of the additions after turns, for several agents in one exchange with the server.

An exchange takes a fifth of the client's CPU time of a whole turn, however little it carries. Turns that arrive during
an exchange wait, and are rendered together as one conversation, from which each takes its part."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

from ..core.messages import Message, ToolResults
from ..core.requests import Request
from .continuation import Continuation, LastTurn, addition, count_ids, joint_additions, joint_request

Render = Callable[[Request], Awaitable[bytes | None]]

_MAX_JOINT = 32
_MAX_TEXT = 65_536
"""Maximum characters of tool results in an exchange of several turns."""
_CHECKED = 4
"""Number of turns whose parts are compared with separate renderings before parts are used."""
_MAX_GROUPS = 64
"""Limited, because programs have a prompt of their own for each agent."""


class _Then(Enum):
    """Next action of a turn that has waited and still has no ids."""

    LEAD = "render for those who wait"
    ALONE = "render for itself"


_Outcome = bytes | _Then | None
_Waiting = tuple[Continuation, "asyncio.Future[_Outcome] | None"]


class JointRenderer:
    """Renders the additions after turns. `render`: makes the server render a request."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._groups: dict[tuple[object, ...], _Group] = {}

    async def addition(self, last: LastTurn, request: Request) -> bytes | None:
        """The ids after the turn in the prompt of the request; None if they cannot be found."""
        if not last.end_id:
            return None
        turn, group = (last, request), self._group(last, request)
        outcome: _Outcome = await group.wait(turn) if group.is_busy else _Then.LEAD
        if outcome is _Then.LEAD and group.may_join:
            outcome = await self._lead(group, turn)
        return await self._alone(turn) if isinstance(outcome, _Then) else outcome

    async def _lead(self, group: "_Group", turn: Continuation) -> _Outcome:
        batch = group.take(turn)
        outcomes: Sequence[_Outcome] = [_Then.ALONE] * len(batch)
        try:
            outcomes = await self._outcomes(group, [each for each, _ in batch])
        finally:
            group.release(batch, outcomes)
        return outcomes[0]

    async def _outcomes(self, group: "_Group", turns: Sequence[Continuation]) -> Sequence[_Outcome]:
        if len(turns) == 1:
            found = await self._alone(turns[0])
            group.learn(turns[0], found)
            return [found]
        parts = await self._together(turns, group.ends_in_each)
        if group.is_checked:
            return parts or [_Then.ALONE] * len(turns)
        alone = [await self._alone(turn) for turn in turns]
        group.is_checked, group.may_join = True, parts == alone
        return alone

    async def _alone(self, turn: Continuation) -> bytes | None:
        last, request = turn
        rendered = await self._render(request)
        return None if rendered is None else addition(last, rendered)

    async def _together(self, turns: Sequence[Continuation], ends_in_each: int) -> list[bytes] | None:
        rendered = await self._render(joint_request(turns))
        return None if rendered is None else joint_additions(turns[0][0], rendered, len(turns), ends_in_each)

    def _group(self, last: LastTurn, request: Request) -> "_Group":
        shape = tuple(map(_shape, request.messages[len(last.messages) :]))
        key = (id(request.prompt), id(request.sampling), request.model, last.end_id, shape)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(request)
            if len(self._groups) > _MAX_GROUPS:
                del self._groups[next(iter(self._groups))]
        return group


class _Group:
    """Turns whose additions have the same form: the same prompt and the same kinds of messages."""

    def __init__(self, request: Request) -> None:
        self._known_by = request.prompt, request.sampling
        """Kept alive, so that their object ids are not reused."""
        self._waiting: deque[_Waiting] = deque()
        self.is_busy = False
        """Whether one of its turns is being rendered."""
        self.may_join = True
        self.is_checked = False
        self.ends_in_each = 0
        """Number of occurrences, in an addition, of the id that ends a turn; 0 until the first addition is known."""

    async def wait(self, turn: Continuation) -> _Outcome:
        future: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, future))
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.result() is _Then.LEAD:
                self._pass_on()
            raise

    def take(self, first: Continuation) -> list[_Waiting]:
        """The turns to render in one exchange."""
        self.is_busy = True
        batch: list[_Waiting] = [(first, None)]
        most = 1 if not self.ends_in_each else _MAX_JOINT if self.is_checked else _CHECKED
        text = _text_length(first)
        while self._waiting and len(batch) < most:
            turn, future = self._waiting[0]
            text += _text_length(turn)
            if text > _MAX_TEXT:
                break
            self._waiting.popleft()
            if future is not None and not future.done():
                batch.append((turn, future))
        return batch

    def release(self, batch: Sequence[_Waiting], outcomes: Sequence[_Outcome]) -> None:
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            if future is not None and not future.done():
                future.set_result(outcome)
        self._pass_on()

    def learn(self, turn: Continuation, found: bytes | None) -> None:
        """Learns from an addition that was rendered alone. An addition without the id that ends a turn has no end in a
        joint rendering."""
        if found is not None and not self.ends_in_each:
            self.ends_in_each = count_ids(found, turn[0].end_id)
            self.may_join = self.ends_in_each > 0

    def _pass_on(self) -> None:
        """Makes the next waiting turn lead, or lets each turn render for itself."""
        self.is_busy = False
        while self._waiting and not self.is_busy:
            _, future = self._waiting.popleft()
            if future is not None and not future.done():
                future.set_result(_Then.LEAD if self.may_join else _Then.ALONE)
                self.is_busy = self.may_join


def _shape(message: Message) -> tuple[type[Message], int]:
    return type(message), len(message.results) if isinstance(message, ToolResults) else 0


def _text_length(turn: Continuation) -> int:
    last, request = turn
    added = request.messages[len(last.messages) :]
    return sum(len(result.content) for each in added if isinstance(each, ToolResults) for result in each.results)
