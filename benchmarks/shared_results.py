"""Tool results that many agents read: behind their calls, and before the agents' own text.

    python -m benchmarks.shared_results [--quick]

128 agents take 4 turns on a 7B model on an H200, as calibrated in sim_vs_vllm.py; 2,000 tokens of their prompts are
shared and 400 are their own. Each reads three of 20 documents of 2,000 tokens, which takes 1 to 3 s. The KV cache has
262k tokens, or room for everything.

Time is virtual: the engine is the simulated one without HTTP, and `BatchAgent.run` is the real one. So the numbers are
the same in every run and do not depend on the load of the machine; the client's own time is not in them. CPU seconds
are measured. The peers are loops on `asyncio.gather`, with the results behind their calls and with documents that an
expert places first by hand, in one order for all agents.

Other cases share nothing, where `shared_results="auto"` must not cost more than 2 %, or a part. --quick leaves the last
out and writes nothing.
"""

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any, Literal

import orjson

from batch_agent import BatchAgent, Tool
from batch_agent.agent.references import pointer
from batch_agent.core.messages import Assistant, Message, Placement, Reference, ToolCall, ToolResults, User
from batch_agent.core.protocols.backend import ServerLoad, Traits
from batch_agent.core.requests import CallDelta, Delta, Finished, Request, TextDelta, Usage
from batch_agent.forecasting.simulation import SimulatedServer
from batch_agent.sim import SimConfig
from batch_agent.sim.kv_engine.sequence import Sequence as EngineSequence
from batch_agent.sim.tokens import TOKEN_BYTES, block_hashes, render_chat
from batch_agent.tools.reference_order import ReferenceOrder
from batch_agent.virtual_time import run_virtual
from benchmarks import report
from benchmarks.sim_vs_vllm import H200, ONCE

TOOL = "read_document"
TASK = "Question {number}.\n\n{text}"
PROSE = "What was measured before is measured again with more care, and the difference is noted in the margin. "
TIGHT, ROOMY = H200, replace(H200, num_blocks=8 * H200.num_blocks)

DOCUMENTS, READS = 20, 3

Numbers = dict[str, Any]


def topics(agent: int, turn: int) -> int:
    """Which document: agents of one topic read the same ones, in the same order. There are 16 topics of 8 agents."""
    return Random(f"topic {agent % 16}").sample(range(DOCUMENTS), READS)[turn]


def zipf(agent: int, turn: int) -> int:
    """Which document: a few are read by many agents, most by few, in any order."""
    random, left, read = Random(f"reader {agent}"), list(range(DOCUMENTS)), []
    for _ in range(READS):
        read.append(random.choices(left, [1 / (1 + document) for document in left])[0])
        left.remove(read[-1])
    return read[turn]


def alone(agent: int, turn: int) -> int:
    """Which document: one that no other agent reads."""
    return agent * READS + turn


def half_alone(agent: int, turn: int) -> int:
    """Which document: every second agent reads what no other agent reads."""
    return zipf(agent, turn) if agent % 2 else DOCUMENTS + alone(agent, turn)


@dataclass(frozen=True, slots=True)
class Work:
    """Agents that read a document on every turn but the last. Sizes are tokens."""

    reads: Callable[[int, int], int]
    """The document, for an agent and a turn."""
    agents: int = 128
    shared: int = 2_000
    own: int = 400
    answer: int = 64
    document: int = 2_000
    tool_s: tuple[float, float] = (1.0, 3.0)
    once: bool = True
    """A document is fetched once and is then known to all agents; otherwise each of them waits for it."""

    @property
    def turns(self) -> int:
        return READS + 1

    @property
    def system(self) -> str:
        return _sized("You answer questions from documents. ", self.shared)

    def row(self, agent: int) -> dict[str, str]:
        return {"number": str(agent), "text": _sized(f"I am agent {agent}. ", self.own)}

    def task(self, agent: int) -> str:
        return TASK.format(**self.row(agent))

    def text(self, document: int) -> str:
        return _sized(f"Document {document}. ", self.document)

    def said(self) -> str:
        return _sized("I should read this. ", self.answer - 24)

    def call(self, agent: int, turn: int) -> ToolCall:
        return ToolCall(f"call-{turn}", TOOL, orjson.dumps({"number": self.reads(agent, turn)}).decode())


