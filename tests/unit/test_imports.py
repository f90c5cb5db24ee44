"""What a run does not need is not imported for it."""

import subprocess
import sys

import pytest

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


def test_a_plain_run_imports_no_slow_module_of_the_standard_library() -> None:
    """The simulated server needs some of them, so only the import is looked at."""
    names = ["difflib", "email", "html", "importlib.metadata", "tempfile", "zipfile"]
    program = f"import sys; from batch_agent import BatchAgent; print(*(n for n in {names!r} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("option", "needed"), [("output_schema=int", "pydantic"), ("output_schema={'type': 'integer'}", "jsonschema_rs")]
)
def test_a_run_with_a_schema_imports_what_checks_it(option: str, needed: str) -> None:
    assert imported([needed, "aiohttp"], f", {option}") == [needed]
