"""Savings of a run: work that was avoided by sharing, caching and resuming, each with its baseline."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...core.fast_dataclass import dataclass
from ...core.requests import Usage
from ...core.run_reports import Scheduling, SharedResults
from ..text.text_format import plural
from .tool_uses import ToolUsage

_IDLE, _GENERATING, _ANSWERED, _CALLING, _RETRYING = range(5)


@dataclass(frozen=True, slots=True)
class Saving:
    """One saving. `saved` is None if unknown; `basis` then has the reason. `without` is the baseline."""

    name: str
    saved: float | None
    unit: str
    without: float | None
    formula: str
    basis: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class AvoidedRepeats:
    """Work that would be repeated if every error, rejected answer and restart sent an agent back to its first turn. An
    actor is an agent, or a chunk of a long input."""

    def __init__(self) -> None:
        self.retries = 0
        self.rejected = 0
        self.tokens_not_repeated = 0
        """Tokens of the turns that precede a repeated one."""
        self.continued = 0
        """Agents that were continued by a later process."""
        self.restored = 0
        """Answers that were restored from the checkpoint."""
        self.tokens_restored = 0
        """Tokens of continued and restored agents."""
        self._paid: list[int] = []
        self._last_turn: list[int] = []
        self._last = bytearray()

    def add(self) -> None:
        """Adds an actor. Actors are numbered in order."""
        self._paid.append(0)
        self._last_turn.append(0)
        self._last.append(_IDLE)

    def start_turn(self, actor: int, turn: int) -> None:
        last = self._last[actor]
        if last == _IDLE and turn == 1:
            self._paid[actor] = 0
        elif last == _IDLE and self._paid[actor]:
            self.continued += 1
            self.tokens_restored += self._paid[actor]
        elif last == _ANSWERED:  # and the answer was rejected
            self.rejected += 1
            self.tokens_not_repeated += self._paid[actor] - self._last_turn[actor]
        self._last[actor] = _GENERATING

    def end_turn(self, actor: int, usage: Usage) -> None:
        self._last_turn[actor] = usage.input + usage.output
        self._paid[actor] += self._last_turn[actor]
        self._last[actor] = _ANSWERED

    def retry(self, actor: int) -> None:
        self.retries += 1
        self.tokens_not_repeated += self._paid[actor]
        self._last[actor] = _RETRYING

    def start_calls(self, actor: int) -> None:
        self._last[actor] = _CALLING

    def reassign(self, actor: int) -> None:
        """Notes that another worker continues the agent."""
        self._last[actor] = _IDLE

    def restore(self, usage: Usage) -> None:
        self.restored += 1
        self.tokens_restored += usage.input + usage.output

    def start_process(self) -> None:
        self._last = bytearray(len(self._last))


def savings(
    turns: Usage, tools: Sequence[ToolUsage], repeats: AvoidedRepeats, scheduling: Scheduling | None = None
) -> list[Saving]:
    """The savings of a run. `turns`: usage of all turns in the log. `scheduling`: known at the end of the run."""
    used = turns.input + turns.output
    return [
        _prefill(turns),
        *_shared_results(None if scheduling is None else scheduling.shared_results),
        *_tools(tools),
        Saving(
            "tokens not paid again after errors",
            repeats.tokens_not_repeated,
            "tokens",
            used + repeats.tokens_not_repeated,
            "For each retried request and each rejected answer: the input and output tokens of the earlier turns of "
            "that agent. A loop that restarts the agent pays for them again.",
            f"{plural(repeats.retries, 'retried request')} and {plural(repeats.rejected, 'rejected answer')} in the "
            "event log; tokens as reported by the server.",
        ),
        Saving(
            "tokens not paid again after a restart",
            repeats.tokens_restored,
            "tokens",
            used + repeats.tokens_restored,
            "Input and output tokens of each answer that a later process read from the checkpoint, and of the "
            "completed turns of each agent that a later process continued. A run without a checkpoint pays for them "
            "again.",
            f"{plural(repeats.restored, 'answer')} from the checkpoint and "
            f"{plural(repeats.continued, 'continued agent')} in the event log.",
        ),
    ]


def _prefill(turns: Usage) -> Saving:
    is_known = turns.cached > 0
    return Saving(
        "prompt tokens not computed",
        turns.cached if is_known else None,
        "tokens",
        turns.input if is_known else None,
        "Cached input tokens of all turns. Without a prefix cache, every prompt is computed in full.",
        "As reported by the server." if is_known else "Unknown: the server does not report cached tokens.",
    )


def _shared_results(shared: SharedResults | None) -> list[Saving]:
    if shared is None or not shared.placed or shared.saved_tokens <= 0:
        return []
    return [
        Saving(
            "prompt tokens of shared results not computed again",
            shared.saved_tokens,
            "tokens",
            round(shared.saved_tokens / shared.saved_share) if shared.saved_share else None,
            "Prompt tokens that a server with a large prefix cache computes if every tool result stands behind its "
            "call, less those that it computes with the results that were placed first. They are part of the prefill "
            "tokens not computed.",
            f"{plural(shared.references, 'result')} placed first for {plural(shared.agents, 'agent')}; estimated from "
            "the lengths of the agents' texts.",
        )
    ]


def _tools(tools: Sequence[ToolUsage]) -> list[Saving]:
    if not tools:
        return []
    requested, avoided = sum(tool.requested for tool in tools), sum(tool.shared + tool.cached for tool in tools)
    unknown = [tool.name for tool in tools if tool.seconds_saved is None]
    saved = None if unknown else sum(tool.seconds_saved or 0.0 for tool in tools)
    return [
        Saving(
            "tool executions avoided",
            avoided,
            "calls",
            requested,
            "Calls served by another agent's execution in progress or by a cached result. Without sharing, each agent "
            "executes its own calls.",
            "As counted by the tools.",
        ),
        Saving(
            "tool time saved",
            None if saved is None else round(saved, 3),
            "seconds",
            None if saved is None else round(saved + sum(tool.seconds for tool in tools), 3),
            "For each call that was not executed, the duration of the execution whose result it received.",
            "As counted by the tools."
            if saved is not None
            else f"Unknown until the end of the run: not yet reported by {', '.join(unknown)}.",
        ),
    ]
