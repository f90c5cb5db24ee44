"""Trace of one agent as lines of text."""

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
from .formatting import one_line, truncate

_INDENT = 10
_MAX_TEXT = 4_000
_MAX_PREVIEW = 200


def agent_trace_lines(config: AgentConfig, key: str, facts: Sequence[Fact]) -> Iterator[Text]:
    """Task, replies, tool calls and outcome of an agent. `.plain` of a line is its text without styles."""
    job = recorded_job(key, facts)
    conversation = Conversation(config, job)
    yield Text.assemble((f"Agent {job.index}", "bold"), f"  key {key}")
    yield from _part("input", _short(as_text(job.input)))
    turn = 0
    for fact in facts:
        turn += isinstance(fact, Replied)
        conversation.apply(fact)
        yield from _fact_lines(fact, turn, conversation)
    yield from _outcome_lines(conversation, turn)


def _fact_lines(fact: Fact, turn: int, conversation: Conversation) -> Iterator[Text]:
    match fact:
        case Started():
            yield from _part("task", truncate(fact.task, _MAX_TEXT))
        case Replied():
            yield from _part(f"turn {turn}", _figures(fact), "bold cyan")
            if fact.work is not None:
                yield from _program_lines(fact.work)
            yield from _reply_lines(fact)
            yield from _follow_up_lines(conversation)
        case Returned(results):
            for result in results:
                yield from _result_lines(result)
        case CarriedOver(results):
            for result in results:
                yield from _part("restored", f"call of an earlier attempt: {_call(result.call)}", "yellow")
        case Compacted():
            yield from _part("compacted", _compaction(fact), "yellow")
        case Claimed() | Withdrawn() | Settled():
            pass  # only relevant while the calls of a turn are in progress: see `_outcome_lines`
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
    """Input and output tokens, and the share of the input that was cached."""
    cached = f" ({usage.cached / usage.input:.0%} cached)" if usage.cached and usage.input else ""
    return f"{usage.input:,} tokens in{cached}, {usage.output:,} out"


def _reply_lines(fact: Replied) -> Iterator[Text]:
    reply = fact.reply
    for thought in reply.thoughts:
        yield from _part("  thought", _short(thought.text) if thought.text else "(encrypted)", "dim")
    if reply.text:
        yield from _part("  reply", truncate(reply.text, _MAX_TEXT))
    if reply.finish in ("length", "refusal"):
        ended = "truncated at the token limit" if reply.finish == "length" else "refused by the model"
        yield from _part("  ended", ended, "yellow")


def _follow_up_lines(conversation: Conversation) -> Iterator[Text]:
    """The message that follows a reply which is neither an answer nor a tool call."""
    step = conversation.next()
    if isinstance(step, Generate) and isinstance(message := step.request.messages[-1], User):
        yield from _part("  retry", _short(message.text), "yellow")


def _program_lines(work: ProgramTrace) -> Iterator[Text]:
    """Requests, tool calls and file changes of a program in this turn."""
    yield from _part("  program", f"{work.turns} request{'' if work.turns == 1 else 's'} to the model", "dim")
    for call in work.calls:
        yield from _part("  call", f"{call.name} {_short(call.arguments)}{'' if call.ok else ' (failed)'}", "cyan")
    if work.changes is not None:
        yield from _part("  changed", str(work.changes), "cyan")
        yield from _part("", truncate(work.changes.patch, _MAX_TEXT))


def _result_lines(result: ToolResult) -> Iterator[Text]:
    yield from _part("  call", _call(result.call), "cyan")
    outcome = f"{'error: ' if result.is_error else ''}{_short(result.content)}"
    yield from _part("", f"-> {outcome}", "red" if result.is_error else "")
    yield from _part("", f"   {result.seconds:.2f} s, {result.source}", "dim")


def _compaction(fact: Compacted) -> str:
    summaries = sum(each.is_summary for each in fact.results)
    parts = []
    if others := len(fact.results) - summaries:
        parts.append(f"{others:,} tool result{'s' if others > 1 else ''} elided or truncated")
    if summaries:
        parts.append(f"{summaries:,} summarized in {fact.seconds:.2f} s")
    return f"{', '.join(parts)}; from about {fact.before:,} to {fact.after:,} tokens"


def _outcome_lines(conversation: Conversation, turn: int) -> Iterator[Text]:
    match conversation.next():
        case Done(output, None):
            yield from _part("answered", truncate(as_text(output), _MAX_TEXT), "bold green")
        case Done(_, error):
            yield from _part("failed", truncate(str(error), _MAX_TEXT), "bold red")
        case CallTools(calls, past):
            for call in calls:
                yield from _part("  call", _call(call), "cyan")
                if (settled := past.settled.get(call.id)) is not None:
                    yield from _part("", f"-> {_short(settled.content)}")
                elif call.id in past.claimed:
                    yield from _part(
                        "", "-> claimed, no outcome recorded: in progress, or its effect is unknown", "yellow"
                    )
                else:
                    yield from _part("", "-> no result yet", "yellow")
            yield from _part("running", f"turn {turn} has tool calls without a result", "bold yellow")
        case Generate() | CompactContext():
            yield from _part("running", f"turn {turn + 1} has no reply yet", "bold yellow")


def _call(call: ToolCall) -> str:
    return f"{call.name} {_short(call.arguments)}"


def _part(label: str, text: str, style: str = "") -> Iterator[Text]:
    first, *others = safe_text(text).splitlines() or [""]
    yield Text.assemble((f"{label:<{_INDENT}}", style), first)
    for line in others:
        yield Text(" " * _INDENT + line)


def as_text(value: Any) -> str:
    """A string unchanged, other values as JSON, with `repr` for what JSON cannot represent."""
    if isinstance(value, str):
        return value
    return orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


def _short(text: str) -> str:
    shown = one_line(text, _MAX_PREVIEW)
    return shown if len(text) <= _MAX_PREVIEW else f"{shown[:_MAX_PREVIEW]} ... ({len(text):,} characters)"
