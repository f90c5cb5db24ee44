"""A flow without barriers, beside the same stages one after the other.

    python -m benchmarks.flows [--quick]

The engine is simulated, in real time and over HTTP: a 7B model on an H200, as calibrated in sim_vs_vllm.py, with a
window of 128k tokens. Items are support tickets of 300 tokens. Each stage sees the ticket and the answer of the stage
before it; a report is written of all in the end. Answers are as long as those of models are: 90 tokens in the median,
log-normal, from 20 to 600. In the first stage half of the agents look something up, which takes 0.2 to 2 s. All of it
is drawn from the item and the stage: it is the same work in all ways.

- flow: `Flow(...).map(...).map(...).reduce(...)`, with nothing set.
- stages: `BatchAgent.run` for each stage, with nothing set, and once more for the report.
- loop: `asyncio.gather` for each stage on aiohttp, with a semaphore of as many as the engine runs at once.

What the shapes are of:

- narrow: 16 tickets, answered and judged. A batch that never fills the engine: each stage takes as long as its slowest.
- wide: 400 of them, on an engine that runs 256 at once, which is vLLM's default below an H100.
- deep: 64 tickets in five stages, as in extract, draft, criticize, revise, grade.
- tree: 200 answered tickets that do not fit one prompt: the window is 4,096 tokens. Peers cut the answers into parts
  when all are there; partial reports of a flow are written while others are still answered.
- searching: wide, with tools of 1 to 8 s, as a search of the web or a run of tests takes.
- crowded: 256 tickets on an engine that runs 64 at once. It is full most of the time, with or without barriers.
- even: crowded, without tools and with answers of 120 tokens each, in full rounds. Barriers cost next to nothing here,
  and a flow can win next to nothing.

`first_s` is when the first item has passed all its stages, `running` the mean of what the engine runs. `floor_s` is
what no order of this work can beat: the engine never idle and its batch always full, or the longest way of one item
alone, and the report after that. --quick is one round of the first shapes, and writes nothing.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

import aiohttp

from batch_agent import BatchAgent, Flow, Tool
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.sim.tokens import TOKEN_BYTES
from benchmarks import report
from benchmarks.sim_vs_vllm import H200

ROUNDS = 3
TARGET = 1.3
SYSTEM = "You work for the support of a small company, read tickets with care, and stay with the facts. " * 12
PROSE = "It worked before the update, and since then it does what nobody asked for whenever somebody looks. "
REPORT_TOKENS = 200
REPORT = f'Sum up these {{n}} results in a report. [[sim: {{{{"tokens": {REPORT_TOKENS}}}}}]]\n\nResults:\n{{results}}'
ENGINE = replace(H200, max_model_len=131_072, max_num_seqs=256)

Numbers = dict[str, float]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """Items, the stages that each passes, and the engine on which they do. What varies is drawn from item and stage."""

    items: int
    stages: tuple[str, ...]
    engine: SimConfig = ENGINE
    answer_tokens: tuple[int, int] = (20, 600)
    median_tokens: int = 90
    spread: float = 0.8
    ticket_tokens: int = 300
    tool_share: float = 0.5
    tool_s: tuple[float, float] = (0.2, 2.0)

    def rows(self) -> list[Row]:
        """The inputs. Beside the ticket they say what the simulated model will answer in each stage."""
        return [
            {
                "number": item,
                "ticket": _sized(f"Ticket {item}. ", self.ticket_tokens),
                **{_order(stage): self._orders(item, stage) for stage in self.stages},
            }
            for item in range(self.items)
        ]

    def answer_size(self, item: int, stage: str) -> int:
        low, high = self.answer_tokens
        drawn = self.median_tokens * Random(f"answer {item} {stage}").lognormvariate(0, self.spread)
        return max(low, min(high, round(drawn)))

    def looks_up(self, item: int) -> bool:
        return Random(f"whether {item}").random() < self.tool_share

    def tool_seconds(self, item: int) -> float:
        return Random(f"tool {item}").uniform(*self.tool_s)

    def alone(self, item: int, step: float) -> float:
        """Seconds of an item on an engine that it has for itself, and that reads prompts in no time."""
        answers = sum(self.answer_size(item, stage) for stage in self.stages) * step
        return answers + (self.tool_seconds(item) if self.looks_up(item) else 0.0)

    def tools(self, stage: str) -> list[Tool]:
        """Those of a stage: only the first has one."""
        if stage != self.stages[0] or not self.tool_share:
            return []

        @Tool.define(effect="stateful")
        async def look(item: int) -> str:
            """Looks up what is known of a ticket."""
            await asyncio.sleep(self.tool_seconds(item))
            return _sized(f"Known of ticket {item}: ", 60)

        return [look]

    def task(self, stage: str) -> str:
        at = self.stages.index(stage)
        before = f"\n\nSo far:\n{{{self.stages[at - 1]}}}" if at else ""
        return f"Stage {stage}: do your part for this ticket. {{{_order(stage)}}}\n\n{{ticket}}{before}"

    def _orders(self, item: int, stage: str) -> str:
        orders: list[dict[str, Any]] = [{"tokens": self.answer_size(item, stage)}]
        if stage == self.stages[0] and self.looks_up(item):
            call = {"name": "look", "arguments": {"item": item}}
            orders.insert(0, {"text": "Let me look that up before I answer. ", "calls": [call]})
        return f"[[sim: {json.dumps(orders)}]]"

    def shown(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Of an item, in the report."""
        return {"number": row["number"], "output": row[self.stages[-1]]}

    @property
    def room(self) -> int:
        """Tokens of results in one prompt of those who cut by hand: what is left beside the rest of it, and an
        eighth for the answer."""
        return self.engine.max_model_len * 7 // 8 - (len(SYSTEM) + len(REPORT)) // TOKEN_BYTES - 100


