"""A tool: a function that a model may call."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args, overload

from ..core.errors import SpecError
from ..core.prompt import ToolSpec
from .schema import Arguments, describe

Effect = Literal["pure", "read", "stateful", "write"]
"""What a call does beside giving a result. pure: nothing, and the same arguments always give the same. read: nothing,
but what it reads may change. stateful: it depends on this agent's earlier calls. write: it changes something."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tool:
    """Made with `@Tool.define`; still callable as the function that it is. Sync functions run in threads."""

    name: str
    description: str
    function: Callable[..., Any]
    arguments: Arguments
    timeout: float | None = None
    """Seconds; None: the run's timeout_per_tool."""
    max_tokens: int | None = None
    """A longer result is cut, with a marker that says so; None: the run's max_tool_tokens."""
    effect: Effect = "write"
    is_async: bool = field(init=False)

    read_file: ClassVar["Tool"]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise SpecError(f"Tool name {self.name!r}: use letters, digits, _ and -, at most 64 of them.")
        if inspect.isasyncgenfunction(self.function):
            raise SpecError(f"Tool {self.name!r}: an async generator gives no single result; return a list instead.")
        if self.effect not in get_args(Effect):
            raise SpecError(f"Tool {self.name!r}: effect must be one of {get_args(Effect)}; got {self.effect!r}.")
        object.__setattr__(self, "is_async", _is_async(self.function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def may_start_early(self) -> bool:
        """Whether a call that comes to nothing does no harm."""
        return self.effect in ("pure", "read")

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.description, self.arguments.schema)

    @overload
    @classmethod
    def define(cls, function: Callable[..., Any], /) -> "Tool": ...

    @overload
    @classmethod
    def define(
        cls,
        function: None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        max_tokens: int | None = None,
        effect: "Effect" = "write",
    ) -> Callable[[Callable[..., Any]], "Tool"]: ...

    @classmethod
    def define(
        cls, function: Callable[..., Any] | None = None, /, **options: Any
    ) -> "Tool | Callable[[Callable[..., Any]], Tool]":
        """Makes a tool of a function: its name, its docstring and its type hints are what the model sees."""
        frame = inspect.currentframe()
        namespace = dict(frame.f_back.f_locals) if frame and frame.f_back else None

        def decorate(inner: Callable[..., Any]) -> Tool:
            return make_tool(inner, namespace=namespace, **options)

        return decorate if function is None else decorate(function)


def make_tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    max_tokens: int | None = None,
    effect: Effect = "write",
    namespace: Mapping[str, Any] | None = None,
) -> Tool:
    """`namespace` holds the names that string annotations may use besides the function's own module."""
    called = name if name is not None else _name(function)
    said = describe(function) if description is None else description
    return Tool(called, said, function, Arguments(function, called, namespace), timeout, max_tokens, effect)


def _name(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        return _name(function.func)
    return str(getattr(function, "__name__", type(function).__name__))


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def as_tool(value: Any) -> Tool:
    """A tool as the user gave it: a Tool, or a plain function. Raises SpecError."""
    if isinstance(value, Tool):
        return value
    if callable(value) and not isinstance(value, type):
        return make_tool(value)
    raise SpecError(f"tools must be functions or Tool objects; got {value!r}. Decorate a function with @Tool.define.")
