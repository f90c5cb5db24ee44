"""Tool: a function that a model may call, with its schema, sharing policy and limits."""

import functools
import inspect
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar, Unpack, overload

from ..core.errors import SpecError
from ..core.fast_dataclass import dataclass
from ..core.messages import Placement, ToolSpec
from ..core.validation import at_least, explain_unknown_name, text_or_none
from ..lazy_imports import lazy_modules
from .call_batch import CallBatch, single
from .parameters import ArgumentReader
from .policy import Effect, ExecutionLimits, SharingPolicy

with lazy_modules(globals()):
    from .parameters import function_signature

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolOptions(TypedDict, total=False):
    """Options of `Tool.define`. SharingPolicy and ExecutionLimits document them."""

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
    placement: Placement | None
    idempotent: bool
    timeout: float | None
    max_concurrent: int | None
    rate_limit: float | None
    burst: int | None
    rate_key: Callable[[Mapping[str, Any]], str] | None
    retries: int
    retry_on: tuple[type[Exception], ...]
    backoff: float


T = TypeVar("T")


class BuiltinTool(Generic[T]):
    """Descriptor of a built-in tool, which is loaded at first use: `make` receives `NAME_tool` of a module in
    builtin/."""

    def __init__(self, module: str, make: "Callable[[Any], T]") -> None:
        self._module = module
        self._make = make
        self._value: T | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tool: "Tool | None", owner: type) -> T:
        if self._value is None:
            module = import_module(f".builtin.{self._module}", __package__)
            self._value = self._make(getattr(module, f"{self._name}_tool"))
        return self._value


class SqlToolFactory(Protocol):
    """Type of `Tool.sql`."""

    def __call__(self, url: str, *, max_rows: int = 200, timeout: float = 30.0, name: str = "sql") -> "Tool":
        """A tool `sql(query)` that reads the database at `url`. Raises SpecError; see `tools.sql_tool`."""
        ...


def _with_defaults(factory: "Callable[[], Tool]") -> "Tool":
    return factory()


def _factory(factory: SqlToolFactory) -> SqlToolFactory:
    return factory


class _ToolClass(type):
    """Suggests the replacement for names that batch-agent 0.2 put into the class."""

    if not TYPE_CHECKING:  # a type checker would believe that the class has every attribute

        def __getattr__(cls, name: str) -> Any:
            if name.startswith("__") or name in cls.__annotations__:  # as dataclasses ask, for defaults of fields
                raise AttributeError(name)
            hint = explain_unknown_name("tool option", name, [known for known in dir(cls) if not known.startswith("_")])
            own = f"Pass a tool of your own as the object that @Tool.define returns: tools=[{name}]."
            raise AttributeError(f"Tool has no {name!r}.{hint} {own}")


