"""One agent's life as a machine: facts in, the next step out. Replaying the same facts gives the same life."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, assert_never

import orjson

from ..core.errors import ErrorKind
from ..core.facts import Claimed, Fact, Inherited, Replied, Returned, Settled, Started
from ..core.interfaces import CallsPast
from ..core.messages import Assistant, Message, ToolCall, ToolResult, ToolResults, User
from ..core.quick import quick
from ..core.requests import NO_USAGE, FinishReason, Reply, Request
from ..core.results import AgentError, AgentResult, CallRecord, Timing
from ..core.rules import InvalidOutput, Job, Rules
from .actions import Final, as_json, read_action, show_results
from .answer import find_answer, fit, without_thoughts


@quick
@dataclass(frozen=True, slots=True)
class Generate:
    request: Request
    turns_left: int


@quick
@dataclass(frozen=True, slots=True)
class CallTools:
    calls: tuple[ToolCall, ...]
    past: CallsPast


@quick
@dataclass(frozen=True, slots=True)
class Done:
    output: Any = None
    error: AgentError | None = None


Step = Generate | CallTools | Done

PRIORITY_STEP = 100
MOST_FOR_TURNS = 9
"""Within a run, who has come further goes first; between runs, their own priorities decide. SGLang throws out what is
running for a priority that is higher by more than 10: the agents of one run must not do that to each other."""


class Conversation:
    """Messages only ever grow at their end, with one exception: asking again for an answer that did not fit replaces
    the last such question, so that the context does not grow with each try."""

    __slots__ = (
        "_asking_again",
        "_calls",
        "_claimed",
        "_done",
        "_finish",
        "_inherited",
        "_job",
        "_life",
        "_messages",
        "_pending",
        "_queued",
        "_reasks",
        "_rules",
        "_settled",
        "_text",
        "_ttft",
        "_turns",
        "_usage",
    )

    def __init__(self, rules: Rules, job: Job) -> None:
        self._rules = rules
        self._job = job
        self._messages: list[Message] = [User(job.task)]
        self._asking_again: tuple[Message, ...] = ()
        self._pending: tuple[ToolCall, ...] = ()
        self._claimed: set[str] = set()
        self._settled: dict[str, ToolResult] = {}
        self._inherited: tuple[ToolResult, ...] = ()
        self._life = 0
        self._done: Done | None = Done(error=job.problem) if job.problem else None
        self._reasks = 0
        self._turns = 0
        self._text = ""
        self._finish: FinishReason | None = None
        self._usage = NO_USAGE
        self._queued = 0.0
        self._ttft: tuple[float | None, ...] = ()
        self._calls: tuple[CallRecord, ...] = ()

    def next(self) -> Step:
        """What has to happen now. Asking twice gives the same answer."""
        if self._done is not None:
            return self._done
        if self._pending:
            return CallTools(self._pending, self._past())
        return Generate(self._request(), self._turns_left)

    def apply(self, fact: Fact) -> None:
        match fact:
            case Replied():
                self._count(fact)
                self._hear(fact.reply)
            case Returned(results):
                self._calls += tuple(
                    CallRecord(r.call.name, r.call.arguments, not r.is_error, r.seconds, r.source) for r in results
                )
                native = self._rules.tool_mode == "native"
                self._messages.append(ToolResults(results) if native else User(show_results(results)))
                self._pending = ()
                self._forget_made(results)
                self._claimed, self._settled = set(), {}
            case Started():
                pass
            case Claimed(call):
                self._claimed.add(call.id)
            case Settled(result):
                self._settled[result.call.id] = result
            case Inherited(results):
                self._inherited += results
                self._life = len(results)
            case _:
                assert_never(fact)

    def replay(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            self.apply(fact)

    def fail(self, error: AgentError) -> None:
        """Ends the agent from outside: its backend or its time is gone."""
        self._done = Done(error=error)

    def result(self, seconds: float) -> AgentResult:
        """Only meaningful once `next()` is Done."""
        done = self._done or Done()
        return AgentResult(
            index=self._job.index,
            key=self._job.key,
            input=self._job.input,
            output=done.output,
            text=self._text,
            error=done.error,
            finish=self._finish,
            usage=self._usage,
            turns=self._turns,
            tool_calls=self._calls,
            timing=Timing(self._queued, self._ttft, seconds),
            transcript=(*self._messages, *self._asking_again),
        )

    @property
    def _turns_left(self) -> int:
        """Turns that may still be taken, the next one included. Asking again for the same answer takes none."""
        return self._rules.max_turns - (self._turns - self._reasks)

    def _forget_made(self, results: tuple[ToolResult, ...]) -> None:
        """What an earlier life has made stands for one call of this one, not for every later one like it."""
        for result in results:
            if result.source == "recalled" and result.call.id not in self._settled:
                same = (result.call.name, result.call.arguments)
                kept = [(made.call.name, made.call.arguments) for made in self._inherited]
                if same in kept:
                    at = kept.index(same)
                    self._inherited = self._inherited[:at] + self._inherited[at + 1 :]

    def _past(self) -> CallsPast:
        return CallsPast(
            self._turns,
            dict(self._settled),
            frozenset(self._claimed - self._settled.keys()),
            self._inherited,
            self._calls,
            self._life,
        )

    def _request(self) -> Request:
        rules = self._rules
        is_last = self._turns_left <= 1
        return Request(
            prompt=rules.prompt,
            messages=(*self._messages, *self._asking_again),
            model=rules.model,
            sampling=rules.sampling,
            answer_schema=rules.last_turn_schema if is_last else rules.turn_schema,
            may_call_tools=not is_last,
            stream=rules.stream,
            agent=self._job.key,
            turn=self._turns,
            priority=rules.priority * PRIORITY_STEP + min(self._turns, MOST_FOR_TURNS),
        )

    def _count(self, fact: Replied) -> None:
        self._turns += 1
        usage = fact.reply.usage
        self._usage = usage if self._turns == 1 else self._usage + usage
        self._queued += fact.queued
        self._ttft += (fact.ttft,)
        self._text = fact.reply.text
        self._finish = fact.reply.finish

    def _hear(self, reply: Reply) -> None:
        if reply.finish == "refusal":
            self._end(reply, Done(error=AgentError(ErrorKind.REFUSED, f"The model declined: {reply.text[:500]}")))
            return
        try:
            answer = self._read(reply)
        except InvalidOutput as error:
            self._ask_again(reply, error)
            return
        if isinstance(answer, Done):
            self._end(reply, answer)
        elif self._turns_left < 1:
            self._end(reply, Done(error=self._out_of_turns()))
        else:
            self._commit_calls(reply, answer)

    def _read(self, reply: Reply) -> Done | tuple[ToolCall, ...]:
        """The answer, or the calls that the model wants first. Raises InvalidOutput when it is neither."""
        is_whole = reply.finish != "length"
        if self._rules.tool_mode == "action":
            action = read_action(reply.text, f"call_{self._turns}", is_whole=is_whole)
            if isinstance(action, ToolCall):
                return (action,)
            return Done(self._final(action))
        if reply.calls:
            return self._named_apart(reply.calls, is_whole)
        return Done(self._answer(reply.text, is_whole))

    def _named_apart(self, calls: tuple[ToolCall, ...], is_whole: bool) -> tuple[ToolCall, ...]:
        """The calls with an id each, whatever the server gave. No arguments mean none only if nothing was cut off."""
        ids = [call.id for call in calls]
        if not all(ids) or len(set(ids)) < len(ids):
            ids = [f"call_{self._turns}_{number}" for number in range(len(calls))]
        empty = "{}" if is_whole else ""
        return tuple(
            replace(call, id=own, arguments=call.arguments if call.arguments.strip() else empty)
            for call, own in zip(calls, ids, strict=True)
        )

    def _final(self, action: Final) -> Any:
        if self._rules.output is not None:
            return fit(action.value, self._rules.output)
        said = action.value if isinstance(action.value, str) else as_json(action.value)
        if not said.strip():
            raise InvalidOutput("it is empty")
        return said

    def _answer(self, text: str, is_whole: bool) -> Any:
        if self._rules.output is not None:
            return find_answer(text, self._rules.output, is_whole=is_whole)
        said = without_thoughts(text, is_whole=is_whole)
        if not said:
            raise InvalidOutput("it is empty")
        if not is_whole and self._rules.sampling.max_tokens is None:
            raise InvalidOutput("it was cut off before its end")
        return said

    def _ask_again(self, reply: Reply, problem: InvalidOutput) -> None:
        if self._reasks >= self._rules.max_retries:
            kind = ErrorKind.TRUNCATED if reply.finish == "length" else ErrorKind.INVALID_OUTPUT
            tries = f" after {self._reasks + 1} tries" if self._reasks else ""
            hint = " Raise max_tokens." if kind is ErrorKind.TRUNCATED else ""
            self._end(reply, Done(error=AgentError(kind, f"No usable answer{tries}: {problem}.{hint}", retryable=True)))
            return
        self._reasks += 1
        cut_off = " It was cut off by the token limit: be shorter." if reply.finish == "length" else ""
        self._asking_again = (
            Assistant(reply.text or "(empty)"),
            User(f"That answer cannot be used: {problem}.{cut_off} Answer again, and only with what was asked for."),
        )

    def _commit_calls(self, reply: Reply, calls: tuple[ToolCall, ...]) -> None:
        echoed = tuple(map(_echo, calls)) if self._rules.tool_mode == "native" else ()
        self._messages += [*self._asking_again, Assistant(reply.text, echoed, reply.thoughts)]
        self._asking_again = ()
        self._pending = calls

    def _end(self, reply: Reply, done: Done) -> None:
        self._messages += [*self._asking_again, Assistant(reply.text, (), reply.thoughts)]
        self._asking_again = ()
        self._done = done

    def _out_of_turns(self) -> AgentError:
        return AgentError(
            ErrorKind.MAX_TURNS,
            f"No final answer in {self._rules.max_turns} turns: the model still wanted to call tools. Raise max_turns.",
        )


def _echo(call: ToolCall) -> ToolCall:
    """The call as the history shows it. Servers parse the arguments in it, so a malformed text is shown as data."""
    try:
        if isinstance(orjson.loads(call.arguments), dict):
            return call
    except orjson.JSONDecodeError:
        pass
    return replace(call, arguments=orjson.dumps({"malformed": call.arguments}).decode())
