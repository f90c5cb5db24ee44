"""Lane choice: which service class the next request of an agent takes, under the deadline and the budget of the run.

A slower lane is safe if, after one request in it, the rest of the agent's turns still fits into the time that is left,
at the pace of the lane standard and with a margin. So agents begin in the cheapest lane and move to faster ones as the
deadline comes closer: batch, flex, standard. Without a deadline nothing is ever urgent. The last agents of a run, for
which a wave of the lane batch would keep everybody waiting, are promoted all the same: they cost little."""

from collections.abc import Sequence

from ...core.fast_dataclass import dataclass
from ...core.requests import Lane

_MARGIN = 2.0
"""How many times the expected time is kept for the rest of an agent's turns."""
_MIN_MARGIN = 30.0
"""Seconds that are kept at least: a start of the lane standard, a retry, the last tool call."""
_STRAGGLER_SHARE = 0.02
"""Share of the agents that are stragglers at the end of a run."""
_LONG_WAVE = 300.0
"""Seconds of a wave that are not worth a promotion."""


@dataclass(frozen=True, slots=True)
class LanePaces:
    """Expected seconds of a request in each lane. Of the lane batch: of a whole wave."""

    standard: float = 15.0
    flex: float = 60.0
    batch: float = 3600.0

    def of(self, lane: Lane) -> float:
        match lane:
            case "standard":
                return self.standard
            case "flex":
                return self.flex
            case "batch":
                return self.batch


@dataclass(frozen=True, slots=True)
class LaneSituation:
    """What is known when an agent is about to send a request."""

    lanes: Sequence[Lane]
    """Lanes to choose from, the cheapest first; the last one is the fastest."""
    turns_left: float
    """Expected turns of the agent, this one included."""
    paces: LanePaces
    time_left: float | None = None
    """Seconds to the deadline; None: there is none."""
    rounds_left: float = 1.0
    """How often the slots of the lane standard are filled by one turn of all agents that have not ended: 1 if all of
    them can send at once."""
    agents_left: int | None = None
    """Agents that have not ended; None: unknown."""
    agents: int | None = None
    """All agents of the run; None: unknown."""
    can_pay: bool = True
    """The budget allows a request at the full price, besides the rest of the run at the reduced one."""


def choose_lane(situation: LaneSituation) -> Lane:
    """The cheapest lane that is safe. Where none is, the fastest that can be paid."""
    *cheaper, fastest = situation.lanes
    if not cheaper:
        return fastest
    fits = [lane for lane in cheaper if _is_safe(lane, situation)]
    if fits and fits[0] == "batch" and _is_straggler(situation):
        fits = [lane for lane in fits if lane != "batch"]
    if fits:
        return fits[0]
    return fastest if situation.can_pay else cheaper[-1]


def latest_end(deadline: float, turns_left: float, paces: LanePaces, rounds_left: float = 1.0) -> float:
    """The time until which a request in a slower lane may last, if the rest of the agent's turns, this one included
    if it fails, is to end before the deadline in the lane standard."""
    return deadline - _standard_time(turns_left, paces, rounds_left)


def _is_safe(lane: Lane, situation: LaneSituation) -> bool:
    if situation.time_left is None:
        return True
    rest = _standard_time(situation.turns_left, situation.paces, situation.rounds_left)
    return situation.time_left >= situation.paces.of(lane) + rest


def _standard_time(turns: float, paces: LanePaces, rounds: float) -> float:
    return max(_MIN_MARGIN, _MARGIN * max(1.0, turns) * max(1.0, rounds) * paces.standard)


def _is_straggler(situation: LaneSituation) -> bool:
    """Whether so few agents are left that a wave for them alone is not worth its time."""
    left, agents = situation.agents_left, situation.agents
    if left is None or agents is None or left >= agents or situation.paces.batch < _LONG_WAVE:
        return False
    return left <= max(1, agents * _STRAGGLER_SHARE)