@dataclass(frozen=True, slots=True)
class Tool(metaclass=_ToolClass):
    """A function that agents may call, made with `@Tool.define`. It remains callable as the function; sync functions
    run in threads when an agent calls them."""

    name: str
    description: str
    function: Callable[..., Any]
    arguments: ArgumentReader
    sharing: SharingPolicy = field(default_factory=SharingPolicy)
    limits: ExecutionLimits = field(default_factory=ExecutionLimits)
    max_tokens: int | None = None
    """Longer results are truncated, with a marker; None: the run's max_tool_tokens."""
    summarize: bool = False
    """Longer results are summarized by the model instead of truncated, once for all agents that share them."""
    batch: CallBatch | None = None
    """How to execute calls that arrive together as one; None: each by itself."""
    context_arg: str | None = None
    """The parameter that is annotated as a ToolContext, which the engine fills in."""
    relocate: "Callable[[Path | None, str | None], Tool] | None" = None
    """For a file tool without a folder of its own: makes the tool for a folder and an encoding of its files."""
    returns_images: bool = False
    """Whether the function is annotated to return images. The run then finds out first whether the model takes
    images."""
    is_async: bool = field(init=False)

    read_file = BuiltinTool("files", _with_defaults)
    list_files = BuiltinTool("files", _with_defaults)
    grep = BuiltinTool("files", _with_defaults)
    http_get = BuiltinTool("web", _with_defaults)
    web_search = BuiltinTool("search", _with_defaults)
    python_eval = BuiltinTool("python_eval", _with_defaults)
    claude_code = BuiltinTool("claude_code", _with_defaults)
    sql = BuiltinTool("sql", _factory)

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.limits.retries and not self.sharing.is_repeatable:
            raise SpecError(
                f"Tool {self.name!r}: a write that failed may have taken effect, so it is not retried. "
                "Set idempotent=True if it can safely be repeated, or take an idempotency key (idempotency_arg=...)."
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
    def is_shared(self) -> bool:
        """Whether agents share its results. A tool that takes a context is never shared."""
        return self.sharing.is_shared and self.context_arg is None

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
        """Makes a tool of a function. The model sees its name, docstring and type hints."""
        namespace = _callers_locals()

        def decorate(inner: Callable[..., Any]) -> Tool:
            if isinstance(inner, Tool):
                return _already_defined(inner, options)
            return make_tool(inner, namespace=namespace, **options)

        return decorate if function is None else decorate(function)

    @classmethod
    def batchable(
        cls, *, key_arg: str, max_batch: int = 100, window: float = 0.005, **options: Unpack[ToolOptions]
    ) -> Callable[[Callable[..., Any]], "Tool"]:
        """Makes a tool of a function that executes many calls at once.

        The function takes a list of keys, and further parameters that must be equal in all calls of a batch. It returns
        a dict by key, or a list in the order of the keys; an exception as a value is the error of that key. The model
        sees one key, named `key_arg`. Calls that arrive within `window` seconds become one execution, of at most
        `max_batch` keys."""
        namespace = _callers_locals()

        def decorate(inner: Callable[..., Any]) -> Tool:
            if isinstance(inner, Tool):
                raise SpecError(
                    f"Tool {inner.name!r} is already a tool. Remove @Tool.define: Tool.batchable takes its options."
                )
            if "cacheable" not in options:
                options.setdefault("effect", "read")
            batch = CallBatch(inner, key_arg, max_batch, window)
            return make_tool(single(inner, key_arg, namespace), namespace=namespace, batch=batch, **options)

        return decorate

    @classmethod
    def summarizable(cls, tool: "Tool | Callable[..., Any]") -> "Tool":
        """A copy of the tool whose long results the model summarizes, instead of truncating them."""
        return replace(tool if isinstance(tool, Tool) else make_tool(tool), summarize=True)


def check_name(name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SpecError(f"Tool name {name!r}: use at most 64 letters, digits, _ and -.")


def make_tool(
    function: Callable[..., Any],
    *,
    namespace: Mapping[str, Any] | None = None,
    batch: CallBatch | None = None,
    **options: Unpack[ToolOptions],
) -> Tool:
    """Makes a tool of a function. `namespace`: names that string annotations may use in addition to those of the
    function's module."""
    chosen: dict[str, Any] = dict(options)
    name, description = chosen.pop("name", None), chosen.pop("description", None)
    if not callable(function):
        raise SpecError(f"A tool needs a function; got {function!r}.")
    name = _name(function) if name is None else name
    check_name(name)
    text_or_none(f"Tool {name!r}: description", description)
    try:
        sharing, limits = _policies(chosen)
    except SpecError as error:
        raise SpecError(f"Tool {name!r}: {error}") from None
    filled = {"idempotency_arg": sharing.idempotency_arg, "history_arg": sharing.history_arg}
    hidden = tuple(filter(None, filled.values()))
    for option, parameter in filled.items():
        if parameter is not None and parameter not in inspect.signature(function).parameters:
            raise SpecError(f"Tool {name!r}: {option}={parameter!r}: the function has no such parameter.")
    parameters = function_signature.read_parameters(function, name, namespace)
    context_arg = function_signature.context_parameter(parameters, name)
    if context_arg is not None:
        _check_context(name, sharing, batch)
        hidden += (context_arg,)
    return Tool(
        name,
        function_signature.describe(function) if description is None else description,
        function,
        function_signature.Arguments(name, [each for each in parameters if each.name not in hidden]),
        sharing,
        limits,
        max_tokens=chosen.pop("max_tokens", None),
        summarize=chosen.pop("summarize", False),
        batch=batch,
        context_arg=context_arg,
        returns_images="Image" in str(getattr(function, "__annotations__", {}).get("return", "")),
    )


def _check_context(name: str, sharing: SharingPolicy, batch: CallBatch | None) -> None:
    """Raises SpecError for options of sharing in a tool that takes a context."""
    if batch is not None:
        raise SpecError(
            f"Tool {name!r}: a batch function has the calls of several agents, so it cannot take a ToolContext. Use "
            "@Tool.define."
        )
    is_placed = sharing.placement in ("first", "auto")
    if sharing.ttl is not None or sharing.version is not None or sharing.keeps_errors or is_placed:
        raise SpecError(
            f"Tool {name!r} takes a ToolContext, so its results are of one agent and are never cached: leave out ttl, "
            "version, keeps_errors and placement."
        )


def _already_defined(tool: Tool, options: ToolOptions) -> Tool:
    """`Tool.define` of a tool: the tool itself, which takes no further options."""
    if options:
        raise SpecError(
            f"Tool {tool.name!r} is already a tool. Pass {', '.join(f'{name}=' for name in options)} where it is "
            "defined, as in @Tool.batchable(key_arg=..., ...), and remove @Tool.define."
        )
    return tool


def limited_per_process(tool: Tool) -> Tool:
    """The tool with a max_concurrent that applies to each process of a distributed run, because it uses the machine
    that it runs on."""
    return replace(tool, limits=replace(tool.limits, is_local=True))


def _policies(chosen: dict[str, Any]) -> tuple[SharingPolicy, ExecutionLimits]:
    known = ToolOptions.__annotations__
    for name in chosen:
        if name not in known:
            raise SpecError(f"unknown option {name!r}.{explain_unknown_name('tool option', name, known)}")
    cacheable = chosen.pop("cacheable", None)
    if cacheable is not None:
        if "effect" in chosen:
            raise SpecError("effect and cacheable are alternatives; keep effect.")
        if not isinstance(cacheable, bool):
            raise SpecError(f"cacheable must be True or False; got {cacheable!r}.")
        chosen["effect"] = "read" if cacheable else "write"
    sharing = SharingPolicy(**{f.name: chosen.pop(f.name) for f in fields(SharingPolicy) if f.name in chosen})
    limits = ExecutionLimits(**{f.name: chosen.pop(f.name) for f in fields(ExecutionLimits) if f.name in chosen})
    return sharing, limits


def _callers_locals() -> dict[str, Any] | None:
    """Local names of the function that defines the tool, two frames up: string annotations may use them."""
    frame = inspect.currentframe()
    caller = frame.f_back.f_back if frame and frame.f_back else None
    return dict(caller.f_locals) if caller else None


def _name(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        return _name(function.func)
    return str(getattr(function, "__name__", type(function).__name__))


def _is_async(function: Callable[..., Any]) -> bool:
    """Whether a function runs on the event loop: a coroutine function or an async generator function."""
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
        for each in (function, type(function).__call__)
    )
