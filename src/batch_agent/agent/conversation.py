"""Conversation of one agent as a state machine: facts in, the next step out. Replaying the same facts gives the same
state."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, assert_never

from ..core.agent_config import AgentConfig, InvalidOutput, Job, repeated_seed
from ..core.errors import ErrorKind
from ..core.facts import (
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
)
from ..core.fast_dataclass import dataclass
from ..core.messages import Assistant, Message, ToolCall, ToolResult, ToolResults, User
from ..core.program_runtime import ProgramTrace
from ..core.protocols.tool_set import CallHistory
from ..core.requests import NO_USAGE, PRIORITY_STEP, FinishReason, Reply, Request
from ..core.results import AgentError, AgentResult, Timing
from .action_mode import render_history
from .call_state import CallState
from .compaction import CompactContext, CompactionState
from .context_size import chars_in, chars_of, chars_of_turn
from .references import ExpectedReaders, markup_chars, place, references_in, with_references
from .reply_parser import FinalAnswer, echo, read_reply

_DECLINED = "The model, or a filter behind it, declined to answer, and said nothing more."


def apply_program_result(result: AgentResult, traces: Sequence[ProgramTrace]) -> AgentResult:
    """The result, completed with the turns, calls, transcript and changes of the programs that did the agent's work."""
    return replace(
        result,
        turns=sum(trace.turns for trace in traces),
        tool_calls=tuple(call for trace in traces for call in trace.calls),
        transcript=traces[-1].transcript or result.transcript,
        prompt=None if traces[-1].transcript else result.prompt,  # the program has a system prompt and tools of its own
        changes=traces[-1].changes,
    )


@dataclass(frozen=True, slots=True)
class Generate:
    """Step of an agent: a request to the model."""

    request: Request
    turns_left: int


@dataclass(frozen=True, slots=True)
class CallTools:
    """Step of an agent: tool calls to execute."""

    calls: tuple[ToolCall, ...]
    past: CallHistory


@dataclass(frozen=True, slots=True)
class Done:
    """Last step of an agent: its output or its error."""

    output: Any = None
    error: AgentError | None = None


@dataclass(frozen=True, slots=True)
class _Unusable:
    """The last reply, whose answer did not fit the output type."""

    reply: Reply
    problem: str
    previous_reask: tuple[Message, ...]

    def error(self, reasks: int) -> AgentError:
        kind = ErrorKind.TRUNCATED if self.reply.finish == "length" else ErrorKind.INVALID_OUTPUT
        tries = f" after {reasks + 1} tries" if reasks else ""
        hint = " Raise max_tokens." if kind is ErrorKind.TRUNCATED else ""
        return AgentError(kind, f"No usable answer{tries}: {self.problem}.{hint}", retryable=True)


Step = Generate | CallTools | CompactContext | Done

MAX_TURN_PRIORITY = 9
"""Within a run, agents with more turns go first; between runs, the priorities of the runs decide. SGLang preempts a
running request for one whose priority is higher by more than 10, so the turns of a run add less than that."""

_NOT_SHOWN = "[images are not shown: the model is not known to take any]"


