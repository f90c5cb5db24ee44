"""Validation of arguments, and suggestions for unknown names.

`FORMER` has the names of batch-agent 0.2 that were renamed or removed; docs/migration/from-0.2.md has the same tables.
Names that still work are in neither.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fsencode
from pathlib import Path
from typing import Any, TypeGuard, cast

from .errors import SpecError
from .task_fields import is_object_url

MAX_INTEGER = 2**53
"""Largest integer that JSON, Lua and SQLite all represent exactly."""
MAX_SECONDS = 1e9
"""Seconds, some 30 years: event loops cannot wait longer."""


def at_least(name: str, value: Any, least: int) -> None:
    if not is_whole(value) or value < least:
        raise SpecError(f"{name} must be an integer >= {least}; got {value!r}.")
    if value > MAX_INTEGER:
        raise SpecError(f"{name} must be an integer <= {MAX_INTEGER}; got {value!r}.")


def seconds(name: str, value: Any, *, least: float = 0.0, or_none: bool = False) -> None:
    """Raises SpecError unless `value` is a positive duration, or at least `least` if that is given."""
    if value is None and or_none:
        return
    none = ", or None" if or_none else ""
    if not is_number(value) or (value < least if least else value <= 0):
        wanted = f"at least {least:g} second" if least else "more than 0 seconds"
        raise SpecError(f"{name} must be {wanted}{none}; got {value!r}.")
    if value > MAX_SECONDS:
        raise SpecError(f"{name} must be at most {MAX_SECONDS:,.0f} seconds{none}; got {value!r}.")


def port(name: str, value: Any, *, least: int = 0) -> None:
    """Raises SpecError unless `value` is a port. Some systems take a port that is too large modulo 65536."""
    if not is_whole(value) or not least <= value <= 65535:
        raise SpecError(f"{name} must be an integer from {least} to 65535; got {value!r}.")


def host_name(name: str, host: str) -> None:
    """Raises SpecError for a host that DNS cannot have, which a resolver would report as a UnicodeError."""
    try:
        host.encode("idna")
    except UnicodeError:
        raise SpecError(f"{name}: the parts of a host name, between its dots, have 1 to 63 characters.") from None


def text_or_none(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise SpecError(f"{name} must be a string or None; got {value!r}.")
    valid_unicode(name, value)


def valid_unicode(name: str, text: str) -> None:
    """Raises SpecError for a lone surrogate, which comes from text in another encoding and cannot be sent."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpecError(
            f"{name} must be valid Unicode; it contains the lone surrogate {text[error.start]!r}."
        ) from None


def path(name: str, value: Any) -> Path:
    """The value as a path. Raises SpecError if no file system accepts it."""
    try:
        if isinstance(value, str | PathLike) and str(value) and b"\0" not in fsencode(str(value)):
            return Path(value)
    except UnicodeEncodeError:
        pass
    raise SpecError(f"{name} must be a path; got {value!r}.")


def local_path(name: str, value: Any) -> Path:
    """As `path`, for an option of a BatchSpec that is on this machine. Raises SpecError, also for a URL."""
    if is_object_url(value):
        here = "Pass it to BatchAgent.run or stream, as an option and not in a BatchSpec, or to a Flow: they copy it."
        raise SpecError(
            f"{name} {value!r} is not on this machine. {here if name == 'checkpoint_dir' else 'Use a path.'}"
        )
    return path(name, value)


def path_or_url(name: str, value: Any) -> Path | str:
    """The value as a path, or unchanged if it is the URL of an object store. Raises SpecError."""
    if not is_object_url(value):
        return path(name, value)
    if not value.partition("://")[2].strip("/"):
        raise SpecError(f"{name} {value!r} names no bucket: write {value.partition('://')[0]}://BUCKET/NAME.")
    return cast(str, value)


def flags(options: Any, *names: str) -> None:
    """Raises SpecError unless these fields of `options` are True or False; a string such as "no" would be truthy."""
    for name in names:
        if not isinstance(getattr(options, name), bool):
            raise SpecError(f"{name} must be True or False; got {getattr(options, name)!r}.")


def is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether `value` is a finite number: comparisons with NaN are always false, and no clock reaches infinity."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return isinstance(value, int) or math.isfinite(value)


MAX_NESTING = 200
"""Levels of nesting that every library in use supports: recursive code has a limit."""


def is_too_deep(value: Any) -> bool:
    """Whether lists and dicts are nested deeper than MAX_NESTING."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_NESTING):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


_ALIKE = 0.75
"""Minimum similarity of two names. Below it are names that share a part only, such as reduce and reorder."""
_SHORT, _ALIKE_IF_SHORT = 4, 0.66
"""Length of short names, and their minimum similarity: one letter of three may differ."""
_MAX_SUGGESTIONS = 3


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Names that are spelled like this one or contain parts of it (turns: max_turns); best first, at most three."""
    wanted = _plain(name)
    scored = [(_likeness(wanted, _plain(other)), other) for other in dict.fromkeys(known)]
    least = _ALIKE_IF_SHORT if len(wanted) <= _SHORT else _ALIKE
    found = sorted((pair for pair in scored if pair[0] >= least), key=lambda pair: (-pair[0], pair[1]))
    if found and found[0][0] == 1:  # the same but for its case or its dashes
        found = found[:1]
    return [other for _, other in found[:_MAX_SUGGESTIONS]]


