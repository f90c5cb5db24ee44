"""Savings of a run: work that sharing, caching and resuming avoided, each with its baseline."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...core.fast_dataclass import dataclass
from ...core.requests import Usage
from ..text.formatting import many
from .tool_uses import ToolUsage

_NOTHING, _ASKED, _ANSWERED, _CALLED, _TO_BE_SENT_AGAIN = range(5)


@dataclass(frozen=True, slots=True)
class Saving:
    """One saving. `saved` is None where it is unknown, and `basis` tells why. `without` is the baseline."""

    name: str
    saved: float | None
    unit: str
    without: float | None
    formula: str
    basis: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class RepeatedReads:
    """What would have been paid twice if every error, unusable answer and end of a process had sent an agent back to
    its first turn. An actor is an agent, or a part of a long input."""

    def __init__(self) -> None:
        self.sent_again = 0
        self.asked_again = 0
        self.tokens_again = 0
        """Of the turns before the one that was repeated."""
        self.went_on = 0
        """Agents that another process found in the middle of their work."""
        self.recalled = 0
        """Answers from the checkpoint."""
        self.tokens_kept = 0
        """Of those two."""
        self._paid: list[int] = []
        self._last_turn: list[int] = []
        self._last = bytearray()

    def add(self) -> None:
        """One more actor; they are numbered."""
        self._paid.append(0)
        self._last_turn.append(0)
        self._last.append(_NOTHING)

    def turn_starts(self, actor: int, turn: int) -> None:
        last = self._last[actor]
        if last == _NOTHING and turn == 1:
            self._paid[actor] = 0
        elif last == _NOTHING and self._paid[actor]:
            self.went_on += 1
            self.tokens_kept += self._paid[actor]
        elif last == _ANSWERED:  # and the answer was of no use
            self.asked_again += 1
            self.tokens_again += self._paid[actor] - self._last_turn[actor]
        self._last[actor] = _ASKED

    def turn_ends(self, actor: int, usage: Usage) -> None:
        self._last_turn[actor] = usage.input + usage.output
        self._paid[actor] += self._last_turn[actor]
        self._last[actor] = _ANSWERED

    def is_sent_again(self, actor: int) -> None:
        self.sent_again += 1
        self.tokens_again += self._paid[actor]
        self._last[actor] = _TO_BE_SENT_AGAIN

    def calls(self, actor: int) -> None:
        self._last[actor] = _CALLED

    def moves(self, actor: int) -> None:
        """Another worker goes on with it."""
        self._last[actor] = _NOTHING

    def is_recalled(self, usage: Usage) -> None:
        self.recalled += 1
        self.tokens_kept += usage.input + usage.output

    def begins_process(self) -> None:
        self._last = bytearray(len(self._last))


def savings(turns: Usage, tools: Sequence[ToolUsage], repeats: RepeatedReads) -> list[Saving]:
    """`turns`: what all turns of the log have used."""
    used = turns.input + turns.output
    return [
        _prefill(turns),
        *_tools(tools),
        Saving(
            "tokens not paid again after errors",
            repeats.tokens_again,
            "tokens",
            used + repeats.tokens_again,
            "For each retried request and each rejected answer: the input and output tokens of the earlier turns of "
            "that agent. A loop that restarts the agent pays for them again.",
            f"{many(repeats.sent_again, 'retried request')} and {many(repeats.asked_again, 'rejected answer')} in the "
            "event log; tokens as reported by the server.",
        ),
        Saving(
            "tokens not paid again after a restart",
            repeats.tokens_kept,
            "tokens",
            used + repeats.tokens_kept,
            "Input and output tokens of each answer that a later process read from the checkpoint, and of the "
            "completed turns of each agent that a later process continued. A run without a checkpoint pays for them "
            "again.",
            f"{many(repeats.recalled, 'answer')} from the checkpoint and {many(repeats.went_on, 'continued agent')} in "
            "the event log.",
        ),
    ]


def _prefill(turns: Usage) -> Saving:
    is_known = turns.cached > 0
    return Saving(
        "prefill tokens not computed",
        turns.cached if is_known else None,
        "tokens",
        turns.input if is_known else None,
        "Cached input tokens of all turns. Without a prefix cache, every prompt is computed in full.",
        "As reported by the server." if is_known else "Unknown: the server does not report cached tokens.",
    )


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
