"""A tool: a function that a model may call."""

import functools
import inspect
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import field, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.messages import ToolSpec
from ..core.validation import at_least, explain_unknown_name, text_or_none
from .batching import CallBatch, single
from .parameters import ReadsArguments
from .policy import Effect, ExecutionLimits, SharingPolicy

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolOptions(TypedDict, total=False):
    """What `Tool.define` takes beside the function; see SharingPolicy and ExecutionLimits for what each means."""

    name: str | None
    description: str | None
    max_tokens: int | None
    summarize: bool
    effect: Effect
    cacheable: bool
    ttl: float | None
    version: Callable[[Mapping[str, Any]], Hashable] | None
    keeps_errors: bool
    idempotency_arg: str | None
    history_arg: str | None
    idempotent: bool
    timeout: float | None
    max_concurrent: int | None
    rate_limit: float | None
    burst: int | None
    rate_key: Callable[[Mapping[str, Any]], str] | None
    retries: int
    retry_on: tuple[type[Exception], ...]
    backoff: float


class BuiltIn:
    """A tool that comes with the package: made when it is first asked for, by `NAME_tool()` of a module in builtin/."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._made: Tool | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tool: "Tool | None", owner: type) -> "Tool":
        if self._made is None:
            made: Tool = getattr(import_module(f".builtin.{self._home}", __package__), f"{self._name}_tool")()
            self._made = made
        return self._made


class _ToolClass(type):
    """Says what to write in the place of names that batch-agent 0.2 put into the class."""

    if not TYPE_CHECKING:  # a type checker would believe that the class has every attribute

        def __getattr__(cls, name: str) -> Any:
            hint = explain_unknown_name("tool option", name, [known for known in dir(cls) if not known.startswith("_")])
            own = f"A tool of your own is the object that @Tool.define gives: tools=[{name}]."
            raise AttributeError(f"Tool has no {name!r}.{hint} {own}")


@dataclass(frozen=True, slots=True)
class Tool(metaclass=_ToolClass):
    """Made with `@Tool.define`; still callable as the function that it is. Sync functions run in threads."""

    name: str
    description: str
    function: Callable[..., Any]
    arguments: ReadsArguments
    sharing: SharingPolicy = field(default_factory=SharingPolicy)
    pace: ExecutionLimits = field(default_factory=ExecutionLimits)
    max_tokens: int | None = None
    """A longer result is cut, with a marker that says so; None: the run's max_tool_tokens."""
    summarize: bool = False
    """A longer result is summarized by the model instead, once for all agents that share it."""
    batch: CallBatch | None = None
    """How calls that arrive together become one."""
    is_async: bool = field(init=False)

    read_file = BuiltIn("files")
    list_files = BuiltIn("files")
    grep = BuiltIn("files")
    http_get = BuiltIn("web")
    web_search = BuiltIn("search")
    python_eval = BuiltIn("python_eval")
    claude_code = BuiltIn("claude_code")

    @staticmethod
    def sql(url: str, *, max_rows: int = 200, timeout: float = 30.0, name: str = "sql") -> "Tool":
        """A tool `sql(query)` that reads the database at `url`. Raises SpecError; see `tools.sql_tool`."""
        from .builtin.sql import sql_tool  # which needs this class

        return sql_tool(url, max_rows=max_rows, timeout=timeout, name=name)

    def __post_init__(self) -> None:
        check_name(self.name)
        if inspect.isasyncgenfunction(self.function):
            raise SpecError(f"Tool {self.name!r}: an async generator gives no single result; return a list instead.")
        if self.pace.retries and not self.sharing.is_repeatable:
            raise SpecError(
                f"Tool {self.name!r}: a write whose answer was lost may have been made; to try it again, say that it "
                "may be made twice (idempotent=True), or take a key (idempotency_arg=...)."
            )
        if self.max_tokens is not None:
            at_least(f"Tool {self.name!r}: max_tokens", self.max_tokens, 1)
        if not isinstance(self.summarize, bool):
            raise SpecError(f"Tool {self.name!r}: summarize must be True or False; got {self.summarize!r}.")
        object.__setattr__(self, "is_async", _is_async(self.function))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"A Tool has no {name!r}.{explain_unknown_name('tool option', name, self.__slots__)}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.description, self.arguments.schema)

    @overload
    @classmethod
    def define(cls, function: Callable[..., Any], /) -> "Tool": ...

    @overload
    @classmethod
    def define(
        cls, function: None = None, /, **options: Unpack[ToolOptions]
    ) -> Callable[[Callable[..., Any]], "Tool"]: ...

    @classmethod
    def define(
        cls, function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]
    ) -> "Tool | Callable[[Callable[..., Any]], Tool]":
        """Makes a tool of a function: its name, its docstring and its type hints are what the model sees."""
        namespace = _callers_names()

        def decorate(inner: Callable[..., Any]) -> Tool:
            if isinstance(inner, Tool):
                return _defined_before(inner, options)
            return make_tool(inner, namespace=namespace, **options)

        return decorate if function is None else decorate(function)

    @classmethod
    def batchable(
        cls, *, key_arg: str, max_batch: int = 100, window: float = 0.005, **options: Unpack[ToolOptions]
    ) -> Callable[[Callable[..., Any]], "Tool"]:
        """Makes a tool of a function that answers many calls at once.

        The function takes a list of keys, and further parameters that calls must share; it returns a dict by key, or a
        list in the order of the keys, in which an exception stands for a key that failed. The model sees one key,
        called `key_arg`. Calls that arrive within `window` seconds become one, of at most `max_batch` keys."""
        namespace = _callers_names()

        def decorate(inner: Callable[..., Any]) -> Tool:
            if isinstance(inner, Tool):
                raise SpecError(
                    f"Tool {inner.name!r} is a tool already. Leave @Tool.define out: Tool.batchable takes its options."
                )
            if "cacheable" not in options:
                options.setdefault("effect", "read")
            batch = CallBatch(inner, key_arg, max_batch, window)
            return make_tool(single(inner, key_arg, namespace), namespace=namespace, batch=batch, **options)

        return decorate

    @classmethod
    def summarizable(cls, tool: "Tool | Callable[..., Any]") -> "Tool":
        """The same tool, whose long results the model summarizes instead of cutting them."""
        return replace(tool if isinstance(tool, Tool) else make_tool(tool), summarize=True)