@dataclass(slots=True)
class Diary:
    """When items had passed all stages."""

    started: float = field(default_factory=time.perf_counter)
    passed: list[float] = field(default_factory=list)

    def item(self) -> None:
        self.passed.append(time.perf_counter() - self.started)


async def flow(url: str, shape: Shape, diary: Diary) -> None:
    made = Flow(shape.rows(), **_options(url))
    for stage in shape.stages:
        told: dict[str, Any] = {"on_result": lambda result: diary.item()} if stage == shape.stages[-1] else {}
        made = made.map(stage, shape.task(stage), tools=shape.tools(stage), **told)
    outcome = await made.reduce("report", REPORT, shown=shape.shown).run(progress=False)
    failed = {name: stage.failed for name, stage in outcome.stages.items() if stage.failed}
    if failed or len(diary.passed) != shape.items:
        raise SystemExit(f"{len(diary.passed)} of {shape.items} items passed all stages; failed: {failed}")


async def stages(url: str, shape: Shape, diary: Diary) -> None:
    """Each stage a batch of its own, begun when the one before it is over."""

    async def batch(task: str, rows: Sequence[Row], **more: Any) -> list[str]:
        results = await BatchAgent.run(task=task, inputs=rows, progress=False, **_options(url), **more)
        if failed := [result.error for result in results if result.error is not None]:
            raise SystemExit(f"{len(failed)} of {len(rows)} agents failed: {failed[0]}")
        return [str(result.output) for result in results]

    rows = shape.rows()
    for stage in shape.stages:
        told = {"on_result": lambda result: diary.item()} if stage == shape.stages[-1] else {}
        answers = await batch(shape.task(stage), rows, tools=shape.tools(stage), **told)
        rows = [{**row, stage: answer} for row, answer in zip(rows, answers, strict=True)]
    await _reduced(shape, rows, lambda parts: batch(REPORT, parts))