class Library:
    """Documents, and how long it takes to get one."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._random = Random("seconds")
        self._found: dict[int, asyncio.Task[str]] = {}

    async def fetch(self, document: int) -> str:
        await asyncio.sleep(self._random.uniform(*self._work.tool_s))
        return self._work.text(document)

    async def get(self, document: int) -> str:
        """As a careful loop gets it."""
        if not self._work.once:
            return await self.fetch(document)
        if document not in self._found:
            self._found[document] = asyncio.ensure_future(self.fetch(document))
        return await asyncio.shield(self._found[document])

    def tool(self) -> Tool:
        @Tool.define(name=TOOL, effect="read", ttl=None if self._work.once else 0.0)
        async def read_document(number: int) -> str:
            """Reads a document."""
            return await self.fetch(number)

        return read_document


class Engine:
    """The simulated engine as a backend. What the model says is given by the work; the tokens of an answer are not
    found in the cache when the answer is in a later prompt, as with most chat templates."""

    def __init__(self, work: Work, config: SimConfig) -> None:
        self._work = work
        self._block_size = config.block_size
        self._server = SimulatedServer(config)
        self._answers = itertools.count()
        self.computed = 0
        self.first_result_s: float | None = None
        self.traits = Traits(
            name="simulated",
            model="simulated",
            native_tools=True,
            json_schema=True,
            json_schema_with_tools=True,
            inflight=32,
            context_tokens=config.context_tokens,
            kv_tokens=config.kv_tokens,
            kv_running_tokens=config.kv_tokens,
        )

    async def load(self) -> ServerLoad | None:
        return await self._server.load()

    async def answer(self, messages: Sequence[Mapping[str, Any]], tokens: int) -> Usage:
        """The answer to a prompt, after the time that it takes."""
        prompt = render_chat(messages, None)
        size, number = len(prompt) // TOKEN_BYTES, next(self._answers)
        hashes = block_hashes(prompt, self._block_size)
        rest = range(len(hashes), (size + tokens) // self._block_size)
        hashes += [hash((number, block)) for block in rest]
        sequence = EngineSequence(size, tokens, hashes, emit_every=ONCE)
        await self._server.answer(sequence)
        self.computed += size - sequence.cached
        return Usage(size, sequence.cached, tokens)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[Delta]]:
        yield self._deltas(request)

    async def _deltas(self, request: Request) -> AsyncIterator[Delta]:
        tokens = self._work.answer if request.sampling.max_tokens != 1 else 1
        messages = [{"role": "system", "content": self._work.system}, *_rendered(request.messages)]
        usage = await self.answer(messages, tokens)
        if request.index is None or request.turn == self._work.turns - 1:
            yield TextDelta("done")
            yield Finished("stop", usage)
            return
        yield TextDelta(self._work.said())
        yield CallDelta(self._work.call(request.index, request.turn))
        yield Finished("calls", usage)

    def on_result(self, *_: object) -> None:
        if self.first_result_s is None:
            self.first_result_s = asyncio.get_running_loop().time()

    async def leave(self, agent: str) -> None:
        pass

    async def aclose(self) -> None:
        pass


def _rendered(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    for message in messages:
        match message:
            case User(text):
                yield {"role": "user", "content": text}
            case Assistant():
                yield said_message(message.text, message.calls)
            case ToolResults(results):
                for result in results:
                    yield {"role": "tool", "tool_call_id": result.call.id, "content": result.content}


def said_message(text: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
    asked = [{"id": call.id, "type": "function", "function": each} for call, each in zip(calls, functions, strict=True)]
    return {"role": "assistant", "content": text, "tool_calls": asked}


Way = Callable[[Engine, Work], Awaitable[None]]


def gather(*, placement: Literal["inline", "first"] = "inline") -> Way:
    """All agents at once."""

    async def run(engine: Engine, work: Work) -> None:
        library = Library(work)

        async def live(agent: int) -> None:
            read: dict[int, str] = {}
            rest: list[dict[str, Any]] = []
            for turn in range(work.turns):
                opening = with_documents(read, work.task(agent)) if placement == "first" else work.task(agent)
                messages = [{"role": "system", "content": work.system}, {"role": "user", "content": opening}, *rest]
                await engine.answer(messages, work.answer)
                if turn == work.turns - 1:
                    break
                call, document = work.call(agent, turn), work.reads(agent, turn)
                found = await library.get(document)
                if placement == "first":
                    read[document] = found
                    found = pointer(heading(document))
                rest += [
                    said_message(work.said(), [call]),
                    {"role": "tool", "tool_call_id": call.id, "content": found},
                ]
            engine.on_result()

        await asyncio.gather(*map(live, range(work.agents)))

    return run


def with_documents(read: Mapping[int, str], task: str) -> str:
    """A prompt as an expert writes it: documents in one order for all agents, then the agent's own text."""
    blocks = [f"<reference call='{heading(each)}'>\n{read[each]}\n</reference>\n" for each in sorted(read)]
    return f"<references>\n{''.join(blocks)}</references>\n\n{task}" if blocks else task


