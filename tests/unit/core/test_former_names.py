"""All that batch-agent 0.2.0 offered: each name works, or is refused with the words of the migration page."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts.migration_tables import PAGE, table, written
from tests.support.forked_programs import Call

import batch_agent
from batch_agent import AgentError, AgentResult, BatchAgent, BatchSpec, ErrorKind, OpenCodeRuntime, SpecError, Tool
from batch_agent.core.options.flat_options import FORMER_SPELLINGS
from batch_agent.core.spec import OPTION_NAMES
from batch_agent.core.validation import FORMER
from batch_agent.testing import ScriptedBackend, say

PAGE_TEXT = PAGE.read_text()

# As 0.2.0 had them, with a value that it took.
OPTIONS: dict[str, Any] = {
    "task": "Do {it}",
    "inputs": [{"it": "a"}],
    "system_prompt": "Be brief.",
    "tools": (),
    "output_schema": None,
    "model": "m",
    "backend": "vllm://127.0.0.1:8000",
    "max_concurrent": 10,
    "max_inflight": -1,
    "max_dispatched": -1,
    "max_agents": 20,
    "calibrate_backend": False,
    "backpressure_ceiling": 0,
    "max_turns": 1,
    "max_retries": 3,
    "timeout_per_agent": 300,
    "timeout_per_turn": 60,
    "timeout_per_tool": 30,
    "min_response_tokens": 1024,
    "model_max_context": 200_000,
    "on_result": print,
    "diff_kv": False,
    "kvflow": True,
    "strip_preamble": True,
    "streaming_tool_dispatch": True,
    "nvext_agent_hints": False,
    "predictive_prewarm": False,
    "checkpoint_dir": "runs/1",
    "no_hoist": False,
    "reduce": None,
    "reduce_schema": None,
    "compaction_backend_url": None,
    "distributed": False,
    "node_id": "node-0",
    "runtime": None,
}
MAP_REDUCE: dict[str, Any] = {
    "plan_prompt": "Plan {it}",
    "plan_inputs": {"it": "x"},
    "plan_output_schema": {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}}}},
    "planner_model": "p",
    "task": "Do {item} {index}",
    "output_schema": None,
    "worker_model": "w",
    "reduce": "Sum up {n}",
    "reduce_schema": None,
    "reducer_model": "r",
    "tools": [],
    "model": "m",
    "max_concurrent": 64,
    "max_turns": 6,
    "on_result": None,
    "checkpoint_dir": None,
}
TOOL_OPTIONS: dict[str, Any] = {
    "name": "search",
    "max_tokens": 2000,
    "cacheable": True,
    "rate_limit": 5.0,
    "cache_key_func": str,
}
TOOL_ATTRIBUTES = ("name", "func", "max_tokens", "cacheable", "rate_limit", "key_arg", "batch_query", "cache_key_func")
BUILT_IN = ("read_file", "http_get", "web_search", "python_eval", "claude_code")
RESULT_FIELDS = ("job_id", "index", "output", "error", "attempts", "ok")
ERROR_FIELDS = ("type", "message", "retryable")
RUNTIME_OPTIONS = (
    "backend",
    "model",
    "opencode_bin",
    "model_alias",
    "context_limit",
    "output_limit",
    "temperature",
    "tool_call",
    "working_dir",
    "extra_env",
)
FLAGS = {
    "--spec": "f.json",
    "--checkpoint-dir": "runs",
    "--no-hoist": None,
    "--metrics-port": "0",
    "--output": "-",
    "--dashboard": None,
}
VARIABLES = (
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "BRAVE_SEARCH_API_KEY",
    "SERPAPI_KEY",
    "SERPAPI",
    "BATCH_AGENT_ENABLE_PYTHON_EVAL",
)
SCHEMES = ("anthropic", "openai", "vllm", "dynamo", "sglang", "bedrock")


def refusal(kind: str, name: str) -> str:
    """The words that an error and the page have in common."""
    now = FORMER[kind][name]
    assert f"| `{name}` | {now[0].upper()}{now[1:]}. |" in PAGE_TEXT
    return re.escape(f"batch-agent 0.2 had this name; now {now}.")


def test_the_migration_page_lists_the_same_names_as_the_errors() -> None:
    assert written(PAGE_TEXT) == PAGE_TEXT, "run `python -m scripts.migration_tables`"
    assert [kind for kind in FORMER if table(kind) not in PAGE_TEXT] == []
    for former, name in FORMER_SPELLINGS.items():
        assert f"| `{former}` | `{name}`" in PAGE_TEXT


def test_no_current_name_is_listed_as_former() -> None:
    assert set(FORMER["option"]) & set(OPTION_NAMES) == set()
    assert set(FORMER["option"]) - {"effective_max_inflight"} <= set(OPTIONS)
    assert set(FORMER["result field"]) <= {*RESULT_FIELDS, *ERROR_FIELDS}
    assert set(FORMER["runtime option"]) == set(RUNTIME_OPTIONS) - {"backend", "model"}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_former_run_option_works_or_is_rejected(name: str) -> None:
    options = {"task": "Do {it}", "inputs": [{"it": "a"}], name: OPTIONS[name]}
    flat: Any = BatchSpec
    if name in FORMER["option"]:
        for make in (flat, BatchSpec.of, BatchAgent.stream):
            with pytest.raises(SpecError, match=refusal("option", name)):
                make(**options)
        with pytest.raises(AttributeError, match=refusal("option", name)):
            getattr(BatchSpec.of(task="Do {it}", inputs=[]), name)
    elif name == "predictive_prewarm":
        assert BatchSpec.of(**options).tool_caching.predictive_prewarm is False
    else:
        for made in (flat(**options), BatchSpec.of(**options)):
            assert hasattr(made, name)


async def test_every_former_argument_of_map_reduce_works(tmp_path: Path) -> None:
    def answer(request: Any) -> Any:
        return say('{"items": ["a", "b"]}' if request.model == "p" else "done")

    backend = ScriptedBackend(answer)
    results, summary = await BatchAgent.run_with_map_reduce(**MAP_REDUCE, backend=backend)
    assert [result.output for result in results] == ["done", "done"]
    assert summary == "done"
    assert [request.model for request in backend.requests] == ["p", "w", "w", "r"]


async def test_every_former_argument_of_reduce_works() -> None:
    results, summary = await BatchAgent.run_with_reduce(
        task="Do {it}",
        inputs=[{"it": "a"}],
        reduce="Sum up {n}",
        reduce_schema=None,
        backend=ScriptedBackend(lambda request: say("done")),
    )
    assert (results[0].output, summary) == ("done", "done")


async def search(query: str) -> str:
    """Search."""
    return query


@pytest.mark.parametrize("name", TOOL_OPTIONS)
def test_every_former_tool_option_works_or_is_rejected(name: str) -> None:
    option: Any = {name: TOOL_OPTIONS[name]}
    if name in FORMER["tool option"] and name not in ("cacheable", "rate_limit"):
        with pytest.raises(SpecError, match=refusal("tool option", name)):
            Tool.define(**option)(search)
    else:
        assert Tool.define(**option)(search).name == "search"


@pytest.mark.parametrize("name", TOOL_ATTRIBUTES)
def test_every_former_tool_attribute_works_or_is_rejected(name: str) -> None:
    tool = Tool.define(search)
    if name in FORMER["tool option"]:
        with pytest.raises(AttributeError, match=refusal("tool option", name)):
            getattr(tool, name)
    else:
        assert hasattr(tool, name)


def test_the_former_tool_registry_is_rejected() -> None:
    Tool.define(name="my_search")(search)
    with pytest.raises(AttributeError, match=r"Tool has no 'my_search'.* write|Pass a tool of your own as the object"):
        _ = Tool.my_search  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=refusal("tool option", "registry")):
        _ = Tool.registry  # type: ignore[attr-defined]


def test_a_former_batch_query_is_rejected_and_define_over_batchable_is_one_tool() -> None:
    async def user(ids: list[int]) -> dict[int, str]:
        return {key: str(key) for key in ids}

    old: Any = Tool.batchable
    with pytest.raises(SpecError, match=refusal("tool option", "batch_query")):
        old(key_arg="id", batch_query="SELECT ...")(user)
    batched = Tool.batchable(key_arg="id")(user)
    assert Tool.define(batched) is batched
    assert Tool.define()(batched) is batched
    with pytest.raises(SpecError, match=r"Tool 'user' is already a tool\. Pass max_tokens= where it is defined"):
        Tool.define(max_tokens=9)(batched)
    with pytest.raises(SpecError, match=r"Tool 'user' is already a tool\. Remove @Tool\.define"):
        Tool.batchable(key_arg="id")(Tool.define(user))


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_former_built_in_tool_exists(name: str) -> None:
    assert getattr(Tool, name).name == name


@pytest.mark.parametrize("name", RESULT_FIELDS)
def test_every_former_result_field_works_or_is_rejected(name: str) -> None:
    result = AgentResult(3, "key")
    if name in FORMER["result field"]:
        with pytest.raises(AttributeError, match=refusal("result field", name)):
            getattr(result, name)
    else:
        assert getattr(result, name) == {"job_id": "job-3", "index": 3, "output": None, "error": None, "ok": True}[name]


@pytest.mark.parametrize("name", ERROR_FIELDS)
def test_every_former_error_field_works_or_is_rejected(name: str) -> None:
    error = AgentError(ErrorKind.SERVER, "broken", retryable=True)
    if name in FORMER["result field"]:
        with pytest.raises(AttributeError, match=refusal("result field", name)):
            getattr(error, name)
    else:
        assert getattr(error, name) in ("broken", True)


@pytest.mark.slow
@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("rest", [(), ("--task", "Do {it}", "--inputs", "in.jsonl")], ids=["alone", "with a task"])
def test_every_former_cli_flag_works_or_is_rejected(
    tmp_path: Path, call: Call, flag: str, rest: tuple[str, ...]
) -> None:
    value = FLAGS[flag]
    ended = call("run", flag, *([] if value is None else [value]), *rest, cwd=tmp_path)
    name = flag.lstrip("-").replace("-", "_")
    if name in FORMER["command option"]:
        assert ended.returncode == 2
        assert re.search(f"Unknown option {flag}\\. {refusal('command option', name)}", ended.stderr)
    else:
        assert "Unknown option" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(OPTIONS) - {"on_result", "runtime"}))
def test_every_former_spec_file_key_works_or_is_rejected_with_a_hint(tmp_path: Path, call: Call, name: str) -> None:
    """What 0.2 read with --spec, read with --config."""
    value = OPTIONS[name]
    if name in ("task", "inputs", "tools", "runtime") or value is None:
        value = "x"
    (tmp_path / "spec.yaml").write_text(json.dumps({name: value}))
    said = call("run", "--config", "spec.yaml", cwd=tmp_path).stderr
    if "there is no option" in said:
        assert re.search(r"batch-agent 0\.2 had this name; now |It is an option of BatchAgent\.run", said)


@pytest.mark.parametrize("name", VARIABLES)
def test_every_former_environment_variable_is_still_read(name: str) -> None:
    sources = Path(batch_agent.__file__).parent.rglob("*.py")
    assert any(f'"{name}"' in source.read_text() for source in sources)
    assert f"`{name}`" in PAGE_TEXT


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_every_former_url_scheme_names_a_backend(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with pytest.raises(batch_agent.BatchAgentError) as refused:  # nobody listens there
        await BatchAgent.run(task="{it}", inputs=["a"], model="m", backend=f"{scheme}://127.0.0.1:9/m", max_retries=0)
    assert "names no backend" not in str(refused.value)


def test_every_former_exported_name_exists() -> None:
    assert {"AgentResult", "BatchAgent", "BatchSpec", "Tool"} <= set(vars(batch_agent)["__all__"])
    assert OpenCodeRuntime("vllm://127.0.0.1:8000", "m").model == "m"


@pytest.mark.parametrize("module", ["batch_agent", "batch_agent.sim"])
def test_former_runnable_packages_print_their_usage(module: str) -> None:
    said = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "batch-agent" in said.stdout


def test_the_former_simulator_command_lists_its_options() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "batch_agent.sim", "--port"], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("python -m batch_agent.sim takes one JSON object; '--port' is not valid")