async def loop(url: str, shape: Shape, diary: Diary) -> None:
    """The same by hand."""
    room = asyncio.Semaphore(shape.engine.max_num_seqs)
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), raise_for_status=True)

    async def ask(task: str, row: Row, tools: Sequence[Tool] = ()) -> str:
        offered = {"tools": [_schema(tool) for tool in tools]} if tools else {}
        content = task.format(**row)
        messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]
        while True:
            body = {"model": "sim", "messages": messages, **offered}
            async with room, session.post(f"{url}/v1/chat/completions", json=body) as response:
                said = (await response.json())["choices"][0]["message"]
            if not said["tool_calls"]:
                return str(said["content"])
            [call] = said["tool_calls"]
            found = await tools[0].function(**json.loads(call["function"]["arguments"]))
            messages += [said, {"role": "tool", "tool_call_id": call["id"], "content": found}]

    async def pass_stage(row: Row, stage: str) -> Row:
        answer = await ask(shape.task(stage), row, shape.tools(stage))
        if stage == shape.stages[-1]:
            diary.item()
        return {**row, stage: answer}

    async with session:
        rows = shape.rows()
        for stage in shape.stages:
            rows = await asyncio.gather(*(pass_stage(row, stage) for row in rows))
        await _reduced(shape, rows, lambda parts: asyncio.gather(*(ask(REPORT, part) for part in parts)))


async def _reduced(shape: Shape, rows: Iterable[Row], ask: Callable[[list[Row]], Awaitable[list[str]]]) -> None:
    """One report, of parts that fit a prompt each: level after level, as one writes it."""
    entries = [_line(shape.shown(row)) for row in rows]
    while True:
        parts = _parts(entries, shape.room)
        answers = await ask([{"n": len(part), "results": "[\n" + ",\n".join(part) + "\n]"} for part in parts])
        if len(parts) == 1:
            return
        entries = [_line({"results": len(part), "output": text}) for part, text in zip(parts, answers, strict=True)]


def _parts(entries: Sequence[str], room: int) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    taken = 0
    for entry in entries:
        size = len(entry) // TOKEN_BYTES + 2
        if parts[-1] and taken + size > room:
            parts.append([])
            taken = 0
        parts[-1].append(entry)
        taken += size
    return parts


Way = Callable[[str, Shape, Diary], Awaitable[None]]
WAYS: dict[str, Way] = {"flow": flow, "stages": stages, "loop": loop}

ANSWERED = ("answer", "judge")
CROWDED = Shape(256, ANSWERED, replace(ENGINE, max_num_seqs=64))
SHAPES = {
    "narrow": Shape(16, ANSWERED),
    "wide": Shape(400, ANSWERED),
    "deep": Shape(64, ("extract", "draft", "criticize", "revise", "grade")),
    "tree": Shape(200, ("answer",), replace(ENGINE, max_model_len=4_096)),
    "searching": Shape(400, ANSWERED, tool_s=(1.0, 8.0)),
    "crowded": CROWDED,
    "even": replace(CROWDED, answer_tokens=(120, 120), tool_share=0.0),
}


def measure(way: Way, shape: Shape) -> Numbers:
    """One run on a server of its own, whose cache is empty."""
    with SimServer(shape.engine, Script(tool_turns=0)) as sim:
        before = sim.metrics()
        diary, wall, running = asyncio.run(_timed(way, shape, sim))
        done = {name: value - before[name] for name, value in sim.metrics().items()}
    return {
        "wall_s": round(wall, 3),
        "first_s": round(diary.passed[0], 3),
        "requests": done["vllm:request_success_total"],
        "generated_tokens": done["vllm:generation_tokens_total"],
        "running": round(statistics.fmean(running), 1),
        "floor_s": round(floor(shape, done), 3),
    }


def floor(shape: Shape, done: Mapping[str, float]) -> float:
    """Seconds below which no order of the work can come. What attention reads is left out."""
    engine, generated = shape.engine, done["vllm:generation_tokens_total"] - REPORT_TOKENS
    computed = done["vllm:prefix_cache_queries_total"] - done["vllm:prefix_cache_hits_total"]
    step = engine.step_base_ms / 1e3
    work = computed * engine.prefill_us_per_token / 1e6
    work += generated * (engine.step_us_per_seq / 1e6 + step / engine.max_num_seqs)
    return max(work, *(shape.alone(item, step) for item in range(shape.items))) + REPORT_TOKENS * step