class Conversation:
    """State machine of one agent. Messages are only appended, with two exceptions: a new reask for an answer that did
    not fit replaces the previous one, so that the context does not grow with each try, and a compaction shortens old
    results."""

    __slots__ = (
        "_calls",
        "_compaction_state",
        "_config",
        "_done",
        "_finish",
        "_job",
        "_messages",
        "_queued",
        "_reask",
        "_reasks",
        "_references_at",
        "_text",
        "_traces",
        "_ttft",
        "_turns",
        "_unusable",
        "_usage",
        "has_references",
    )

    def __init__(self, config: AgentConfig, job: Job, *, has_ended: bool = False) -> None:
        """`has_ended`: only the result is needed, so the size of a next request is not measured."""
        self._config = config
        self._job = job
        self._messages: list[Message] = [User(job.task, job.shared, images=job.images)]
        self._reask: tuple[Message, ...] = ()
        self._references_at = job.references_at
        self.has_references = False
        """Whether tool results precede the agent's own text, or did before they were compacted."""
        self._calls = CallState()
        limits = None if has_ended else config.compaction
        self._compaction_state = None if limits is None else CompactionState(limits.prompt_chars + job.chars)
        self._done: Done | None = Done(error=job.problem) if job.problem else None
        self._reasks = 0
        self._unusable: _Unusable | None = None
        self._turns = 0
        self._text = ""
        self._finish: FinishReason | None = None
        self._usage = NO_USAGE
        self._queued = 0.0
        self._ttft: tuple[float | None, ...] = ()
        self._traces: tuple[ProgramTrace, ...] = ()

    def next(self) -> Step:
        """Next step. Repeated calls return the same step. Limits are checked here and not per fact: facts recorded
        under other limits are replayed as they are, and the agent continues under the current limits."""
        if self._done is None and (self._unusable is not None or self._calls.pending):
            self._end_at_limits()
        if self._done is not None:
            return self._done
        if self._calls.pending:
            return CallTools(self._calls.pending, self._calls.past(self._turns))
        compaction = None if self._compaction_state is None else self._compaction()
        if compaction is not None:
            return compaction
        turns_left = self._turns_left
        return Generate(self._request(is_last=turns_left <= 1), turns_left)

    def apply(self, fact: Fact) -> None:
        match fact:
            case Replied():
                self._count(fact)
                self._on_reply(fact.reply)
            case Returned(results):
                self._calls.returned(results)
                self._append_results(ToolResults(results))
            case Started():
                self._references_at = fact.references_at
            case Failed() | Sampled():
                pass  # no part of the conversation
            case Claimed(call):
                self._calls.claimed(call)
            case Withdrawn(call):
                self._calls.withdrawn(call)
            case Settled(result):
                self._calls.settled(result)
            case CarriedOver(results):
                self._calls.inherited(results)
            case Compacted():
                self._compact(fact)
            case _:
                assert_never(fact)

    def replay(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            self.apply(fact)
        if self._done is None:
            self._end_at_limits()

    def place(
        self, results: tuple[ToolResult, ...], readers: ExpectedReaders, computations: float = 1.0
    ) -> tuple[ToolResult, ...]:
        """The results of the pending calls, each with its placement in the prompt."""
        return place(results, self._messages, self._references_at, readers, computations)

    @property
    def references(self) -> dict[str, int]:
        """Characters of each tool result before the agent's own text, by heading, in prompt order."""
        return {each.reference.heading: each.chars for each in references_in(self._messages)}

    @property
    def own_chars(self) -> int:
        """Characters of the task behind the references."""
        return max(0, chars_of(self._messages[0]) - self._references_at)

    def tool_turns(self) -> Iterator[tuple[int, tuple[ToolResult, ...]]]:
        """For each turn with calls: its results, and the characters of the conversation since the previous results,
        without the task."""
        chars = 0
        for message in self._messages[1:]:
            if isinstance(message, ToolResults):
                yield chars, message.results
                chars = 0
            else:
                chars += chars_of(message)

    def fail(self, error: AgentError) -> None:
        """Ends the agent with an error from outside the conversation, such as a failed backend or a timeout."""
        self._done = Done(error=error)

    def result(self, seconds: float) -> AgentResult:
        """Result of the agent. Only meaningful once `next()` returns Done."""
        done = self._done or Done()
        result = AgentResult(
            index=self._job.index,
            key=self._job.key,
            input=self._job.input,
            output=done.output,
            text=self._text,
            error=done.error,
            finish=self._finish,
            usage=self._usage,
            turns=self._turns,
            tool_calls=self._calls.records,
            timing=Timing(self._queued, self._ttft, seconds),
            transcript=self._history(),
            compactions=self._compaction_state.compactions if self._compaction_state else 0,
            prompt=self._config.prompt,
        )
        return apply_program_result(result, self._traces) if self._traces else result

    @property
    def _turns_left(self) -> int:
        """Turns left, including the next one. Reasks for the same answer are not counted."""
        return self._config.max_turns - (self._turns - self._reasks)

    def _history(self) -> tuple[Message, ...]:
        history = (*self._messages, *self._reask)
        if self.has_references:
            history = with_references(history, self._references_at)
        return history if self._config.tool_mode == "native" else tuple(map(render_history, history))

    def _request(self, *, is_last: bool) -> Request:
        config = self._config
        seed = config.sampling.seed
        return Request(
            prompt=config.prompt,
            messages=self._history(),
            model=config.model,
            sampling=config.sampling,
            answer_schema=config.last_turn_schema if is_last else config.turn_schema,
            may_call_tools=not is_last,
            stream=config.stream,
            agent=self._job.key,
            index=self._job.index,
            turn=self._turns,
            priority=config.priority * PRIORITY_STEP + min(self._turns, MAX_TURN_PRIORITY),
            seed=None if seed is None else repeated_seed(seed, self._job.key),
            lane=config.lane,
            tokens=config.tokens,
        )

    def _compaction(self) -> CompactContext | None:
        limits = self._config.compaction
        if limits is None or self._compaction_state is None:
            return None
        return self._compaction_state.plan(limits, self._messages, self._calls.changes)

    def _compact(self, fact: Compacted) -> None:
        if self._compaction_state is None:  # a replay without the context window
            self._compaction_state = CompactionState(0)
        self._messages = self._compaction_state.apply(fact, self._messages)

    def _count(self, fact: Replied) -> None:
        self._turns += 1
        if fact.work is not None:
            self._traces += (fact.work,)
        usage = fact.reply.usage
        self._usage = usage if self._turns == 1 else self._usage + usage
        self._queued += fact.queued
        self._ttft += (fact.ttft,)
        self._text = fact.reply.text
        self._finish = fact.reply.finish
        if self._compaction_state is not None:
            self._compaction_state.on_reply(fact.reply)

    def _on_reply(self, reply: Reply) -> None:
        if reply.finish == "refusal":
            said = f"The model declined: {reply.text[:500]}" if reply.text else _DECLINED
            self._end(reply, Done(error=AgentError(ErrorKind.REFUSED, said)))
            return
        try:
            read = read_reply(self._config, reply, self._turns, self._job.input)
        except InvalidOutput as error:
            self._ask_for_valid_answer(reply, error)
            return
        self._unusable = None
        if isinstance(read, FinalAnswer):
            self._end(reply, Done(read.value))
        else:
            self._commit_calls(reply, read)

    def _end_at_limits(self) -> None:
        """Ends the agent if no turn is left for the results of calls, or no retry for an answer that fits."""
        if self._unusable is not None and self._reasks > self._config.max_retries:
            unusable, self._reasks = self._unusable, self._reasks - 1
            self._reask = unusable.previous_reask
            self._end(unusable.reply, Done(error=unusable.error(self._reasks)))
        elif self._calls.pending and self._turns_left < 1:
            last = self._messages.pop()
            assert isinstance(last, Assistant), "calls are committed together with their message"
            self._calls.pending = ()
            self._messages.append(Assistant(last.text, (), last.thoughts))
            self._done = Done(error=self._out_of_turns())

    def _ask_for_valid_answer(self, reply: Reply, problem: InvalidOutput) -> None:
        self._reasks += 1
        cut_off = " It was cut off by the token limit: be shorter." if reply.finish == "length" else ""
        previous = self._reask
        self._unusable = _Unusable(reply, str(problem), previous)
        self._reask = (
            Assistant(reply.text or "(empty)"),
            User(f"That answer cannot be used: {problem}.{cut_off} Answer again, and only with what was asked for."),
        )
        if self._compaction_state is not None:
            self._compaction_state.size.add(chars_in(self._reask) - chars_in(previous) - chars_of_turn(reply))

    def _commit_calls(self, reply: Reply, calls: tuple[ToolCall, ...]) -> None:
        echoed = tuple(map(echo, calls)) if self._config.tool_mode == "native" else ()
        self._messages += [*self._reask, Assistant(reply.text, echoed, reply.thoughts)]
        self._reask = ()
        self._calls.pending = calls

    def _append_results(self, results: ToolResults) -> None:
        if not self._config.takes_images and any(result.images for result in results.results):
            results = ToolResults(tuple(map(_without_images, results.results)))
        self._messages.append(results)
        for result in results.results:  # not any(): most agents have no references, and this is done in each turn
            if result.reference is not None and result.is_placed_first:
                self.has_references = True
        if self._compaction_state is not None:
            markup = markup_chars(results.results) if self.has_references else 0
            self._compaction_state.size.add(chars_of(results) + markup)

    def _end(self, reply: Reply, done: Done) -> None:
        self._messages += [*self._reask, Assistant(reply.text, (), reply.thoughts)]
        self._reask = ()
        self._done = done

    def _out_of_turns(self) -> AgentError:
        return AgentError(
            ErrorKind.MAX_TURNS,
            f"No final answer in {self._config.max_turns} turns: the model kept calling tools. Raise max_turns.",
        )


def _without_images(result: ToolResult) -> ToolResult:
    if not result.images:
        return result
    return replace(result, content=f"{result.content}\n{_NOT_SHOWN}", images=())
