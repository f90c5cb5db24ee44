"""Trace of one agent as lines of text."""

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import Any, assert_never

import orjson
from rich.text import Text

from ...agent.compaction import CompactContext
from ...agent.conversation import CallTools, Conversation, Done, Generate
from ...core.agent_config import AgentConfig
from ...core.facts import (
    CarriedOver,
    Claimed,
    Compacted,
    Fact,
    Failed,
    Replied,
    Returned,
    Sampled,
    Settled,
    Started,
    Withdrawn,
    failure_of,
)
from ...core.images import text_with_labels
from ...core.messages import Reference, ToolCall, ToolResult, User
from ...core.program_runtime import ProgramTrace
from ...core.protocols.tool_set import CallHistory
from ...core.requests import Usage
from ...core.safe_text import safe_text
from ...plan.row_keys import row_key
from ..checkpoint_results import recorded_job
from .text_format import one_line, truncate

_INDENT = 10
_MAX_TEXT = 4_000
_MAX_PREVIEW = 200


def agent_trace_lines(
    config: AgentConfig, key: str, facts: Sequence[Fact], *, full: bool = False, is_running: bool = True
) -> Iterator[Text]:
    """Task, replies, tool calls and outcome of an agent. With `full`, also the system prompt, the tools and the schema,
    and nothing is shortened. `is_running`: False if no process runs the agent. The `.plain` of a line is its text
    without styles."""
    job = recorded_job(key, facts)
    trace = _Trace(Conversation(config, job), full)
    yield Text.assemble((f"Agent {job.index}", "bold"), f"  key {row_key(key)}")
    if full:
        yield from prompt_lines(config)
    yield from part("input", trace.short(as_text(job.input)))
    for fact, following in zip_longest(facts, facts[1:]):
        yield from trace.fact_lines(fact, is_last=isinstance(following, Failed))
    if failure_of(facts) is None:
        yield from trace.outcome_lines("running" if is_running else "interrupted")


def prompt_lines(config: AgentConfig) -> Iterator[Text]:
    """The parts that all agents of the run share: model, system prompt, tools and the schema of the answers."""
    yield from part("model", f"{config.model}, max {config.max_turns} turns", "cyan")
    if config.prompt.system:
        yield from part("system", config.prompt.system, "cyan")
    for tool in config.prompt.tools:
        yield from part("tool", f"{tool.name}: {tool.description}\n{as_text(tool.parameters)}", "cyan")
    if config.output is not None:
        yield from part("schema", as_text(config.output.json_schema), "cyan")


