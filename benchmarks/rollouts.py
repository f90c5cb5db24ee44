"""Token-exact rollouts on a real engine: the ids in the checkpoint against the log of the engine.

    python -m benchmarks.rollouts vllm [--agents 200] [--programs 8]
    python -m benchmarks.rollouts sglang
    python -m benchmarks.rollouts vllm --program codex

Starts vLLM or SGLang on the CPU (scripts/engines) with a log of every request: the ids that its scheduler was given,
and those that it sampled. Agents call a tool and answer; programs are OpenCode, Codex or Claude Code behind the
gateway. Each pair of prompt and sampled ids in the checkpoint must be in the engine's log, and each of the log in the
checkpoint. The log is written by the engine itself, before a response is made of it: an id that is lost, changed,
tokenized again or attributed to another turn on the way to the checkpoint is a difference.
"""

import argparse
import asyncio
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.live.claude_code import claude_runtime
from tests.live.codex import codex_program
from tests.live.engines import sglang_server, vllm_server
from tests.live.forced_calls import NAME, ForcedCalls, call_of
from tests.live.opencode import make_project, opencode_program

from batch_agent import BatchAgent, CodexRuntime, OpenCodeRuntime, Results
from batch_agent.core.program_runtime import Runtime
from batch_agent.core.requests import unpacked_ids
from batch_agent.rollouts.rollout import Rollout, rollout_of
from batch_agent.store.reader import CheckpointReader
from benchmarks import report

Pairs = Counter[tuple[tuple[int, ...], tuple[int, ...]]]
_VLLM_PROMPT = re.compile(r"Request (\S+) details: .*prompt_token_ids: \[([\d, ]*)\]")
_VLLM_OUTPUT = re.compile(r"Generated response (\S+)\s.*details: output_token_ids: \[([\d, ]*)\]")


def engine(kind: str, scratch: Path) -> AbstractContextManager[str]:
    """The engine, with a log of ids."""
    if kind == "vllm":
        logged = ("--enable-log-requests", "--enable-log-outputs")
        return vllm_server(scratch, *logged, environment={"VLLM_LOGGING_LEVEL": "DEBUG"})
    return sglang_server(scratch, "--log-requests", "--log-requests-level", "3", "--log-requests-format", "json")


def logged(kind: str, scratch: Path, start: int) -> Pairs:
    """Ids of prompts and of what was sampled, by the engine's log from `start` on."""
    with (scratch / f"{kind}.log").open("rb") as file:
        file.seek(start)
        text = file.read().decode(errors="replace")
    return Counter(_vllm_pairs(text) if kind == "vllm" else _sglang_pairs(text))


def _vllm_pairs(text: str) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    prompts = {found[1]: _ids(found[2]) for found in _VLLM_PROMPT.finditer(text)}
    for found in _VLLM_OUTPUT.finditer(text):
        yield prompts[found[1]], _ids(found[2])


def _sglang_pairs(text: str) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for line in text.splitlines():
        _, brace, rest = line.partition("{")
        if '"event": "request.finished"' in line:
            entry = json.loads(brace + rest)
            if not entry["rid"].startswith("HEALTH_CHECK"):
                yield tuple(entry["obj"]["input_ids"]), tuple(entry["out"]["output_ids"])


