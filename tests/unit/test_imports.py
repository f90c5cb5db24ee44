"""What a run does not need is not imported for it."""

import subprocess
import sys

import pytest

from batch_agent.sim import SimConfig, SimServer

_RUN = """
import sys
from batch_agent import BatchAgent
from batch_agent.sim import SimConfig, SimServer
with SimServer(SimConfig(zero_latency=True)) as server:
    results = BatchAgent.run_sync(task="{{it}}", inputs=["a"], backend=server.url, progress=False{options})
assert results[0].ok, results[0].error
print(*(name for name in {names!r} if name in sys.modules))
"""


def imported(names: list[str], options: str = "") -> list[str]:
    """Those of `names` that a run has imported in a process of its own."""
    program = _RUN.format(names=names, options=options)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_plain_run_imports_no_optional_dependency() -> None:
    names = ["aiohttp", "pydantic", "json_repair", "jsonschema_rs", "botocore", "rich", "cyclopts"]
    assert imported(names) == []


def loaded_by(program: str, names: list[str], *arguments: str) -> list[str]:
    """Those of `names` that a program has imported when it ends."""
    code = f"import sys\n{program}\nprint(*(name for name in {names!r} if name in sys.modules))"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()


_SLOW = [
    "cachetools",
    "csv",
    "difflib",
    "email",
    "html",
    "importlib.metadata",
    "sqlite3",
    "tempfile",
]
"""Modules that a run of one turn, without files, tools and a checkpoint, does not need."""


def test_the_class_loads_the_options_and_neither_the_engine_nor_asyncio() -> None:
    names = [*_SLOW, "asyncio", "logging", "socket", "ssl", "orjson", "yarl", "batch_agent.entry_points"]
    layers = [f"batch_agent.{name}" for name in ("agent", "backends", "data", "engine", "plan", "run", "schedule")]
    assert loaded_by("from batch_agent import BatchAgent", [*names, *layers]) == []


def test_a_plain_run_imports_nothing_slow_that_it_does_not_use() -> None:
    names = [
        "engine.budget_pool", "engine.long_inputs.chunking_executor", "engine.keep_warm", "engine.residency",
        "engine.pool_residency", "data.input_files", "data.tables", "plan.chunks", "plan.lint", "plan.prefix_order",
        "run.run_budget", "schedule.kv_ledger",
        "schedule.endpoints.routing", "store.sqlite", "tools.executor", "tools.tool",
    ]  # fmt: skip
    program = (
        "from batch_agent import BatchAgent\n"
        "[result] = BatchAgent.run_sync(task='{it}', inputs=['a'], backend=sys.argv[1], progress=False)\n"
        "assert result.ok, result.error"
    )
    with SimServer(SimConfig(zero_latency=True)) as server:  # in this process: it needs some of them
        found = loaded_by(program, [*_SLOW, *(f"batch_agent.{name}" for name in names)], server.url)
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "needed"), [("output_schema=int", "pydantic"), ("output_schema={'type': 'integer'}", "jsonschema_rs")]
)
def test_a_run_with_a_schema_imports_what_checks_it(option: str, needed: str) -> None:
    assert imported([needed, "aiohttp"], f", {option}") == [needed]