def suggestion(name: str, known: Iterable[str], write: str = "{!r}") -> str:
    """Suggestion to append to an error message, or nothing. `write`: format of a name."""
    close = nearest(name, known)
    return f" Did you mean {' or '.join(write.format(other) for other in close)}?" if close else ""


def explain_unknown_name(kinds: str | Sequence[str], name: str, known: Iterable[str], write: str = "{!r}") -> str:
    """What to use instead of an unknown name. `kinds`: tables of `FORMER`, in order of precedence."""
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if (former := FORMER[kind].get(_plain(name))) is not None:
            return f" batch-agent 0.2 had this name; now {former}."
    return suggestion(name, known, write)


def _likeness(one: str, other: str) -> float:
    from difflib import SequenceMatcher  # for errors only

    if set(one.split("_")) <= set(other.split("_")):
        return max(_ALIKE, SequenceMatcher(None, one, other).ratio())
    return SequenceMatcher(None, one, other).ratio()


def _plain(name: str) -> str:
    return name.strip().lstrip("-").replace("-", "_").lower()


FORMER: Mapping[str, Mapping[str, str]] = {
    "option": {
        "no_hoist": "write `hoist=False`",
        "model_max_context": "write `context_tokens=`, or leave it out: the server is asked",
        "min_response_tokens": "leave it out: `max_tokens=` is the room that is kept for an answer",
        "nvext_agent_hints": "leave it out: Dynamo (`dynamo://`) is always sent them, with `priority=`",
        "compaction_backend_url": "write `compact_with='summarize'`, and `compact_model=` for another model",
        "reduce": "call `BatchAgent.run_with_reduce(reduce=...)`",
        "reduce_schema": "call `BatchAgent.run_with_reduce(reduce=..., reduce_schema=...)`",
        "distributed": "write `store='redis://HOST:6379/0'`, and start `batch-agent worker` elsewhere",
        "node_id": "leave it out: workers find a name of their own; `store=` and `run_id=` name the run",
        "diff_kv": "leave it out: no change of the server is needed",
        "effective_max_inflight": "read `spec.limits.max_inflight`; None: it is found while the run goes",
    },
    "runtime option": {
        "opencode_bin": "write `command=`",
        "working_dir": "write `workdir=`: each agent works in a copy of it, and `result.changes` has what it changed",
        "model_alias": "leave it out: OpenCode gets the model's own name",
        "context_limit": "leave it out: OpenCode gets the server's window, or `context_tokens=` of `BatchAgent.run`",
        "output_limit": "write `max_tokens=` of `BatchAgent.run`",
        "temperature": "write `temperature=`, a number, of `BatchAgent.run`",
        "tool_call": "leave it out: OpenCode always calls tools; `tools=` says which",
        "extra_env": "write `env=`",
    },
    "tool option": {
        "cache_key_func": "write `version=`, a function of the arguments: results are shared while it gives the same",
        "batch_query": "leave it out: `Tool.batchable(key_arg=...)` takes a function of a list of keys, and "
        "`sql_lookup_tool(...)` makes one of a query",
        "func": "read `function`",
        "cacheable": "read `sharing.is_shared`",
        "rate_limit": "read `limits.rate_limit`",
        "key_arg": "read `batch`",
        "registry": "pass the object that `@Tool.define` gives, as in `tools=[search]`",
    },
    "result field": {
        "attempts": "read `turns` and `usage`: retried requests are not attempts of an agent",
        "type": "read `kind`, an `ErrorKind`, where 0.2 had the name of an exception class",
    },
    "command option": {
        "spec": "write its options into batch.toml or a .yaml file and its inputs into a .jsonl file, then "
        "`batch-agent run --config FILE`",
        "output": "write `--out FILE`; it is results.jsonl if not given, and never the standard output",
        "checkpoint_dir": "write `--checkpoint FOLDER`",
        "output_schema": "write `--schema`, with a JSON schema file or module:Model",
        "max_concurrent": "write `--max-inflight`",
        "max_dispatched": "write `--max-agents`",
        "model_max_context": "leave it out: the server is asked",
        "compaction_backend_url": "leave it out: an option of `BatchAgent.run` (`compact_with=`) does this",
        "nvext_agent_hints": "leave it out: Dynamo (`dynamo://`) is always sent them",
        "distributed": "write `--store redis://HOST:6379/0`, and start `batch-agent worker` elsewhere",
    },
}