async def _timed(way: Way, shape: Shape, sim: SimServer) -> tuple[Diary, float, list[float]]:
    running: list[float] = []

    async def look() -> None:
        while True:
            running.append((await asyncio.to_thread(sim.metrics))["vllm:num_requests_running"])
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(look())
        diary = Diary()
        await way(sim.url, shape, diary)
        wall = time.perf_counter() - diary.started
        looking.cancel()
    return diary, wall, running


class Rounds:
    """What was measured, by shape and way; prints each as it comes."""

    def __init__(self) -> None:
        self.taken: dict[str, dict[str, list[Numbers]]] = {}

    def add(self, shape: str, way: str, numbers: Numbers) -> None:
        if not self.taken:
            print(f"{'':>18}" + "".join(f"{name:>18}" for name in numbers))
        self.taken.setdefault(shape, {}).setdefault(way, []).append(numbers)
        print(f"{shape:>10} {way:>7}" + "".join(f"{value:>18,.2f}" for value in numbers.values()), flush=True)

    def median(self, shape: str, way: str, name: str) -> float:
        return statistics.median(numbers[name] for numbers in self.taken[shape][way])

    def medians(self) -> dict[str, dict[str, Numbers]]:
        return {
            shape: {way: {name: self.median(shape, way, name) for name in taken[0]} for way, taken in ways.items()}
            for shape, ways in self.taken.items()
        }

    def gains(self) -> dict[str, Numbers]:
        """How many times longer the peers took, by shape."""
        return {
            shape: {
                f"{way} / flow, {name}": round(self.median(shape, way, name) / self.median(shape, "flow", name), 3)
                for name in ("wall_s", "first_s")
                for way in ways
                if way != "flow"
            }
            for shape, ways in self.taken.items()
        }


def one_round(rounds: Rounds, shapes: Mapping[str, Shape]) -> None:
    for name, shape in shapes.items():
        for way, run in WAYS.items():
            rounds.add(name, way, measure(run, shape))


def targets(rounds: Rounds) -> list[dict[str, Any]]:
    """Deep and wide flows should take less than stage by stage by this factor."""
    found: list[dict[str, Any]] = []
    for shape in ("wide", "deep"):
        with suppress(KeyError):
            gain = rounds.gains()[shape]["stages / flow, wall_s"]
            found.append({"shape": shape, "least": TARGET, "gain": gain, "is_met": gain >= TARGET})
    return found


def main(*, quick: bool) -> None:
    rounds = Rounds()
    for _ in range(1 if quick else ROUNDS):
        one_round(rounds, dict(list(SHAPES.items())[:3]) if quick else SHAPES)
    for shape, gains in rounds.gains().items():
        print(f"{shape:>10}  " + "   ".join(f"{name}: {gain:.2f}" for name, gain in gains.items()))
    for each in targets(rounds):
        print(f"{each['shape']}: {each['gain']} of at least {each['least']}: {'pass' if each['is_met'] else 'FAIL'}")
    if not quick:
        numbers = {
            "shapes": {name: asdict(shape) for name, shape in SHAPES.items()},
            "medians": rounds.medians(),
            "gains": rounds.gains(),
            "targets": targets(rounds),
            "all_rounds": rounds.taken,
        }
        print(report.write("flows", numbers))


def _options(url: str) -> dict[str, Any]:
    return {"system_prompt": SYSTEM, "backend": url.replace("http", "vllm", 1)}


def _order(stage: str) -> str:
    return f"{stage}_order"


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _schema(tool: Tool) -> dict[str, Any]:
    spec = tool.spec
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "function": function}


def _sized(opening: str, tokens: int) -> str:
    length = max(len(opening), tokens * TOKEN_BYTES)
    return (opening + PROSE * (length // len(PROSE) + 1))[:length]


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