class _Trace:
    """Lines for an agent's facts. Mutable: its conversation follows the facts."""

    def __init__(self, conversation: Conversation, full: bool) -> None:
        self._conversation = conversation
        self._full = full
        self._turn = 0

    def fact_lines(self, fact: Fact, *, is_last: bool) -> Iterator[Text]:
        """`is_last`: the agent failed afterwards, without another request."""
        self._turn += isinstance(fact, Replied)
        present = frozenset(self._conversation.references)
        self._conversation.apply(fact)
        match fact:
            case Started():
                yield from part("task", self._long(text_with_labels(fact.task, fact.images)))
            case Replied():
                yield from part(f"turn {self._turn}", _figures(fact), "bold cyan")
                if fact.work is not None:
                    yield from self._program_lines(fact.work)
                yield from self._reply_lines(fact)
                if not is_last:
                    yield from self._follow_up_lines()
            case Returned(results):
                for result in results:
                    yield from self._result_lines(result)
                    if result.reference is not None:
                        yield from part("", f"   {_placement(result.reference, present)}", "dim")
            case CarriedOver(results):
                for result in results:
                    yield from part("restored", f"call of an earlier attempt: {self._call(result.call)}", "yellow")
            case Compacted():
                yield from part("compacted", _compaction(fact), "yellow")
            case Failed():
                yield from part("failed", f"{self._long(str(fact.error))} (after {fact.seconds:.2f} s)", "bold red")
            case Sampled():
                pass  # `batch-agent export` shows them
            case Claimed() | Withdrawn() | Settled():
                pass  # only relevant during the calls of a turn: see `outcome_lines`
            case _:
                assert_never(fact)

    def outcome_lines(self, unfinished: str) -> Iterator[Text]:
        """`unfinished`: the label of an agent without a result."""
        match self._conversation.next():
            case Done(output, None):
                yield from part("answered", self._long(as_text(output)), "bold green")
            case Done(_, error):
                yield from part("failed", self._long(str(error)), "bold red")
            case CallTools(calls, past):
                for call in calls:
                    yield from part("  call", self._call(call), "cyan")
                    yield from self._pending_lines(call, past)
                yield from part(unfinished, f"turn {self._turn} has tool calls without a result", "bold yellow")
            case Generate() | CompactContext():
                yield from part(unfinished, f"turn {self._turn + 1} has no reply yet", "bold yellow")

    def short(self, text: str) -> str:
        """The text on one line; unchanged in a full trace."""
        if self._full:
            return text
        shown = one_line(text, _MAX_PREVIEW)
        return shown if len(text) <= _MAX_PREVIEW else f"{shown[:_MAX_PREVIEW]} ... ({len(text):,} characters)"

    def _long(self, text: str) -> str:
        return text if self._full else truncate(text, _MAX_TEXT)

    def _call(self, call: ToolCall) -> str:
        return f"{call.name} {self.short(call.arguments)}"

    def _pending_lines(self, call: ToolCall, past: CallHistory) -> Iterator[Text]:
        if (settled := past.settled.get(call.id)) is not None:
            yield from part("", f"-> {self.short(settled.content)}")
        elif call.id in past.claimed:
            yield from part("", "-> claimed, no outcome recorded: in progress, or its effect is unknown", "yellow")
        else:
            yield from part("", "-> no result yet", "yellow")

    def _reply_lines(self, fact: Replied) -> Iterator[Text]:
        reply = fact.reply
        for thought in reply.thoughts:
            yield from part("  thought", self.short(thought.text) if thought.text else "(encrypted)", "dim")
        if reply.text:
            yield from part("  reply", self._long(reply.text))
        if reply.finish in ("length", "refusal"):
            ended = "truncated at the token limit" if reply.finish == "length" else "refused by the model"
            yield from part("  ended", ended, "yellow")

    def _follow_up_lines(self) -> Iterator[Text]:
        """The message that follows a reply which is neither an answer nor a tool call."""
        step = self._conversation.next()
        if isinstance(step, Generate) and isinstance(message := step.request.messages[-1], User):
            yield from part("  retry", self.short(message.text), "yellow")

    def _program_lines(self, work: ProgramTrace) -> Iterator[Text]:
        """Requests, tool calls and file changes of a program in this turn."""
        yield from part("  program", f"{work.turns} request{'' if work.turns == 1 else 's'} to the model", "dim")
        for call in work.calls:
            outcome = "" if call.ok else " (failed)"
            yield from part("  call", f"{call.name} {self.short(call.arguments)}{outcome}", "cyan")
        if work.changes is not None:
            yield from part("  changed", str(work.changes), "cyan")
            yield from part("", self._long(work.changes.patch))

    def _result_lines(self, result: ToolResult) -> Iterator[Text]:
        yield from part("  call", self._call(result.call), "cyan")
        outcome = f"{'error: ' if result.is_error else ''}{self.short(result.content)}"
        yield from part("", f"-> {outcome}", "red" if result.is_error else "")
        yield from part("", f"   {result.seconds:.2f} s, {result.source}", "dim")


def _placement(reference: Reference, present: Collection[str]) -> str:
    """Where a result stands in the prompt, and why. `present`: references that were already in the prompt."""
    readers, moved = reference.readers, f"{reference.moved_chars:,} characters behind it"
    if reference.heading in present:
        if reference.placement == "first":
            return "placed first: it is among the references already, so nothing is computed again"
        return "inline: it differs from the reference that an earlier call returned"
    by = "only this agent had asked for it so far" if readers < 2 else f"asked for by {readers:,} agents so far"
    if reference.placement == "first":
        return f"placed first: {by}; {moved} are computed again"
    return f"inline: {by}; if it were placed first, {moved} would be computed again"


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


def _compaction(fact: Compacted) -> str:
    summaries = sum(each.is_summary for each in fact.results)
    parts = []
    if others := len(fact.results) - summaries:
        parts.append(f"{others:,} tool result{'s' if others > 1 else ''} elided or truncated")
    if summaries:
        parts.append(f"{summaries:,} summarized in {fact.seconds:.2f} s")
    return f"{', '.join(parts)}; from about {fact.before:,} to {fact.after:,} tokens"


def part(label: str, text: str, style: str = "") -> Iterator[Text]:
    """A labelled text with its further lines indented."""
    first, *others = safe_text(text).splitlines() or [""]
    yield Text.assemble((f"{label:<{_INDENT - 1}} ", style), first)
    for line in others:
        yield Text(" " * _INDENT + line)


def as_text(value: Any) -> str:
    """A string as it is, any other value as JSON, or by `repr` if JSON cannot represent it."""
    if isinstance(value, str):
        return value
    return orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
