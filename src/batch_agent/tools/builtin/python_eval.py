"""Built-in tool that runs Python in a sandboxed interpreter, in a process of its own. Disabled by default."""

import os
from typing import TYPE_CHECKING, Any

from ..tool import Tool, limited_per_process, make_tool

if TYPE_CHECKING:
    from pydantic_monty import AsyncMonty, AsyncMontySession

SWITCH = "BATCH_AGENT_ENABLE_PYTHON_EVAL"
_MAX_CHARS = 20_000
_GRACE = 5.0
"""Seconds after its time limit until an unresponsive worker is killed."""


class PythonDisabled(RuntimeError):
    """The user has not allowed the model to run code."""


class PythonError(Exception):
    """Error of the executed code, as the interpreter reports it."""


def python_eval_tool(enabled: bool | None = None, *, max_seconds: float = 5.0, max_memory_mb: int = 128) -> Tool:
    """A tool `python_eval` that runs code in pydantic-monty (extra `python`), an interpreter of a subset of Python
    without files, network, environment or processes. Each call has a worker process of its own.

    None: enabled where BATCH_AGENT_ENABLE_PYTHON_EVAL=1 is set when the call is made."""

    async def python_eval(code: str) -> str:
        """Run Python code for calculations and return what it prints, then the value of its last expression.

        It is a subset of Python: the usual statements, builtins and a few modules such as math, re, json and datetime;
        no third-party packages, no files, no network. Nothing is kept between calls."""
        if not (os.environ.get(SWITCH) == "1" if enabled is None else enabled):
            raise PythonDisabled(
                f"running Python is turned off. The user can allow it with python_eval_tool(enabled=True) or {SWITCH}=1"
            )
        async with _pool(max_seconds) as pool, _worker(pool, max_seconds, max_memory_mb) as worker:
            return await _run(worker, code)

    # Not cached, only shared by concurrent calls: code may read the clock or random numbers.
    return limited_per_process(make_tool(python_eval, effect="read", ttl=0, max_concurrent=os.cpu_count() or 1))


def _pool(max_seconds: float) -> "AsyncMonty":
    try:
        from pydantic_monty import AsyncMonty
    except ImportError as error:
        raise PythonDisabled("running Python needs a package: pip install 'batch-agent[python]'") from error
    return AsyncMonty(max_processes=1, request_timeout=max_seconds + _GRACE)


def _worker(pool: "AsyncMonty", max_seconds: float, max_memory_mb: int) -> "AsyncMontySession":
    return pool.checkout(
        limits={
            "max_feed_duration_secs": max_seconds,
            "max_total_sleep_secs": max_seconds,
            "max_memory": max_memory_mb * 1024 * 1024,
        }
    )


async def _run(worker: "AsyncMontySession", code: str) -> str:
    from pydantic_monty import CollectString, MontyError, MontyRuntimeError, MontySyntaxError

    printed = CollectString()
    try:
        value = await worker.feed_run(code, print_callback=printed)
    except (MontyRuntimeError, MontySyntaxError) as error:
        raise PythonError(_cut(printed.output) + _cut(error.display())) from None
    except MontyError as error:  # the worker has died
        raise PythonError(_cut(printed.output) + str(error)) from None
    return _cut(printed.output) + ("" if value is None else _cut(_shown(value))) or "The code ran; it printed nothing."


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of too many digits
        return f"[a value that cannot be shown: {error}]"


def _cut(text: str) -> str:
    if len(text) <= _MAX_CHARS:
        return text
    return f"{text[:_MAX_CHARS]}\n[cut here: {_MAX_CHARS} of {len(text)} characters are shown]\n"
