"""Every option of a run and of a tool at its edges: it works, or is refused by its name before anything is sent.

An option without a row fails `test_every_run_option_has_a_row_of_edge_values`."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from batch_agent import BatchAgent, SpecError, Tool
from batch_agent.core.spec import OPTION_NAMES
from batch_agent.core.validation import MAX_INTEGER, MAX_SECONDS
from batch_agent.testing import ScriptedBackend, say
from batch_agent.tools.tool import ToolOptions

EDGES: dict[str, Any] = {
    "zero": 0,
    "one": 1,
    "negative": -1,
    "most": MAX_INTEGER,
    "huge": 10**30,
    "longest": MAX_SECONDS,
    "huge float": 1e300,
    "tiny": 1e-300,
    "none": None,
    "nan": math.nan,
    "inf": math.inf,
    "true": True,
    "object": object(),
    "empty": "",
    "unicode": "ü漢🙂",
    "half": "\ud800",
    "nul": "a\0b",
    "list": [],
    "dict": {},
}
COUNT = "one most"
LIMIT = f"{COUNT} none"
SECONDS = "one most longest tiny none"
FLAG = "true"

# The edges at which an option works. At all others it is refused.
WORKS: dict[str, str] = {
    "task": "unicode nul",
    "inputs": "list",
    "tools": "none list",
    "output_schema": "none dict",
    "model": "none unicode nul",
    "backend": "",
    "fallback": "none list",
    "lane": "",
    "runtime": "none",
    "checkpoint_dir": "none unicode",
    "plan_changed": "",
    "on_result": "none",
    "out": "none unicode",
    "log_requests": "none unicode",
    "tokens": "",  # it needs a checkpoint
    "limit": LIMIT,
    "sample": LIMIT,
    "sample_seed": "zero one negative most huge",
    "where": "none",
    "input_format": "none",
    "encoding": "none",
    "key": "none",  # the inputs of this test have no fields
    "images": "list",
    "max_inflight": f"{LIMIT} negative",  # -1, as 0.2 wrote it: no limit
    "max_concurrent": f"{LIMIT} negative",
    "max_agents": f"{LIMIT} negative",
    "max_dispatched": f"{LIMIT} negative",
    "max_turns": LIMIT,
    "priority": "zero one negative",
    "rpm": LIMIT,
    "tpm": LIMIT,
    "backpressure_ceiling": f"{LIMIT} zero",  # 0, as 0.2 wrote it: no limit
    "calibrate_backend": FLAG,
    "timeout_per_agent": "one longest none",
    "timeout_per_turn": "one longest none",
    "timeout_per_tool": "one longest tiny none",
    "max_retries": f"{COUNT} zero",
    "backoff": "one tiny",
    "backoff_max": "one longest",
    "retry_failed": FLAG,
    "max_tool_tokens": COUNT,
    "streaming": FLAG,
    "streaming_tool_dispatch": FLAG,
    "context_tokens": LIMIT,
    "oversized": "",
    "compact_at": "one tiny none",
    "compact_with": "",
    "compact_model": "none",
    "system_prompt": "none empty unicode nul",
    "tool_mode": "",
    "strip_preamble": FLAG,
    "cache_salt": "none unicode nul",
    "warm_prefix": f"{FLAG} none",
    "hoist": FLAG,
    "reorder": FLAG,
    "strict_prefix": FLAG,
    "shared_results": "",
    "kvflow": FLAG,
    "tool_cache_mb": COUNT,
    "tool_cache_dir": "none unicode",
    "predictive_prewarm": "",  # without a tool_cache_dir
    "max_total_tokens": "most none",  # one does not pay for a request
    "max_usd": "none",  # nobody knows what the model of this test costs
    "deadline": "one longest none",
    "prices": "dict",
    "cluster": "none",
    "workers": "none",
    "store": "none",
    "run_id": "none",
    "lease": "one longest",
    "temperature": "zero one most huge longest tiny none",
    "top_p": "one tiny none",
    "seed": "zero one negative most none",
    "max_tokens": LIMIT,
    "stop": "list",
    "extra": "dict",
    "samples": "one",
    "models": "none",
    "score": "none list",
}
TIMES_THAT_NOTHING_FITS = {("timeout_per_agent", "tiny"), ("timeout_per_turn", "tiny"), ("deadline", "tiny")}
HUGE_FLOAT_IS_A_NUMBER = {"temperature"}
MINUTES_TO_WAIT = {("rpm", "one"), ("tpm", "one")}
LEFT_OUT = TIMES_THAT_NOTHING_FITS | MINUTES_TO_WAIT


def works(table: dict[str, str], option: str, edge: str) -> bool:
    value, taken = EDGES[edge], f" {table[option]} "
    if edge == "huge float" and option in HUGE_FLOAT_IS_A_NUMBER:
        return True
    if edge == "longest" and f" {edge} " not in taken and isinstance(value, float):
        return False
    return f" {edge} " in taken


@contextmanager
def naming(edge: str) -> Iterator[None]:
    """A failure says at which edge. One test goes through all of them: thousands of tests are slow to collect."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"At the edge {edge!r}.")
        raise


def test_every_run_option_has_a_row_of_edge_values() -> None:
    assert sorted(WORKS) == sorted(OPTION_NAMES)


@pytest.mark.filterwarnings("ignore:The task names no")
@pytest.mark.parametrize("option", WORKS)
async def test_a_run_option_accepts_an_edge_value_or_rejects_it_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    for edge in EDGES:
        if (option, edge) not in LEFT_OUT:
            (tmp_path / edge).mkdir()
            monkeypatch.chdir(tmp_path / edge)
            with naming(edge):
                await check_run_option(option, edge)