def heading(document: int) -> str:
    return f"{TOOL}(number={document})"


def ours(**options: Any) -> Way:
    async def run(engine: Engine, work: Work) -> None:
        results = await BatchAgent.run(
            task=TASK,
            system_prompt=work.system,
            inputs=[work.row(agent) for agent in range(work.agents)],
            tools=[Library(work).tool()],
            backend=engine,
            on_result=engine.on_result,
            progress=False,
            **options,
        )
        if wrong := [str(each.error or each.turns) for each in results if not each.ok or each.turns != work.turns]:
            raise SystemExit(f"{len(wrong)} of {work.agents} agents did not take {work.turns} turns: {wrong[0]}")

    return run


@contextmanager
def call_order() -> Iterator[None]:
    """References in the order in which each agent asked for them, instead of one order for the run."""
    kept, ranks = ReferenceOrder.reference, itertools.count()

    async def reference(order: ReferenceOrder, heading: str, placement: Placement) -> Reference:
        return replace(await kept(order, heading, placement), rank=next(ranks))

    ReferenceOrder.reference = reference  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ReferenceOrder.reference = kept  # type: ignore[method-assign]


def in_call_order(way: Way) -> Way:
    async def run(engine: Engine, work: Work) -> None:
        with call_order():
            await way(engine, work)

    return run


def measure(way: Way, work: Work, config: SimConfig) -> Numbers:
    engine, started = Engine(work, config), time.process_time()

    async def run() -> float:
        await way(engine, work)
        return asyncio.get_running_loop().time()

    wall = run_virtual(run())
    return {
        "wall_s": round(wall, 2),
        "first_result_s": round(engine.first_result_s or 0.0, 2),
        "computed_tokens": engine.computed,
        "cpu_s": round(time.process_time() - started, 2),
    }