def check_name(name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SpecError(f"Tool name {name!r}: use letters, digits, _ and -, at most 64 of them.")


def make_tool(
    function: Callable[..., Any],
    *,
    namespace: Mapping[str, Any] | None = None,
    batch: CallBatch | None = None,
    **options: Unpack[ToolOptions],
) -> Tool:
    """`namespace` holds the names that string annotations may use besides the function's own module."""
    # Brings Pydantic, which runs without tools do not need.
    from .parameters.function_signature import Arguments, describe

    chosen: dict[str, Any] = dict(options)
    named, said = chosen.pop("name", None), chosen.pop("description", None)
    if not callable(function):
        raise SpecError(f"A tool is made of a function; got {function!r}.")
    called = _name(function) if named is None else named
    check_name(called)
    text_or_none(f"Tool {called!r}: description", said)
    try:
        sharing, pace = _policies(chosen)
    except SpecError as error:
        raise SpecError(f"Tool {called!r}: {error}") from None
    filled = {"idempotency_arg": sharing.idempotency_arg, "history_arg": sharing.history_arg}
    hidden = tuple(filter(None, filled.values()))
    for option, parameter in filled.items():
        if parameter is not None and parameter not in inspect.signature(function).parameters:
            raise SpecError(f"Tool {called!r}: {option}: its function has no parameter {parameter!r} to be filled in.")
    return Tool(
        called,
        describe(function) if said is None else said,
        function,
        Arguments(function, called, namespace, hidden),
        sharing,
        pace,
        max_tokens=chosen.pop("max_tokens", None),
        summarize=chosen.pop("summarize", False),
        batch=batch,
    )


def _defined_before(tool: Tool, options: ToolOptions) -> Tool:
    """What `Tool.define` makes of a tool: the same one, if nothing else is said of it."""
    if options:
        raise SpecError(
            f"Tool {tool.name!r} is a tool already: give {', '.join(f'{name}=' for name in options)} to what made it, "
            "as in @Tool.batchable(key_arg=..., ...), and leave @Tool.define out."
        )
    return tool


def _policies(chosen: dict[str, Any]) -> tuple[SharingPolicy, ExecutionLimits]:
    known = ToolOptions.__annotations__
    for name in chosen:
        if name not in known:
            raise SpecError(f"unknown option {name!r}.{explain_unknown_name('tool option', name, known)}")
    cacheable = chosen.pop("cacheable", None)
    if cacheable is not None:
        if "effect" in chosen:
            raise SpecError("effect and cacheable say the same thing; keep effect.")
        if not isinstance(cacheable, bool):
            raise SpecError(f"cacheable must be True or False; got {cacheable!r}.")
        chosen["effect"] = "read" if cacheable else "write"
    sharing = SharingPolicy(**{f.name: chosen.pop(f.name) for f in fields(SharingPolicy) if f.name in chosen})
    pace = ExecutionLimits(**{f.name: chosen.pop(f.name) for f in fields(ExecutionLimits) if f.name in chosen})
    return sharing, pace


def _callers_names() -> dict[str, Any] | None:
    """The local names where a tool is defined, two frames up: string annotations may use them."""
    frame = inspect.currentframe()
    caller = frame.f_back.f_back if frame and frame.f_back else None
    return dict(caller.f_locals) if caller else None


def _name(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        return _name(function.func)
    return str(getattr(function, "__name__", type(function).__name__))


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
