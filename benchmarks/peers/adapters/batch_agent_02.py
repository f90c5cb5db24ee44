"""batch-agent 0.2.0, from before it was written anew."""

# mypy: ignore-errors
# What it imports is in an environment of its own.

from urllib.parse import urlsplit

from batch_agent import AgentResult, BatchAgent, Tool
from benchmarks.peers.work import MODEL, SYSTEM, TASK, Tally, Work


async def run(work: Work, tally: Tally) -> None:
    def done(result: AgentResult) -> None:
        tally.tell(result.index, str(result.output) if result.ok else None)
        tally.first_words = tally.first_words or str(result.error or "")

    await BatchAgent.run(
        task=TASK,
        system_prompt=SYSTEM,
        inputs=[{"i": agent} for agent in range(work.agents)],
        tools=() if work.tool_s is None else (Tool.define(tally.look),),
        backend=f"vllm://{urlsplit(work.url).netloc}",
        model=MODEL,
        max_inflight=work.inflight,
        max_turns=1 if work.tool_s is None else 3,
        max_retries=work.retries,
        checkpoint_dir=work.checkpoint,
        on_result=done,
    )
