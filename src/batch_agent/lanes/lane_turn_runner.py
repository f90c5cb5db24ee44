"""Turn runner that gives each request its lane, and moves a turn to a faster lane if necessary.

In the lane flex, a turn may be refused for lack of capacity, which is neither a failure of the agent nor overload by
it. The turn waits without a slot and tries again until its patience or the time to the deadline is used up. Then it is
sent in the lane standard. In the lane auto, each turn takes the cheapest lane that meets the deadline."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from ..agent.conversation import Generate
from ..aio import Deadlines, now
from ..core.agent_config import Job
from ..core.errors import BackendError, ErrorKind
from ..core.events import RequestRetried
from ..core.facts import Replied
from ..core.options.price import Price
from ..core.protocols.agent_executor import Slot
from ..core.requests import LANES, Lane, Request
from ..core.results import AgentResult
from ..core.run_reports import LaneUse
from ..engine.admission import AdmissionController
from ..engine.slots import Slots
from ..engine.turn_runner import LANE_FAILURES, BackendTurnRunner, OnAttempt, TurnRunner
from ..schedule.budget import Budget
from ..schedule.concurrency_limit import InflightLimit
from ..schedule.health import Health
from ..schedule.lanes.lane_choice import LanePaces, LaneSituation, choose_lane, latest_end
from ..schedule.retry import Backoff

_PATIENCE = 900.0
"""Seconds of refused flex requests after which turns move to the lane standard."""
_PROBE_SECONDS = 60.0
"""Seconds between probes that find out whether flex has capacity again."""
_BACKOFF = Backoff(1.0, 60.0)
_MAX_RETRY_AFTER = 300.0
_MAX_IN_BATCHES = 1_000_000
_MAX_OUTAGE = 3600.0
"""Seconds for which the lane batch may fail."""
_TYPICAL_TURNS = 3.0
"""Assumed turns of an agent with tools, until the first agents have ended."""
_WEIGHT = 0.1
"""Weight of the newest observation in a moving average."""

Deliver = Callable[[AgentResult], Awaitable[None]]


class LaneStats:
    """A run's observations of its lanes and agents."""

    def __init__(
        self, lanes: Sequence[Lane], agents: int | None = None, deadline: float | None = None, max_turns: int = 1
    ) -> None:
        """`lanes`: lanes to choose from, cheapest first. `agents`: None if their number is unknown. `deadline`: time on
        the loop's clock. `max_turns`: maximum turns of an agent whose answer is not repaired."""
        self.lanes = lanes
        self.max_turns = max_turns
        self.agents = agents
        self.deadline = deadline
        self.paces = LanePaces()
        self.requests: dict[Lane, int] = {}
        self.refused = 0
        """Number of flex requests that were refused for lack of capacity."""
        self._ended = 0
        self._turns: float | None = None

    def set_deadline(self, deadline: float | None) -> None:
        """Sets the deadline, on the loop's clock."""
        self.deadline = deadline

    def expect(self, agents: int) -> None:
        """Adds to the number of known agents."""
        if self.agents is not None:
            self.agents += agents

    @property
    def agents_left(self) -> int | None:
        return None if self.agents is None else max(1, self.agents - self._ended)

    def rounds_left(self, limit: int) -> float:
        """Number of times that one turn of every unfinished agent fills `limit` slots."""
        return (self.agents_left or 1) / max(1, limit)

    def turns_left(self, step: Generate) -> float:
        """Expected number of turns of an agent, including the next one."""
        typical = self._turns or _TYPICAL_TURNS
        return min(max(1.0, typical - step.request.turn), self.most_turns(step))

    def most_turns(self, step: Generate) -> int:
        """Maximum number of turns of an agent, including the next one."""
        return max(1, min(step.turns_left, self.max_turns))

    def answered(self, lane: Lane, seconds: float) -> None:
        self.requests[lane] = self.requests.get(lane, 0) + 1
        is_first = self.requests[lane] == 1
        pace = seconds if is_first else _mean(self.paces.of(lane), seconds)
        self.paces = replace(self.paces, **{lane: pace})

    def counting(self, deliver: Deliver) -> Deliver:
        """`deliver`, wrapped so that results are counted."""

        async def counted(result: AgentResult) -> None:
            self._ended += 1
            if result.turns:
                self._turns = result.turns if self._turns is None else _mean(self._turns, result.turns)
            await deliver(result)

        return counted

    def report(self) -> LaneUse:
        return LaneUse(tuple((lane, count) for lane in LANES if (count := self.requests.get(lane))), self.refused)


