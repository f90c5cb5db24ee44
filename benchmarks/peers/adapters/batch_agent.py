"""Ours, with nothing set but what every peer is told."""

from batch_agent import AgentResult, BatchAgent, Tool
from benchmarks.peers.work import SYSTEM, TASK, Tally, Work


async def run(work: Work, tally: Tally) -> None:
    def done(result: AgentResult) -> None:
        tally.tell(result.index, result.text if result.ok else None)
        tally.ttfts += [ttft for ttft in result.timing.ttft if ttft is not None]
        tally.first_words = tally.first_words or str(result.error or "")

    await BatchAgent.run(
        task=TASK,
        system_prompt=SYSTEM,
        inputs=[{"i": agent} for agent in range(work.agents)],
        tools=[] if work.tool_s is None else [Tool.define(effect="read")(tally.look)],
        backend=work.url if len(work.urls) == 1 else list(work.urls),
        model=work.model,
        max_inflight=work.inflight,
        max_retries=work.retries,
        streaming=work.is_streamed,
        max_tokens=work.answer_tokens,
        extra={} if work.answer_tokens is None else {"ignore_eos": True},
        checkpoint_dir=work.checkpoint,
        on_result=done,
        progress=False,
    )
