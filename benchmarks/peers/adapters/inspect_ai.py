"""Inspect: a task of samples with a generate loop; its limit is on connections, so that slots are left for tools."""

# mypy: ignore-errors
# What it imports is in an environment of its own.

import tempfile

from inspect_ai import Task, eval_async
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, system_message, use_tools
from inspect_ai.tool import Tool, tool

from benchmarks.peers.work import MODEL, SYSTEM, Tally, Work


async def run(work: Work, tally: Tally) -> None:
    @tool
    def look() -> Tool:
        async def execute(key: str) -> str:
            """Look a key up.

            Args:
                key: The key.
            """
            return await tally.look(key)

        return execute

    @solver
    def told() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            tally.tell(int(state.sample_id), state.output.completion)
            return state

        return solve

    limits = GenerateConfig(max_connections=work.inflight, max_retries=work.retries)
    samples = [Sample(id=number, input=work.prompt(number)) for number in range(work.agents)]
    tools = [] if work.tool_s is None else [use_tools(look())]
    with tempfile.TemporaryDirectory() as folder:
        await eval_async(
            Task(dataset=MemoryDataset(samples), solver=[system_message(SYSTEM), *tools, generate(), told()]),
            model=get_model(f"openai-api/peer/{MODEL}", base_url=f"{work.url}/v1", api_key="none", config=limits),
            max_samples=None if work.tool_s is None else work.agents,
            fail_on_error=False,
            log_dir=folder,
            log_samples=False,
            log_realtime=False,
            score=False,
        )
