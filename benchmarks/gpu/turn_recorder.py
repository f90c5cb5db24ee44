"""What is seen of the turns of one run, and what it comes to."""

import time
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from batch_agent.core.requests import Usage

now = time.perf_counter


@dataclass(frozen=True, slots=True)
class Turn:
    agent: int
    turn: int
    ready: float
    """When it could have been sent: the run's start, or the end of the tool call before it."""
    sent: float
    first: float
    """When the first token came."""
    ended: float
    usage: Usage


class Watch:
    """Takes the times. `key_before` names the tool call that an agent's turn waits for."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.failures: list[str] = []
        self._started = now()
        self._stopped: float | None = None
        self._results: list[float] = []
        self._done: dict[str, float] = {}
        self._ended: dict[int, float] = {}

    def start(self) -> None:
        self._started = now()

    def stop(self) -> None:
        self._stopped = now()

    def tool_done(self, key: str) -> None:
        self._done[key] = now()

    def turn_done(self, agent: int, turn: int, key_before: str, sent: float, first: float, usage: Usage) -> None:
        ready = self._started if turn == 0 else max(self._ended[agent], self._done.get(key_before, 0.0))
        self._ended[agent] = now()
        self.turns.append(Turn(agent, turn, ready, sent, first, self._ended[agent], usage))

    def agent_done(self, failure: str | None = None) -> None:
        self._results.append(now())
        if failure is not None:
            self.failures.append(failure)

    def trace(self) -> list[str]:
        """The turns in the order of their ends, under a line of headings; times in milliseconds since the start."""
        return [
            "agent,turn,ready,sent,first_token,ended,prompt_tokens,cached_tokens,output_tokens",
            *(",".join(map(str, self._traced(turn))) for turn in self.turns),
        ]

    def _traced(self, turn: Turn) -> tuple[int, ...]:
        times = (round(1000 * (at - self._started)) for at in (turn.ready, turn.sent, turn.first, turn.ended))
        return turn.agent, turn.turn, *times, turn.usage.input, turn.usage.cached, turn.usage.output

    def numbers(self) -> dict[str, Any]:
        total, later = self.turns, [turn for turn in self.turns if turn.turn > 0]
        wall = (self._stopped or now()) - self._started
        return {
            "wall_s": round(wall, 3),
            "first_result_s": round(min(self._results) - self._started, 3) if self._results else None,
            "agents_done": len(self._results),
            "failed": len(self.failures),
            "failures": self.failures[:3],
            "requests": len(total),
            "prompt_tokens": sum(turn.usage.input for turn in total),
            "cached_tokens": sum(turn.usage.cached for turn in total),
            "output_tokens": sum(turn.usage.output for turn in total),
            "first_prompt_tokens": _middle([turn.usage.input for turn in total if turn.turn == 0]),
            "cached_share": _cached_share(total),
            "cached_share_later_turns": _cached_share(later),
            "ttft_first_turn_s": spread([turn.first - turn.sent for turn in total if turn.turn == 0]),
            "ttft_later_turns_s": spread([turn.first - turn.sent for turn in later]),
            "tool_done_to_first_token_s": spread([turn.first - turn.ready for turn in later]),
        }


def _cached_share(turns: list[Turn]) -> float | None:
    asked = sum(turn.usage.input for turn in turns)
    return round(sum(turn.usage.cached for turn in turns) / asked, 4) if asked else None


def spread(seconds: list[float]) -> dict[str, float] | None:
    if len(seconds) < 2:
        return {"p50": round(seconds[0], 4), "p95": round(seconds[0], 4)} if seconds else None
    cuts = quantiles(seconds, n=20, method="inclusive")
    return {"p50": round(cuts[9], 4), "p95": round(cuts[18], 4)}


def _middle(counts: list[int]) -> int | None:
    return sorted(counts)[len(counts) // 2] if counts else None
