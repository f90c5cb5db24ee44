"""batch-agent run."""

import asyncio
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ..api import BatchAgent
from ..core.errors import RunStopped
from ..observe.progress import Progress, progress_for
from ..observe.summary import summary_lines
from .command import KeepsCommand
from .data import InputFile, ResultFile
from .load import load_schema, load_tools


def run(
    *,
    task: str,
    inputs: Path,
    out: Path = Path("results.jsonl"),
    system_prompt: str | None = None,
    schema: str | None = None,
    tools: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    tool_mode: Literal["auto", "native", "action"] = "auto",
    backend: str = "local://",
    model: str | None = None,
    max_inflight: int | None = None,
    max_turns: int = 10,
    max_retries: int = 3,
    max_tokens: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    timeout_per_agent: float = 1800.0,
    timeout_per_turn: float = 300.0,
    timeout_per_tool: float = 60.0,
    checkpoint: Path | None = None,
    plan_changed: Literal["stop", "rerun"] = "stop",
    fresh: bool = False,
) -> int:
    """Run one task over a list of inputs.

    Results are written as they come. Stopped or killed, the same command goes on where it was.

    Parameters
    ----------
    task
        What each agent shall do, with {fields} of the inputs: "Summarize: {text}".
    inputs
        A .jsonl, .json or .csv file, or a folder: each file is an input with {path}, {name} and {text}.
    out
        One JSON object per result and line.
    system_prompt
        What comes before the task, the same for all agents.
    schema
        What each answer must be: a JSON schema file, or a Pydantic model as module:Model.
    tools
        What agents may call: read_file, list_files, grep, http_get, web_search, or your own, as module:function.
    tool_mode
        The server's native tool calls, or one JSON action per turn; auto: what the server can do.
    backend
        local:// (embedded), vllm://host:port, sglang://, dynamo://, openai://, anthropic://, bedrock://region/model,
        http(s)://...
    model
        The model's name; not needed where a server has only one.
    max_inflight
        Requests in flight at once; found by itself if not given.
    max_turns
        Turns that an agent may take.
    max_retries
        How often a failed request or an unusable answer is tried again.
    max_tokens
        The longest answer of a turn.
    temperature
        Sampling temperature; the server's default if not given.
    seed
        Sampling seed.
    timeout_per_agent
        Seconds for an agent in all.
    timeout_per_turn
        Seconds for one answer of the model.
    timeout_per_tool
        Seconds for one tool call.
    checkpoint
        Where progress is kept; by default beside the results.
    plan_changed
        If the task, the model or the like changed since: stop and say so, or ask everything anew.
    fresh
        Forget an earlier run's progress and start over.
    """
    given = dict(locals())  # before anything else is one: all that was said, for `batch-agent resume`
    folder = checkpoint or out.with_name(out.name + ".checkpoint")
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    options: dict[str, Any] = {
        "task": task,
        "inputs": InputFile(inputs),
        "system_prompt": system_prompt,
        "tools": load_tools(tools or [], inputs if inputs.is_dir() else Path.cwd()),
        "output_schema": load_schema(schema) if schema else None,
        "tool_mode": tool_mode,
        "backend": backend,
        "model": model,
        "max_inflight": max_inflight,
        "max_turns": max_turns,
        "max_retries": max_retries,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "timeout_per_agent": timeout_per_agent,
        "timeout_per_turn": timeout_per_turn,
        "timeout_per_tool": timeout_per_tool,
        "checkpoint_dir": folder,
        "plan_changed": plan_changed,
    }
    started = time.monotonic()
    with ResultFile(out) as results:
        progress = KeepsCommand(progress_for(sys.stderr), folder, given)
        try:
            asyncio.run(_stream(options, results, progress))
            stopped = ""
        except KeyboardInterrupt:
            stopped = "Stopped."
        except RunStopped as error:
            stopped = f"Stopped. {error}"
    _say(summary_lines(progress.tally, time.monotonic() - started))
    _say([f"Results: {out}"])
    if stopped:
        _say([stopped, f"What is done is kept: run the same command again to go on, or batch-agent resume {folder}"])
        return 130 if stopped == "Stopped." else 2
    if progress.tally.failed:
        _say(["Run the same command again to try the failed ones once more."])
    return 1 if progress.tally.failed else 0


async def _stream(options: dict[str, Any], results: ResultFile, progress: Progress) -> None:
    async with BatchAgent.stream(events=progress, **options) as stream:
        async for result in stream:
            results.write(result)


def _say(lines: list[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)
