"""Calls that arrive together become one call of a function that answers many."""

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any

from ..core.checks import LONGEST, at_least, is_number
from ..core.errors import SpecError
from ..core.quick import dataclass
from .texts import ToolTimeout, Worded, describe_error


@dataclass(frozen=True, slots=True)
class Batch:
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
    if isinstance(answer, Exception):
        raise answer
    return answer


Run = Callable[[Callable[[], Any], dict[str, Any]], Awaitable[Any]]


class Batcher:
    """Collects the calls of one tool. `run` executes the function, wherever it has to run, and is told what the calls
    have in common."""

    def __init__(self, batch: Batch, run: Run, may_repeat: bool) -> None:
        """`may_repeat`: whether a batch that failed may be tried again in halves."""
        self._batch = batch
        self._may_repeat = may_repeat
        self._run = run
        self._open: dict[Hashable, _Gathering] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.key_arg = batch.key_arg

    async def call(self, arguments: dict[str, Any], group: Hashable) -> Any:
        """The answer for one key; `group` is what calls must have in common to become one. Raises what the function
        raised for this key."""
        loop = asyncio.get_running_loop()
        gathering = self._open.get(group)
        if gathering is None:
            gathering = self._open[group] = _Gathering(arguments, [], [])
            gathering.timer = loop.call_later(self._batch.window, self._close, group)
        answer: asyncio.Future[Any] = loop.create_future()
        gathering.keys.append(arguments[self._batch.key_arg])
        gathering.answers.append(answer)
        if len(gathering.keys) >= self._batch.max_batch:
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
            if all(answer.cancelled() for answer in gathering.answers):
                task.cancel()

        for answer in gathering.answers:
            answer.add_done_callback(call_off)

    async def _answer(self, gathering: "_Gathering") -> None:
        shared = {name: value for name, value in gathering.arguments.items() if name != self._batch.key_arg}
        await self._ask(list(gathering.pairs()), shared)

    async def _ask(self, callers: "list[tuple[Any, asyncio.Future[Any]]]", shared: dict[str, Any]) -> None:
        """A batch that fails as a whole is halved until the key at fault is alone. Who has left is not asked for."""
        callers = [(key, answer) for key, answer in callers if not answer.done()]
        keys, answers = [key for key, _ in callers], [answer for _, answer in callers]
        if not keys:
            return
        try:
            given = await self._run(lambda: self._batch.function(keys, **shared), shared)
        except asyncio.CancelledError:
            for answer in answers:
                answer.cancel()
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's tool may raise anything
            if len(keys) == 1 or not self._may_repeat or isinstance(error, ToolTimeout):
                for answer in answers:
                    _settle(answer, None, error)
                return
            middle = len(keys) // 2
            await self._ask(callers[:middle], shared)
            await self._ask(callers[middle:], shared)
            return
        for position, answer in enumerate(answers):
            try:
                _settle(answer, pick(given, keys, position), None)
            except Exception as error:  # noqa: BLE001 - what the tool put there for this key
                _settle(answer, None, error)


@dataclass(slots=True)
class _Gathering:
    arguments: dict[str, Any]
    keys: list[Any]
    answers: "list[asyncio.Future[Any]]"
    timer: asyncio.TimerHandle | None = None

    def pairs(self) -> "zip[tuple[Any, asyncio.Future[Any]]]":
        return zip(self.keys, self.answers, strict=True)


def _settle(answer: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:  # a future takes no StopIteration, and a SystemExit would end the program
        is_odd = isinstance(error, StopIteration | SystemExit)
        answer.set_exception(Worded(describe_error(error)) if is_odd else error)