class SpendingOutlook:
    """Tells whether the budget in dollars has room for requests at the full price."""

    def __init__(self, budget: Budget, price: Price) -> None:
        self._budget = budget
        self._price = price
        self._usd_per_turn = 0.0
        """Mean cost of a turn at the full price."""

    def answered(self, fact: Replied) -> None:
        cost = self._price.of_request(fact.reply.usage.in_lane("standard"))
        self._usd_per_turn = _mean(self._usd_per_turn, cost) if self._usd_per_turn else cost

    def can_pay(self, lane: Lane, turns_left: float) -> bool:
        """Whether one turn at the full price leaves enough for all others, if they take this lane."""
        full, in_lane = self._usd_per_turn, self._price.in_lane(lane)
        share = in_lane.output / self._price.output if self._price.output else 1.0
        return self._budget.usd + full + (turns_left - 1) * full * share <= self._budget.limit.usd


class FlexCapacity:
    """Tells whether the lane flex has capacity, judged by the requests of all agents."""

    def __init__(self) -> None:
        self._dry_since: float | None = None
        self._next_probe = 0.0

    def accepted(self) -> None:
        self._dry_since = None

    def refused(self, since: float, at: float) -> None:
        """Notes that a request sent at `since` was refused or unanswered until `at`."""
        if self._dry_since is None:
            self._dry_since = since
        self._next_probe = at + _PROBE_SECONDS

    def is_dry(self, at: float) -> bool:
        """Whether all requests have been refused for a long time."""
        return self._dry_since is not None and at - self._dry_since >= _PATIENCE

    def is_worth_trying(self, at: float) -> bool:
        """Whether to send a flex request. False while flex is dry, except for an occasional probe, one at a time."""
        if not self.is_dry(at):
            return True
        if at < self._next_probe:
            return False
        self._next_probe = at + _PATIENCE
        return True