async def check_run_option(option: str, edge: str) -> None:
    backend = ScriptedBackend(lambda request: say("done"))
    options: dict[str, Any] = {"task": "Do {it}", "inputs": ["a", "b"], "backend": backend, "progress": False}
    run = BatchAgent.run(**{**options, option: EDGES[edge]})
    if works(WORKS, option, edge):
        results = await run
        failed = {str(result.error.kind) for result in results if result.error is not None}
        assert failed <= {"context_overflow", "budget"}  # of a window or a budget of one token
    else:
        named = rf"\b{option}\b" if option == "max_usd" else rf"^(max_\w+= is )?{option}\b"
        with pytest.raises(SpecError, match=rf"^backoff must be|{named}" if option == "backoff_max" else named):
            await run
        assert backend.requests == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("prices", {"m": 5}),
        ("prices", {"m": (1.0, 2.0)}),
        ("prices", {"m": (1.0, math.nan, 1.0)}),
        ("prices", {"m": (1.0, -1.0, 1.0)}),
        ("prices", {"m": "abc"}),
        ("prices", {5: (1.0, 1.0, 1.0)}),
        ("extra", {"x": object()}),
        ("extra", {"x": math.nan}),
        ("extra", {5: 1}),
        ("extra", {"model": "other"}),
        ("extra", {"messages": []}),
        ("extra", {"stream": True}),
        ("extra", {"n": 3}),
        ("extra", {"best_of": 2}),
        ("extra", {"n": "3"}),
        ("extra", {"candidate_count": 2}),
        ("extra", {"temperature": 0.1}),
        ("extra", {"max_completion_tokens": 5}),
        ("extra", {"stop_sequences": ["x"]}),
        ("extra", {"inferenceConfig": {"maxTokens": 5}}),
        ("extra", {"tool_choice": "required"}),
        ("extra", {"system": "x"}),
        ("extra", {"stream_options": {}}),
        ("extra", {"modalities": ["text", "audio"]}),
        ("stop", ["\ud800"]),
        ("tools", [None]),
        ("tools", ["read_file"]),
        ("output_schema", {"type": "nonsense"}),
        ("events", 5),
        ("events", [object()]),
        ("backend", [5]),
        ("backend", b"http://127.0.0.1"),
        ("runtime", object),
    ],
)
async def test_an_invalid_value_inside_an_option_is_rejected(option: str, value: Any) -> None:
    backend = ScriptedBackend(lambda request: say("done"))
    options: dict[str, Any] = {"task": "Do {it}", "inputs": ["a"], "backend": backend, "progress": False}
    with pytest.raises(SpecError, match=rf"^{option}\b"):
        await BatchAgent.run(**{**options, option: value})
    assert backend.requests == []


SHARED = {"effect": "read"}
TOOL_WORKS: dict[str, str] = {
    "name": "none",
    "description": "none empty unicode nul",
    "max_tokens": LIMIT,
    "summarize": FLAG,
    "effect": "",
    "cacheable": f"{FLAG} none",
    "ttl": "zero one most huge longest tiny none inf",
    "version": "none",
    "keeps_errors": FLAG,
    "placement": "none",
    "idempotency_arg": "none",
    "history_arg": "none",
    "idempotent": FLAG,
    "timeout": "one longest tiny none",
    "max_concurrent": LIMIT,
    "rate_limit": "one most huge longest tiny none",
    "burst": "none",  # without a rate_limit
    "rate_key": "none",
    "retries": "zero",  # without retry_on
    "retry_on": "",
    "backoff": "one longest tiny",
}
WITH: dict[str, dict[str, Any]] = {"ttl": SHARED, "version": SHARED, "keeps_errors": SHARED, "placement": SHARED}


def test_every_tool_option_has_a_row_of_edge_values() -> None:
    assert sorted(TOOL_WORKS) == sorted(ToolOptions.__annotations__)


@pytest.mark.parametrize("option", TOOL_WORKS)
def test_a_tool_option_accepts_an_edge_value_or_rejects_it_by_name(option: str) -> None:
    for edge in EDGES:
        with naming(edge):
            check_tool_option(option, edge)


def check_tool_option(option: str, edge: str) -> None:
    async def look_up(key: str) -> str:
        return key

    given: Any = {**WITH.get(option, {}), option: EDGES[edge]}
    if works(TOOL_WORKS, option, edge) or (edge == "huge float" and option in ("ttl", "rate_limit")):
        assert Tool.define(**given)(look_up).function is look_up
    else:
        with pytest.raises(SpecError, match=rf"^Tool (name|'look_up': .*\b{option})\b"):
            Tool.define(**given)(look_up)


@pytest.mark.parametrize(
    ("option", "taken"),
    [("key_arg", ""), ("max_batch", COUNT), ("window", "zero one longest tiny")],
)
def test_a_batching_option_accepts_an_edge_value_or_rejects_it_by_name(option: str, taken: str) -> None:
    for edge in EDGES:
        with naming(edge):
            check_batching_option(option, taken, edge)


def check_batching_option(option: str, taken: str, edge: str) -> None:
    async def look_up(keys: list[str]) -> list[str]:
        return keys

    given: Any = {"key_arg": "key", option: EDGES[edge]}
    if works({option: taken}, option, edge):
        assert Tool.batchable(**given)(look_up).batch is not None
    else:
        with pytest.raises(SpecError, match=rf"^{option}\b"):
            Tool.batchable(**given)(look_up)
