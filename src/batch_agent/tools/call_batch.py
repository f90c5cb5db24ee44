"""Batching of tool calls: calls that arrive together become one call of a batch function."""

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any

from ..aio import is_being_cancelled, is_failure
from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.validation import MAX_SECONDS, at_least, is_number
from .result_text import PlainToolError, ToolTimeout, describe_error
from .write_claims import ClaimEntry, WriteClaim


@dataclass(frozen=True, slots=True)
class CallBatch:
    """Batching of a tool's calls: `function` takes a list of values of `key_arg`, which the model passes one at a
    time."""

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
            raise SpecError(f"key_arg must be the name of the key's parameter, such as 'id'; got {self.key_arg!r}.")
        if not (is_number(self.window) and 0 <= self.window <= MAX_SECONDS):
            raise SpecError(f"window must be a number of seconds >= 0; got {self.window!r}.")


class NoResult(LookupError):
    """The batch function returned nothing for this key."""


def single(function: Callable[..., Any], key_arg: str, namespace: Mapping[str, Any] | None) -> Callable[..., Any]:
    """A function of one key, with the signature that the model sees. It calls `function` with a list of one."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise SpecError(f"Tool {function.__name__!r}: a batch function takes a list of keys as its first parameter.")
    keys, *others = parameters
    hints = typing.get_type_hints(function, localns=dict(namespace) if namespace else None, include_extras=True)
    inner = typing.get_args(hints.get(keys.name, list[Any]))
    parameter = inspect.Parameter(
        key_arg, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=inner[0] if inner else Any
    )

    async def one(**arguments: Any) -> Any:
        key = arguments.pop(key_arg)
        value = function([key], **arguments)
        answers = await value if inspect.isawaitable(value) else value
        return pick(answers, [key], 0)

    one.__name__ = function.__name__
    one.__doc__ = function.__doc__
    one.__signature__ = inspect.Signature([parameter, *others])  # type: ignore[attr-defined]
    one.__annotations__ = {key_arg: parameter.annotation} | {other.name: hints.get(other.name, Any) for other in others}
    return one


def pick(answers: Any, keys: Sequence[Any], position: int) -> Any:
    """The result of a batch function for one of its keys. Raises it if it is an exception, and NoResult."""
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
    """Collects the calls of one tool into batches."""

    def __init__(self, batch: CallBatch, run: Run, may_repeat: bool) -> None:
        """`run`: executes the function, with the arguments that the calls have in common. `may_repeat`: whether a
        failed batch is split and retried."""
        self._batch = batch
        self._may_repeat = may_repeat
        self._run = run
        self._open: dict[Hashable, _PendingBatch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.key_arg = batch.key_arg

    async def call(self, arguments: dict[str, Any], group: Hashable, claim: WriteClaim | None = None) -> Any:
        """Returns the result for one key. Only calls of the same `group` are batched. `claim`: the claim of a write.
        Raises what the function raised for this key."""
        loop = asyncio.get_running_loop()
        pending = self._open.get(group)
        if pending is None:
            pending = self._open[group] = _PendingBatch(arguments, [])
            pending.timer = loop.call_later(self._batch.window, self._close, group)
        answer: asyncio.Future[Any] = loop.create_future()
        pending.callers.append(_Caller(arguments[self._batch.key_arg], answer, claim))
        if len(pending.callers) >= self._batch.max_batch:
            self._close(group)
        return await answer

    async def aclose(self) -> None:
        for pending in self._open.values():
            if pending.timer is not None:
                pending.timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _close(self, group: Hashable) -> None:
        pending = self._open.pop(group)
        if pending.timer is not None:
            pending.timer.cancel()
        task = asyncio.get_running_loop().create_task(self._run_batch(pending))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def cancel_if_abandoned(_: "asyncio.Future[Any]") -> None:
            if all(caller.answer.cancelled() for caller in pending.callers):
                task.cancel()

        for caller in pending.callers:
            caller.answer.add_done_callback(cancel_if_abandoned)

    async def _run_batch(self, pending: "_PendingBatch") -> None:
        shared = {name: value for name, value in pending.arguments.items() if name != self._batch.key_arg}
        await self._execute(pending.callers, shared)

    async def _execute(self, callers: "Sequence[_Caller]", shared: dict[str, Any]) -> None:
        """Executes a batch. If it fails as a whole, it is halved until the failing key is alone. Keys of callers that
        have left are omitted."""
        callers = [caller for caller in callers if not caller.answer.done()]
        entered: list[_Caller] = []

        def call() -> Any:
            entered[:] = [caller for caller in callers if caller.enters()]
            if not entered:
                raise NoResult("all of its callers have left")
            return self._batch.function([caller.key for caller in entered], **shared)

        if not callers:
            return
        try:
            answers = await self._run(call, shared, ClaimEntry(_Claims(callers)))
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
                _settle(caller.answer, pick(answers, keys, position), None)
            except BaseException as error:  # noqa: BLE001 - the tool's result for this key
                _settle(caller.answer, None, error)

    async def _failed(self, callers: "list[_Caller]", shared: dict[str, Any], error: BaseException) -> None:
        if len(callers) == 1 or not self._may_repeat or isinstance(error, ToolTimeout):
            for caller in callers:
                _settle(caller.answer, None, error)
            return
        middle = len(callers) // 2
        await self._execute(callers[:middle], shared)
        await self._execute(callers[middle:], shared)


@dataclass(frozen=True, slots=True)
class _Caller:
    key: Any
    answer: "asyncio.Future[Any]"
    claim: WriteClaim | None

    def enters(self) -> bool:
        """Decides, when the function is about to be called, whether the key is part of the batch."""
        return self.claim is None or (self.claim.failure is None and self.claim.enter())


class _Claims:
    """Claims of a batch. A caller whose claim fails does not affect the others."""

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
class _PendingBatch:
    arguments: dict[str, Any]
    callers: "list[_Caller]"
    timer: asyncio.TimerHandle | None = None


def _settle(answer: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:  # a future does not accept StopIteration, and SystemExit would end the program
        is_odd = isinstance(error, StopIteration) or not isinstance(error, Exception | asyncio.CancelledError)
        answer.set_exception(PlainToolError(describe_error(error)) if is_odd else error)