class LaneTurnRunner:
    """Runs each turn in its lane, with the turn runner of that lane."""

    def __init__(
        self,
        runners: Mapping[Lane, TurnRunner],
        stats: LaneStats,
        outlook: SpendingOutlook | None = None,
    ) -> None:
        """`outlook`: None for a run without a budget in dollars. The runners of the lanes standard and flex share an
        admission controller; that of the lane batch has its own."""
        self._runners = runners
        self._standard = runners["standard"]
        self._stats = stats
        self._outlook = outlook
        self._flex = FlexCapacity()
        self.submitted: Callable[[Request], object] | None = None
        """Tells whether an earlier process has submitted a request in a batch, in which case it is awaited there."""

    async def turn(
        self,
        job: Job,
        step: Generate,
        slot: Slot | None,
        task: "asyncio.Task[Any]",
        on_attempt: OnAttempt | None = None,
    ) -> Replied:
        left, refusals, refused_since = set[Lane](), 0, None
        while True:
            lane, sent = self._choose(step, left), now()
            try:
                fact = await self._run(lane, job, step, slot, task, on_attempt)
            except BackendError as error:
                if lane == "standard" or error.kind not in LANE_FAILURES:
                    raise
                slot, refusals, refused_since = None, refusals + 1, refused_since or now()
                if lane == "flex" and self._is_patient(step, error, sent, refused_since):
                    await self._back_off(job, step, error, refusals)
                else:
                    left.add(lane)
            else:
                self._stats.answered(lane, fact.seconds)
                if lane == "flex":
                    self._flex.accepted()
                if self._outlook is not None:
                    self._outlook.answered(fact)
                return fact

    def is_worth_a_wave(self) -> bool:
        """Whether to submit the requests that now wait for the lane batch. Not those of the last agents of a run, which
        are known only after all others have ended."""
        return choose_lane(self._situation(self._stats.lanes, 1.0, self._stats.max_turns)) == "batch"

    def _choose(self, step: Generate, left: Set[Lane]) -> Lane:
        """The lane of the next attempt. `left`: lanes that this turn has already left."""
        lanes = [lane for lane in self._stats.lanes if lane not in left]
        if "batch" in lanes and self._is_submitted(step):
            return "batch"
        if "flex" in lanes and not self._flex.is_worth_trying(now()) and self._can_leave_flex(step):
            lanes.remove("flex")
        return choose_lane(self._situation(lanes, self._stats.turns_left(step), self._stats.most_turns(step)))

    def _is_submitted(self, step: Generate) -> bool:
        """Whether an earlier process has submitted the request, and there is time to wait for its batch."""
        has_time = self._stats.deadline is None or self._until(step) is not None
        if not has_time or self.submitted is None:
            return False
        return bool(self.submitted(replace(step.request, lane="batch")))

    def _situation(self, lanes: Sequence[Lane], turns_left: float, most_turns: int) -> LaneSituation:
        """`turns_left`, `most_turns`: turns of the agent, as expected and at most."""
        stats = self._stats
        others = ((stats.agents_left or 1) - 1) * turns_left
        return LaneSituation(
            lanes,
            turns_left,
            stats.paces,
            None if stats.deadline is None else stats.deadline - now(),
            stats.rounds_left(self._standard.admission.slots.limit),
            stats.agents_left,
            stats.agents,
            self._outlook is None or self._outlook.can_pay(lanes[0], others + most_turns),
        )

    async def _run(
        self,
        lane: Lane,
        job: Job,
        step: Generate,
        slot: Slot | None,
        task: "asyncio.Task[Any]",
        on_attempt: OnAttempt | None,
    ) -> Replied:
        """Runs the turn in one lane. Raises BackendError, with a kind in LANE_FAILURES if another lane may have
        room."""
        if step.request.lane != lane:
            step = replace(step, request=replace(step.request, lane=lane))
        if lane == "standard":
            return await self._standard.turn(job, step, slot, task, on_attempt)
        runner = self._runners[lane]
        if slot is not None and runner.admission is not self._standard.admission:
            slot.release()
            slot = None
        may_leave = lane != "flex" or self._can_leave_flex(step)
        clock = asyncio.timeout_at(self._until(step) if may_leave else None)
        try:
            async with clock:
                return await runner.turn(job, step, slot, task, on_attempt)
        except TimeoutError as error:
            if not clock.expired():
                raise
            if slot is not None:
                slot.release()
            message = f"The deadline leaves no more time for the lane {lane}."
            raise BackendError(ErrorKind.TURN_TIMEOUT, message) from error

    def _until(self, step: Generate) -> float | None:
        """Time at which a turn has to leave a slower lane to end before the deadline; None if it never has to, or if
        that time has passed."""
        stats = self._stats
        if stats.deadline is None:
            return None
        rounds = stats.rounds_left(self._standard.admission.slots.limit)
        until = latest_end(stats.deadline, stats.turns_left(step), stats.paces, rounds)
        return until if until > now() else None

    def _is_patient(self, step: Generate, error: BackendError, sent: float, refused_since: float) -> bool:
        """Whether a turn that failed in lane flex should try again there."""
        at, is_refusal = now(), error.kind is ErrorKind.CAPACITY
        self._flex.refused(sent, at)
        self._stats.refused += is_refusal
        if not self._can_leave_flex(step):
            return True
        return is_refusal and at - refused_since < _PATIENCE and not self._flex.is_dry(at)

    def _can_leave_flex(self, step: Generate) -> bool:
        """Whether the budget has room for the turn at the full price."""
        turns, most = self._stats.turns_left(step), self._stats.most_turns(step)
        return self._situation(("flex", "standard"), turns, most).can_pay

    async def _back_off(self, job: Job, step: Generate, error: BackendError, refusals: int) -> None:
        """Waits without a slot after a refusal for lack of capacity."""
        delay = _BACKOFF.jittered(refusals - 1, random.random())  # noqa: S311
        delay = max(delay, min(error.retry_after or 0.0, _MAX_RETRY_AFTER))
        if (until := self._until(step)) is not None:
            delay = min(delay, until - now())
        if self._standard.events is not None:
            self._standard.events.emit(RequestRetried(job.key, error.kind, str(error), delay))
        await asyncio.sleep(delay)


def turns_in_batches(live: BackendTurnRunner) -> BackendTurnRunner:
    """The turn runner of the lane batch in a run that also uses other lanes. Requests that wait in files take no slots
    from them, and hours without an answer do not mean that the backend hangs."""
    admission = AdmissionController(Slots(InflightLimit(_MAX_IN_BATCHES, fixed=True)))
    return replace(live, admission=admission, health=Health(_MAX_OUTAGE), turn_time=Deadlines(None), warmup=None)


def _mean(before: float, newest: float) -> float:
    return before + _WEIGHT * (newest - before)