WAYS = {
    "gather_inline": gather(),
    "gather_first": gather(placement="first"),
    "inline": ours(),
    "first": ours(shared_results="first"),
    "auto": ours(shared_results="auto"),
    "first_in_call_order": in_call_order(ours(shared_results="first")),
}
SHARED = {
    "262k topics": (Work(topics), TIGHT),
    "262k zipf": (Work(zipf), TIGHT),
    "everything fits topics": (Work(topics), ROOMY),
    "everything fits zipf": (Work(zipf), ROOMY),
    "262k topics, each fetches": (Work(topics, once=False), TIGHT),
    "262k zipf, each fetches": (Work(zipf, once=False), TIGHT),
}
TARGETS = {"262k topics": 16.0, "262k zipf": 24.0, "everything fits topics": 16.0, "everything fits zipf": 22.0}
NOTHING_SHARED = {
    f"{memory}, {name}": (work, config)
    for memory, config in (("262k", TIGHT), ("everything fits", ROOMY))
    for name, work in {
        "own text of 6,000 tokens": Work(zipf, own=6_000),
        "read by one agent": Work(alone),
        "results of 50 tokens": Work(zipf, document=50),
    }.items()
}
PARTLY_SHARED = {
    f"{memory}, {name}": (work, config)
    for memory, config in (("262k", TIGHT), ("everything fits", ROOMY))
    for name, work in {
        "half of the agents read what nobody else reads": Work(half_alone),
        "topics, own text of 1,000 tokens": Work(topics, own=1_000),
        "zipf, own text of 1,000 tokens": Work(zipf, own=1_000),
        "topics, own text of 2,000 tokens": Work(topics, own=2_000),
        "zipf, results of 500 tokens": Work(zipf, document=500),
    }.items()
}
MOST_SLOWER = 1.02


def table(cases: Mapping[str, tuple[Work, SimConfig]], ways: Sequence[str]) -> dict[str, dict[str, Numbers]]:
    found: dict[str, dict[str, Numbers]] = {}
    for case, (work, config) in cases.items():
        for way in ways:
            numbers = measure(WAYS[way], work, config)
            found.setdefault(case, {})[way] = numbers
            cells = f"{numbers['wall_s']:>8.2f} s{numbers['first_result_s']:>8.2f} s"
            print(f"{case:>65} {way:>20}{cells}{numbers['computed_tokens']:>12,}", flush=True)
    return found


def targets(shared: Mapping[str, Any], nothing: Mapping[str, Any]) -> list[Numbers]:
    """Seconds of `first`, and how many times as long `auto` takes as `inline` where nothing is shared."""
    found = [(f"{case}: first, wall", limit, shared[case]["first"]["wall_s"]) for case, limit in TARGETS.items()]
    for case, ways in nothing.items():
        reached = round(ways["auto"]["wall_s"] / ways["inline"]["wall_s"], 3)
        found.append((f"{case}: auto / inline, wall", MOST_SLOWER, reached))
    return [
        {"what": what, "least": None, "most": most, "found": reached, "is_met": reached <= most}
        for what, most, reached in found
    ]


def ratios(shared: Mapping[str, Any]) -> dict[str, Numbers]:
    """How many times as long the loops take as `first`."""
    return {
        case: {
            way: round(ways[way]["wall_s"] / ways["first"]["wall_s"], 2) for way in ("gather_inline", "gather_first")
        }
        for case, ways in shared.items()
    }


def main(*, quick: bool) -> None:
    print(f"{'case':>65} {'way':>20}{'wall':>10}{'first':>10}{'computed':>12}")
    shared = table(SHARED, list(WAYS))
    nothing = table(NOTHING_SHARED, ("inline", "auto"))
    partly = {} if quick else table(PARTLY_SHARED, ("inline", "first", "auto"))
    found = targets(shared, nothing)
    for each in found:
        verdict = "pass" if each["is_met"] else "FAIL"
        print(f"{each['what']:>86} <= {each['most']:<6}{each['found']:>7}  {verdict}")
    if not quick:
        numbers = {
            "engine": asdict(H200),
            "work": {**asdict(Work(topics)), "reads": "topics or zipf", "turns": READS + 1, "documents": DOCUMENTS},
            "shared": shared,
            "times_as_long_as_first": ratios(shared),
            "nothing_shared": nothing,
            "partly_shared": partly,
            "targets": found,
        }
        print(report.write("shared_results", numbers))


def _sized(opening: str, tokens: int) -> str:
    length = max(len(opening), tokens * TOKEN_BYTES)
    return (opening + PROSE * (length // len(PROSE) + 1))[:length]


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
