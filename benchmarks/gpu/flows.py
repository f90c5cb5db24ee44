"""Stages one after the other, and the same ones without barriers between them."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from batch_agent import AgentResult, BatchAgent, Flow
from batch_agent.backends.connect import connect
from batch_agent.core.messages import User
from batch_agent.core.protocols.backend import Backend, CountsTokens, ReportsLoad, ServerLoad, Traits
from batch_agent.core.requests import Delta, Finished, Request

from .token_texts import NONCE_TOKENS, nonce
from .vllm_process import say
from .workloads import Stage

_MEDIAN, _SPREAD, _LEAST, _MOST = 90, 0.8, 20, 600
_OWN_TOKENS = 300
_REPORT_TOKENS = 200
_SHAPES = {"wide": (400, ("answer", "judge")), "deep": (64, ("extract", "draft", "criticize", "revise", "grade"))}


class Varied:
    """A model without weights never ends an answer by itself: how long each gets is drawn from its item and stage."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def traits(self) -> Traits:
        return self._backend.traits

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        first = request.messages[0]
        asked = first.text if isinstance(first, User) else ""
        tokens = _REPORT_TOKENS if asked.startswith("Report") else _drawn(" ".join(asked.split()[:4]))
        sampling = replace(request.sampling, max_tokens=tokens, extra={"ignore_eos": True})
        async with self._backend.stream(replace(request, sampling=sampling)) as deltas:
            yield _ended(deltas)

    async def load(self) -> ServerLoad | None:
        return await self._backend.load() if isinstance(self._backend, ReportsLoad) else None

    async def count_tokens(self, text: str) -> int | None:
        return await self._backend.count_tokens(text) if isinstance(self._backend, CountsTokens) else None

    async def leave(self, agent: str) -> None:
        await self._backend.leave(agent)

    async def aclose(self) -> None:
        """It stays open for the next run."""


async def _ended(deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
    async for delta in deltas:
        yield replace(delta, reason="stop") if isinstance(delta, Finished) else delta


async def flows(stage: Stage) -> None:
    """Answers of all lengths, in two stages and in five, and a report of all of them in the end."""
    backend = await connect(f"{stage.server.url}/v1", stage.server.model, uses_tools=False, notify=say)
    try:
        for name, (items, steps) in _SHAPES.items():
            count = stage.scale.of_agents(items)
            ways = {"flow": _flow, "stages": _stages}
            for round_ in range(2):
                for way, run in ways.items():
                    rows = _rows(stage, f"{name} {round_}", count)
                    began = time.monotonic()
                    numbers = await run(Varied(backend), rows, steps, began)
                    took = {"wall_s": round(time.monotonic() - began, 2), **numbers}
                    stage.notes.put(took, "flows", name, way, f"round_{round_}")
                    say(f"flows {name} {way}: {took}")
    finally:
        await backend.aclose()


def _rows(stage: Stage, seed: str, count: int) -> list[dict[str, Any]]:
    start = nonce()
    tokens = stage.scale.of_tokens(_OWN_TOKENS) - NONCE_TOKENS
    return [
        {"number": f"{at:04}", "text": f"{start} {stage.words.text(f'{seed} {at}', tokens)}"} for at in range(count)
    ]


def _task(step: str, before: str | None) -> str:
    said = f"\n\nSo far: {{{before}}}" if before else ""
    return f"{step} of ticket {{number}}: {{text}}{said}"


def _note(seen: list[float], _: AgentResult) -> None:
    seen.append(time.monotonic())


async def _flow(backend: Backend, rows: list[dict[str, Any]], steps: tuple[str, ...], began: float) -> dict[str, Any]:
    flow = Flow(rows, backend=backend, model=backend.traits.model)
    last: list[float] = []
    for step, before in zip(steps, (None, *steps), strict=False):
        seen = last if step == steps[-1] else list[float]()
        flow = flow.map(step, _task(step, before), on_result=partial(_note, seen))
    outcome = await flow.reduce("report", "Report on {n} tickets.", shown=lambda item: item["number"]).run()
    return {
        "first_s": round(min(last) - began, 2),
        "failed": sum(each.failed for each in outcome.stages.values()),
        "output_tokens": outcome.usage.output,
    }


async def _stages(backend: Backend, rows: list[dict[str, Any]], steps: tuple[str, ...], began: float) -> dict[str, Any]:
    first, failed, output = 0.0, 0, 0
    for step, before in zip(steps, (None, *steps), strict=False):
        seen: list[float] = []
        results = await BatchAgent.run(
            task=_task(step, before),
            inputs=rows,
            backend=backend,
            on_result=partial(_note, seen),
        )
        first = min(seen) - began
        failed += sum(not result.ok for result in results)
        output += sum(result.usage.output for result in results)
        rows = [{**row, step: result.output} for row, result in zip(rows, results, strict=True) if result.ok]
    listed = "\n".join(row["number"] for row in rows)
    [report] = await BatchAgent.run(
        task="Report on {n} tickets.\n{listed}", inputs=[{"n": len(rows), "listed": listed}], backend=backend
    )
    return {
        "first_s": round(first, 2),
        "failed": failed + (not report.ok),
        "output_tokens": output + report.usage.output,
    }


def _drawn(seed: str) -> int:
    return int(min(_MOST, max(_LEAST, _MEDIAN * Random(seed).lognormvariate(0.0, _SPREAD))))