def _ids(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text.strip() else ()


def kept(folder: Path) -> list[Rollout]:
    with CheckpointReader(folder) as reader:
        found = [rollout_of(stored.facts) for stored in reader.inputs()]
    return [each for each in found if each is not None]


def compared(rollouts: list[Rollout], engine_log: Pairs) -> dict[str, Any]:
    """How many turns of the checkpoint are those of the engine."""
    turns = [record.tokens for each in rollouts for record in each.records]
    own: Pairs = Counter((tuple(unpacked_ids(turn.prompt)), tuple(unpacked_ids(turn.sampled))) for turn in turns)
    return {
        "agents": len(rollouts),
        "turns": len(turns),
        "turns_in_the_log": engine_log.total(),
        "equal": (own & engine_log).total(),
        "only_in_the_checkpoint": (own - engine_log).total(),
        "only_in_the_log": (engine_log - own).total(),
        "sampled_ids": sum(len(turn.sampled) // 4 for turn in turns),
        "sent_as_ids": sum(record.sent_as_ids for each in rollouts for record in each.records),
        "later_turns": sum(len(thread) - 1 for each in rollouts for thread in each.threads),
        "breaks": sum(len(each.breaks) for each in rollouts),
    }


def berth_of(ship: str) -> str:
    """Finds the berth of a ship."""
    return f"{ship} lies at berth {len(ship)}, pier <{ship[:2]}>."


async def agents(url: str, kind: str, count: int, calls: int, folder: Path, *, tokens: bool) -> dict[str, Any]:
    backend = await ForcedCalls.open(url, kind, call_of("berth_of", "ship", NAME), calls)
    started, used = time.perf_counter(), time.process_time()
    try:
        results: Results[str] = await BatchAgent.run(
            task="Where is the ship {it}?",
            inputs=[f"number {number} of {folder.name}" for number in range(count)],
            tools=[berth_of],
            backend=backend,
            temperature=1.0,
            max_tokens=64,
            tokens=tokens,
            checkpoint_dir=folder,
            timeout_per_turn=600,
            progress=False,
        )
    finally:
        await backend.aclose()
    turns, cpu = sum(result.turns for result in results), time.process_time() - used
    return {
        "ok": sum(result.ok for result in results),
        "turns": turns,
        "cpu_ms_per_turn": round(1000 * cpu / turns, 3),
        "tool_calls": sum(len(result.tool_calls) for result in results),
        "renderings": backend.renderings,
        "wall_s": round(time.perf_counter() - started, 1),
    }


def opencode(project: Path) -> tuple[Runtime, str]:
    prompt = "You are a clerk. Answer in one sentence."
    runtime = OpenCodeRuntime(workdir=project, command=opencode_program(), prompt=prompt, tools=("read",))
    return runtime, call_of("read", "filePath", "(read.me|AGENTS.md)")


def codex(project: Path) -> tuple[Runtime, str]:
    runtime = CodexRuntime(workdir=project, command=codex_program(), prompt="You are a clerk. Answer in one sentence.")
    return runtime, call_of("exec_command", "cmd", "cat (read.me|AGENTS.md)")


def claude_code(project: Path) -> tuple[Runtime, str]:
    return claude_runtime(project, "Bash"), call_of("Bash", "command", "cat (read.me|AGENTS.md)")


PROGRAMS = {"opencode": opencode, "codex": codex, "claude-code": claude_code}
"""A runtime, and the pattern of a call of one of its tools."""
DEFAULT_PROGRAM = "opencode"


async def programs(url: str, kind: str, program: str, count: int, folder: Path, project: Path) -> dict[str, Any]:
    runtime, call = PROGRAMS[program](project)
    backend = await ForcedCalls.open(url, kind, call)
    started = time.perf_counter()
    try:
        results = await BatchAgent.run(
            task="Say which ship number {it} is.",
            inputs=[str(number) for number in range(count)],
            backend=backend,
            runtime=runtime,
            max_agents=8,
            max_turns=6,
            max_tokens=64,
            temperature=1.0,
            tokens=True,
            checkpoint_dir=folder,
            timeout_per_turn=600,
            progress=False,
        )
    finally:
        await backend.aclose()
    failures = sorted({str(result.error)[:200] for result in results if not result.ok})
    calls = sum(len(result.tool_calls) for result in results)
    wall = round(time.perf_counter() - started, 1)
    return {"ok": sum(result.ok for result in results), "tool_calls": calls, "failures": failures, "wall_s": wall}


async def measure(kind: str, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    log = scratch / f"{kind}.log"
    found = dict[str, Any]()
    with engine(kind, scratch) as url:
        if options.programs:
            start, folder = log.stat().st_size, scratch / "programs"
            project = make_project(scratch / "project")
            ran = await programs(url, kind, options.program, options.programs, folder, project)
            found["programs"] = (
                {"program": options.program} | ran | compared(kept(folder), logged(kind, scratch, start))
            )
            print(json.dumps(found["programs"]), flush=True)
        if options.program == DEFAULT_PROGRAM:
            start, folder = log.stat().st_size, scratch / "agents"
            ran = await agents(url, kind, options.agents, options.calls, folder, tokens=True)
            found["agents"] = ran | compared(kept(folder), logged(kind, scratch, start))
            print(json.dumps(found["agents"]), flush=True)
        if options.without:
            ran = await agents(url, kind, options.without, options.calls, scratch / "without", tokens=False)
            found["without_tokens"] = ran
            print(json.dumps(found["without_tokens"]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=("vllm", "sglang"))
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--calls", type=int, default=1, help="turns of an agent that call the tool, before its answer")
    parser.add_argument("--programs", type=int, default=8)
    parser.add_argument("--program", choices=tuple(PROGRAMS), default=DEFAULT_PROGRAM, help="others: no agents")
    parser.add_argument("--without", type=int, default=0, help="agents of a run without the option, for its CPU")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        numbers = asyncio.run(measure(options.engine, options, Path(scratch)))
    name = f"rollouts_{options.engine}"
    if options.program != DEFAULT_PROGRAM:
        name += f"_{options.program.replace('-', '_')}"
    print(report.write(name, numbers))


if __name__ == "__main__":
    main()
