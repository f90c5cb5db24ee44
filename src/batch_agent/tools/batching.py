"""Calls that arrive together become one call of a function that answers many."""

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any

from ..aio import is_being_cancelled, is_failure
from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.validation import LONGEST, at_least, is_number
from .result_text import PlainToolError, ToolTimeout, describe_error
from .write_claims import ClaimEntry, WriteClaim


@dataclass(frozen=True, slots=True)
class CallBatch:
    """How calls become one: `function` takes a list of what the model calls `key_arg`."""

    function: Callable[..., Any]
    key_arg: str
    max_batch: int = 100
    window: float = 0.005

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def __post_init__(self) -> None:
        at_least("max_batch", self.max_batch, 1)
        if not isinstance(self.key_arg, str) or not self.key_arg.isidentifier():
            raise SpecError(f"key_arg must be the name that the model gives a key, such as 'id'; got {self.key_arg!r}.")
        if not (is_number(self.window) and 0 <= self.window <= LONGEST):
            raise SpecError(f"window must be a number of seconds of at least 0; got {self.window!r}.")


class NoResult(LookupError):
    """The batch function had no answer for this key."""


def single(function: Callable[..., Any], key_arg: str, namespace: Mapping[str, Any] | None) -> Callable[..., Any]:
    """A function of one key with the signature that the model sees; calling it calls `function` with a list of one."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise SpecError(f"Tool {function.__name__!r}: a batch function takes a list of keys as its first parameter.")
    keys, *others = parameters
    hints = typing.get_type_hints(function, localns=dict(namespace) if namespace else None, include_extras=True)
    inner = typing.get_args(hints.get(keys.name, list[Any]))
    key = inspect.Parameter(key_arg, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=inner[0] if inner else Any)

    async def one(**arguments: Any) -> Any:
        wanted = arguments.pop(key_arg)
        given = function([wanted], **arguments)
        answers = await given if inspect.isawaitable(given) else given
        return pick(answers, [wanted], 0)

    one.__name__ = function.__name__
    one.__doc__ = function.__doc__
    one.__signature__ = inspect.Signature([key, *others])  # type: ignore[attr-defined]
    one.__annotations__ = {key_arg: key.annotation} | {other.name: hints.get(other.name, Any) for other in others}
    return one


def pick(answers: Any, keys: Sequence[Any], position: int) -> Any:
    """What a batch function gave for one of its keys. Raises what stands there, and NoResult."""
    if isinstance(answers, Mapping):
        if keys[position] not in answers:
            raise NoResult(f"there is nothing for {keys[position]!r}")
        answer = answers[keys[position]]
    elif isinstance(answers, Sequence) and not isinstance(answers, str | bytes) and len(answers) == len(keys):
        answer = answers[position]
    else:
        raise TypeError(f"a batch function must return a dict by key, or a list of {len(keys)} in the keys' order")
    if isinstance(answer, BaseException):
        raise answer
    return answer


Run = Callable[[Callable[[], Any], dict[str, Any], ClaimEntry], Awaitable[Any]]


class Batcher:
    """Collects the calls of one tool. `run` executes the function, wherever it has to run, and is told what the calls
    have in common."""

    def __init__(self, batch: CallBatch, run: Run, may_repeat: bool) -> None:
        """`may_repeat`: whether a batch that failed may be tried again in halves."""
        self._batch = batch
        self._may_repeat = may_repeat
        self._run = run
        self._open: dict[Hashable, _Gathering] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.key_arg = batch.key_arg

    async def call(self, arguments: dict[str, Any], group: Hashable, claim: WriteClaim | None = None) -> Any:
        """The answer for one key; `group` is what calls must have in common to become one. `claim`: that of a write.
        Raises what the function raised for this key."""
        loop = asyncio.get_running_loop()
        gathering = self._open.get(group)
        if gathering is None:
            gathering = self._open[group] = _Gathering(arguments, [])
            gathering.timer = loop.call_later(self._batch.window, self._close, group)
        answer: asyncio.Future[Any] = loop.create_future()
        gathering.callers.append(_Caller(arguments[self._batch.key_arg], answer, claim))
        if len(gathering.callers) >= self._batch.max_batch:
            self._close(group)
        return await answer

    async def aclose(self) -> None:
        for gathering in self._open.values():
            if gathering.timer is not None:
                gathering.timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _close(self, group: Hashable) -> None:
        gathering = self._open.pop(group)
        if gathering.timer is not None:
            gathering.timer.cancel()
        task = asyncio.get_running_loop().create_task(self._answer(gathering))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def call_off(_: "asyncio.Future[Any]") -> None:
            if all(caller.answer.cancelled() for caller in gathering.callers):
                task.cancel()

        for caller in gathering.callers:
            caller.answer.add_done_callback(call_off)

    async def _answer(self, gathering: "_Gathering") -> None:
        shared = {name: value for name, value in gathering.arguments.items() if name != self._batch.key_arg}
        await self._ask(gathering.callers, shared)

    async def _ask(self, callers: "Sequence[_Caller]", shared: dict[str, Any]) -> None:
        """A batch that fails as a whole is halved until the key at fault is alone. Who has left is not asked for."""
        callers = [caller for caller in callers if not caller.answer.done()]
        entered: list[_Caller] = []

        def call() -> Any:
            entered[:] = [caller for caller in callers if caller.enters()]
            if not entered:
                raise NoResult("nobody waits for it any more")
            return self._batch.function([caller.key for caller in entered], **shared)

        if not callers:
            return
        try:
            given = await self._run(call, shared, ClaimEntry(_Claims(callers)))
        except BaseException as error:  # a user's tool may raise anything
            if is_being_cancelled():
                for caller in callers:
                    caller.answer.cancel()
                raise
            if not is_failure(error):
                raise
            await self._failed(callers, shared, error)
            return
        keys = [caller.key for caller in entered]
        for position, caller in enumerate(entered):
            try:
                _settle(caller.answer, pick(given, keys, position), None)
            except BaseException as error:  # noqa: BLE001 - what the tool put there for this key
                _settle(caller.answer, None, error)

    async def _failed(self, callers: "list[_Caller]", shared: dict[str, Any], error: BaseException) -> None:
        if len(callers) == 1 or not self._may_repeat or isinstance(error, ToolTimeout):
            for caller in callers:
                _settle(caller.answer, None, error)
            return
        middle = len(callers) // 2
        await self._ask(callers[:middle], shared)
        await self._ask(callers[middle:], shared)


@dataclass(frozen=True, slots=True)
class _Caller:
    key: Any
    answer: "asyncio.Future[Any]"
    claim: WriteClaim | None

    def enters(self) -> bool:
        """Whether its key is asked for, now that the function is called."""
        return self.claim is None or (self.claim.failure is None and self.claim.enter())


class _Claims:
    """Those of a batch, together. Who cannot claim fails alone."""

    failure = None

    def __init__(self, callers: "Sequence[_Caller]") -> None:
        self._callers = [caller for caller in callers if caller.claim is not None]

    async def take(self) -> None:
        claims = [caller.claim.take() for caller in self._callers if caller.claim is not None]
        taken = await asyncio.gather(*claims, return_exceptions=True)
        for caller, failure in zip(self._callers, taken, strict=True):
            if failure is not None:
                _settle(caller.answer, None, failure)

    def enter(self) -> bool:
        """Each caller enters by itself."""
        return True


@dataclass(slots=True)
class _Gathering:
    arguments: dict[str, Any]
    callers: "list[_Caller]"
    timer: asyncio.TimerHandle | None = None


def _settle(answer: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:  # a future takes no StopIteration, and a SystemExit would end the program
        is_odd = isinstance(error, StopIteration) or not isinstance(error, Exception | asyncio.CancelledError)
        answer.set_exception(PlainToolError(describe_error(error)) if is_odd else error)
