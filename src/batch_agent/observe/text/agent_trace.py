"""The story of one agent, in lines for people."""

from collections.abc import Iterator, Sequence
from typing import Any, assert_never

import orjson
from rich.text import Text

from ...agent.compaction import CompactContext
from ...agent.conversation import CallTools, Conversation, Done, Generate
from ...core.agent_config import AgentConfig
from ...core.facts import CarriedOver, Claimed, Compacted, Fact, Replied, Returned, Settled, Started, Withdrawn
from ...core.messages import ToolCall, ToolResult, User
from ...core.program_runtime import ProgramTrace
from ...core.requests import Usage
from ...core.safe_text import safe_text
from ..checkpoint_results import recorded_job
from .formatting import cut, one_line

_INDENT = 10
_LONGEST_SAID = 4_000
_LONGEST_SHOWN = 200


def agent_trace_lines(rules: AgentConfig, key: str, facts: Sequence[Fact]) -> Iterator[Text]:
    """What the agent was asked, said, called and came to. Their `.plain` can be read in a pipe."""
    job = recorded_job(key, facts)
    talk = Conversation(rules, job)
    yield Text.assemble((f"Agent {job.index}", "bold"), f"  key {key}")
    yield from _part("input", _short(as_text(job.input)))
    turn = 0
    for fact in facts:
        turn += isinstance(fact, Replied)
        talk.apply(fact)
        yield from _told(fact, turn, talk)
    yield from _end(talk, turn)


def _told(fact: Fact, turn: int, talk: Conversation) -> Iterator[Text]:
    match fact:
        case Started():
            yield from _part("task", cut(fact.task, _LONGEST_SAID))
        case Replied():
            yield from _part(f"turn {turn}", _figures(fact), "bold cyan")
            if fact.work is not None:
                yield from _worked(fact.work)
            yield from _said(fact)
            yield from _asked_again(talk)
        case Returned(results):
            for result in results:
                yield from _called(result)
        case CarriedOver(results):
            for result in results:
                yield from _part("made", f"in an earlier life: {_call(result.call)}", "yellow")
        case Compacted():
            yield from _part("compacted", _shortened(fact), "yellow")
        case Claimed() | Withdrawn() | Settled():
            pass  # of use only while the calls of a turn are under way: `_end` tells it
        case _:
            assert_never(fact)


def _figures(fact: Replied) -> str:
    parts = [f"{fact.seconds:.2f} s"]
    if fact.queued >= 0.005:
        parts.append(f"queued {fact.queued:.2f} s")
    if fact.ttft is not None:
        parts.append(f"first token after {fact.ttft:.2f} s")
    if fact.attempts > 1:
        parts.append(f"{fact.attempts} attempts")
    return f"{', '.join(parts)}; {tokens(fact.reply.usage)}"


def tokens(usage: Usage) -> str:
    """How many went in and came out, and how many of them were not computed again."""
    cached = f" ({usage.cached / usage.input:.0%} cached)" if usage.cached and usage.input else ""
    return f"{usage.input:,} tokens in{cached}, {usage.output:,} out"


def _said(fact: Replied) -> Iterator[Text]:
    reply = fact.reply
    for thought in reply.thoughts:
        yield from _part("  thought", _short(thought.text) if thought.text else "(not readable)", "dim")
    if reply.text:
        yield from _part("  said", cut(reply.text, _LONGEST_SAID))
    if reply.finish in ("length", "refusal"):
        ended = "cut off by the token limit" if reply.finish == "length" else "the model declined"
        yield from _part("  ended", ended, "yellow")


def _asked_again(talk: Conversation) -> Iterator[Text]:
    """A reply that is neither an answer nor a call is followed by a question of ours."""
    step = talk.next()
    if isinstance(step, Generate) and isinstance(asked := step.request.messages[-1], User):
        yield from _part("  asked", _short(asked.text), "yellow")


def _worked(work: ProgramTrace) -> Iterator[Text]:
    """What a program did for the turn."""
    yield from _part("  program", f"{work.turns} request{'' if work.turns == 1 else 's'} to the model", "dim")
    for call in work.calls:
        yield from _part("  call", f"{call.name} {_short(call.arguments)}{'' if call.ok else ' (failed)'}", "cyan")
    if work.changes is not None:
        yield from _part("  changed", str(work.changes), "cyan")
        yield from _part("", cut(work.changes.patch, _LONGEST_SAID))


def _called(result: ToolResult) -> Iterator[Text]:
    yield from _part("  call", _call(result.call), "cyan")
    outcome = f"{'error: ' if result.is_error else ''}{_short(result.content)}"
    yield from _part("", f"-> {outcome}", "red" if result.is_error else "")
    yield from _part("", f"   {result.seconds:.2f} s, {result.source}", "dim")


def _shortened(fact: Compacted) -> str:
    summaries = sum(each.is_summary for each in fact.results)
    parts = []
    if others := len(fact.results) - summaries:
        parts.append(f"{others:,} tool result{'s' if others > 1 else ''} elided or cut")
    if summaries:
        parts.append(f"{summaries:,} summarized in {fact.seconds:.2f} s")
    return f"{', '.join(parts)}; from about {fact.before:,} to {fact.after:,} tokens"


def _end(talk: Conversation, turn: int) -> Iterator[Text]:
    match talk.next():
        case Done(output, None):
            yield from _part("answered", cut(as_text(output), _LONGEST_SAID), "bold green")
        case Done(_, error):
            yield from _part("failed", cut(str(error), _LONGEST_SAID), "bold red")
        case CallTools(calls, past):
            for call in calls:
                yield from _part("  call", _call(call), "cyan")
                if (settled := past.settled.get(call.id)) is not None:
                    yield from _part("", f"-> {_short(settled.content)}")
                elif call.id in past.claimed:
                    yield from _part("", "-> claimed, no outcome: under way, or nobody knows if it was made", "yellow")
                else:
                    yield from _part("", "-> no result yet", "yellow")
            yield from _part("under way", f"the calls of turn {turn} are not all answered", "bold yellow")
        case Generate() | CompactContext():
            yield from _part("under way", f"turn {turn + 1} is not answered", "bold yellow")


def _call(call: ToolCall) -> str:
    return f"{call.name} {_short(call.arguments)}"


def _part(label: str, text: str, style: str = "") -> Iterator[Text]:
    first, *others = safe_text(text).splitlines() or [""]
    yield Text.assemble((f"{label:<{_INDENT}}", style), first)
    for line in others:
        yield Text(" " * _INDENT + line)


def as_text(value: Any) -> str:
    """A text as it is, anything else as JSON; what JSON does not have, as Python says it."""
    if isinstance(value, str):
        return value
    return orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


def _short(text: str) -> str:
    shown = one_line(text, _LONGEST_SHOWN)
    return shown if len(text) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]} ... ({len(text):,} characters)"
