"""What the model writes runs only where it was allowed to, and reaches nothing but itself."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from tests.support.process_table import children_of, gone

from batch_agent.tools import Tool, ToolExecutor
from batch_agent.tools.builtin.python_eval import PythonDisabled, PythonError, python_eval_tool


@pytest.fixture
def python() -> Tool:
    return python_eval_tool(enabled=True, max_seconds=60.0, max_memory_mb=32)


async def test_python_eval_is_off_by_default_and_says_how_to_enable_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BATCH_AGENT_ENABLE_PYTHON_EVAL", raising=False)
    with pytest.raises(PythonDisabled, match=r"enabled=True.*BATCH_AGENT_ENABLE_PYTHON_EVAL=1"):
        await python_eval_tool()(code="1 + 1")


async def test_the_environment_enables_python_eval_but_does_not_override_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BATCH_AGENT_ENABLE_PYTHON_EVAL", "1")
    assert await python_eval_tool()(code="1 + 1") == "2"
    with pytest.raises(PythonDisabled):
        await python_eval_tool(enabled=False)(code="1 + 1")


async def test_without_its_package_python_eval_says_what_to_install(
    python: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    with pytest.raises(PythonDisabled, match=r"pip install 'batch-agent\[python\]'"):
        await python(code="1 + 1")


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("sum(range(5))", "10"),
        ("print('a')\n[1, 'b']", "a\n[1, 'b']"),
        ("import math\nround(math.pi, 2)", "3.14"),
        ("x = 1", "The code ran; it printed nothing."),
        ("print('only this')", "only this\n"),
    ],
)
async def test_python_eval_returns_printed_output_and_the_last_value(python: Tool, code: str, shown: str) -> None:
    assert await python(code=code) == shown


async def test_nothing_is_kept_between_calls(python: Tool) -> None:
    await python(code="secret = 7")
    with pytest.raises(PythonError, match="NameError"):
        await python(code="secret")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("open('{file}').read()", "PermissionError"),
        ("open('{file}', 'w').write('x')", "PermissionError"),
        ("from pathlib import Path\nPath('{file}').read_text()", "PermissionError"),
        ("import os\nos.system('touch {file}')", "AttributeError"),
        ("import os\nos.environ['HOME']", "not supported"),
        ("import os\nos.listdir('/')", "PermissionError"),
        ("import socket", "ModuleNotFoundError"),
        ("import urllib.request", "ModuleNotFoundError"),
        ("import subprocess", "ModuleNotFoundError"),
        ("import ctypes", "ModuleNotFoundError"),
        ("().__class__.__base__.__subclasses__()", "AttributeError"),
        ("(lambda: 0).__globals__", "AttributeError"),
        ("__import__('os')", "NameError"),
        ("eval('__import__')", "NameError"),
    ],
)
async def test_neither_files_nor_processes_nor_the_network_can_be_reached(
    python: Tool, tmp_path: Path, code: str, error: str
) -> None:
    file = tmp_path / "secret.txt"
    file.write_text("secret")
    with pytest.raises(PythonError, match=error) as raised:
        await python(code=code.replace("{file}", str(file)))
    assert "secret" not in str(raised.value).replace("secret.txt", "")
    assert file.read_text() == "secret"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("'x' * 10**9", "MemoryError"),
        ("10**10**9", "MemoryError"),
        ("x = []\nwhile True: x.append('y' * 1000)", "MemoryError"),
        ("def f(): return f()\nf()", "RecursionError"),
    ],
)
async def test_memory_and_depth_have_an_end(python: Tool, code: str, error: str) -> None:
    with pytest.raises(PythonError, match=error):
        await python(code=code)
    assert await python(code="1 + 1") == "2"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("while True: pass", "TimeoutError"),
        ("try:\n    while True: pass\nexcept BaseException:\n    while True: pass", "TimeoutError"),
        ("import time\ntime.sleep(3600)", "TimeoutError"),
        ("while True: print('x' * 1000)", "MemoryError|TimeoutError"),
    ],
)
async def test_time_and_output_have_an_end(code: str, error: str) -> None:
    with pytest.raises(PythonError, match=error):
        await python_eval_tool(enabled=True, max_seconds=0.3, max_memory_mb=32)(code=code)


async def test_an_error_says_where_it_happened(python: Tool) -> None:
    with pytest.raises(PythonError, match=r"(?s)^before\nTraceback.*line 2.*ZeroDivisionError: division by zero"):
        await python(code="print('before')\n1 / 0")
    with pytest.raises(PythonError, match=r"(?s)line 1.*SyntaxError"):
        await python(code="def (")


async def test_a_long_result_is_cut_and_says_so(python: Tool) -> None:
    text = await python(code="print('x' * 50_000)\n'end'")
    assert "[cut here: 20000 of 50001 characters are shown]" in text
    assert text.endswith("'end'")


@pytest.mark.parametrize("code", ["x = []\nfor i in range(100_000): x = [x]\nx", "10**5000"])
async def test_a_value_that_cannot_be_written_down_is_described(python: Tool, code: str) -> None:
    shown = await python(code=code)
    assert shown.startswith(("[a value that cannot be shown: ", "[" * 100))  # Python 3.14 has no limit for lists


async def test_a_cancelled_call_leaves_no_process() -> None:
    before = children_of(os.getpid())
    python = python_eval_tool(enabled=True, max_seconds=60.0)
    async with asyncio.timeout(30):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await python(code="while True: pass")
    for pid in children_of(os.getpid()) - before:
        await gone(pid)


async def test_the_model_sees_a_subset_of_python_and_its_errors() -> None:
    executor = ToolExecutor([python_eval_tool(enabled=True)], timeout=30.0, max_tokens=1000)
    [spec] = executor.specs
    assert "subset of Python" in spec.description
    assert list(spec.parameters["properties"]) == ["code"]
    await executor.aclose()
