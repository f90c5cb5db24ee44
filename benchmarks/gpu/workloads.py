"""The workloads. Each has its peer in the same run, on the same server; prompts of one run are new to the next."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ..layout import code_review, compare, reviews
from .results_file import Notes
from .runs import run_ours, run_plain
from .scenario import Scene, between
from .server_info import Server
from .token_texts import NONCE_TOKENS, Words, nonce

_RUN_LIMIT = 240.0
_CALL_TOKENS = 30
"""What a call takes in the conversation beside the words that go with it."""
_WARM_UP = 16


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of a workload is run: all of it, unless for a trial."""

    agents: float = 1.0
    tokens: float = 1.0
    seconds: float = 1.0

    def of_agents(self, count: int) -> int:
        return max(2, round(count * self.agents))

    def of_tokens(self, count: int) -> int:
        return max(8, round(count * self.tokens))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens, but for `agents` and `turns`."""

    agents: int
    turns: int
    shared: int
    own: int
    output: int
    result: int


@dataclass(frozen=True, slots=True)
class Crowd:
    """A workload of the inflight part: a tool that few keys are asked of, and the loop's hand-set number."""

    name: str
    agents: int
    keys: int
    tool_seconds: float
    plain_at_once: int


RESIDENT = Sizes(agents=128, turns=4, shared=2_000, own=6_000, output=150, result=150)
CROWDS = (Crowd("research_summary", 20, 9, 0.4, 8), Crowd("slow_tool", 100, 10, 0.8, 32))
PREFIX_AGENTS = (5, 10, 20, 50, 100)


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a workload is played: a server, a writer for its tokenizer, and somewhere to put the numbers."""

    server: Server
    words: Words
    notes: Notes
    scale: Scale
    ends_at: float = float("inf")
    """On the monotonic clock."""
    rounds: int = 1
    """Of parts that repeat their runs."""
    spare_until: float = float("inf")
    """When rounds after the first must have ended, so that the parts on later servers have their time."""
    arguments: tuple[str, ...] = ()
    """Of the server, where it was started for this."""

    @property
    def limit(self) -> float:
        """Seconds that the next run may take."""
        return min(_RUN_LIMIT, self.ends_at - time.monotonic())

    def left(self, *, is_extra: bool) -> float:
        """Seconds for a run of the first round, or of an extra one."""
        return min(self.ends_at, self.spare_until if is_extra else self.ends_at) - time.monotonic()

    async def warm_up(self) -> None:
        """The first requests of a server's life are slow."""
        scene = scene_of(self.words, Sizes(_WARM_UP, 1, 50, self.scale.of_tokens(3_000), 16, 0), "warm-up")
        await run_plain(self.server, scene, self.limit)


async def resident(stage: Stage, part: str = "resident") -> None:
    """Many agents, long prompts, and a KV cache that holds a quarter of them."""
    scale, about = stage.scale, await stage.server.about()
    sizes = Sizes(
        scale.of_agents(RESIDENT.agents),
        RESIDENT.turns,
        *(scale.of_tokens(each) for each in (RESIDENT.shared, RESIDENT.own, RESIDENT.output, RESIDENT.result)),
    )
    grown = sizes.own + (sizes.turns - 1) * (sizes.output + sizes.result) + sizes.output
    fit = (about["kv_tokens"] - sizes.shared) // grown if about["kv_tokens"] else None
    stage.notes.put({**about, "sizes": asdict(sizes), "agents_that_fit": fit}, part, "setup")
    seconds = between(1.0 * scale.seconds, 3.0 * scale.seconds)

    def scene() -> Scene:
        return scene_of(stage.words, sizes, part, seconds=seconds)

    ours = await run_ours(stage.server, scene(), stage.limit)
    stage.notes.put(ours, part, "batch_agent")
    peer = await run_plain(stage.server, scene(), stage.limit)
    stage.notes.put(peer, part, "dispatch_all")
    stage.notes.put(_times_as_long(ours, peer), part, "times_as_long_dispatch_all")


async def inflight(stage: Stage) -> None:
    """Tools that agents share, beside a loop that holds a hand-set number of slots for an agent's whole life."""
    scale = stage.scale
    stage.notes.put(await stage.server.about(), "inflight", "setup")
    for crowd in CROWDS:
        tokens = (scale.of_tokens(each) for each in (400, 200, 80, 100))
        sizes = Sizes(scale.of_agents(crowd.agents), 2, *tokens)

        def scene(sizes: Sizes = sizes, crowd: Crowd = crowd) -> Scene:
            return scene_of(
                stage.words,
                sizes,
                crowd.name,
                key=lambda agent, turn: f"key {agent % crowd.keys}",
                seconds=lambda key: crowd.tool_seconds * scale.seconds,
                shares_tools=True,
            )

        stage.notes.put({**asdict(crowd), **asdict(sizes)}, "inflight", crowd.name, "sizes")
        ours = await run_ours(stage.server, scene(), stage.limit)
        stage.notes.put(ours, "inflight", crowd.name, "batch_agent")
        peer = await run_plain(stage.server, scene(), stage.limit, at_once=crowd.plain_at_once)
        stage.notes.put(peer, "inflight", crowd.name, f"plain_{crowd.plain_at_once}")
        stage.notes.put(_times_as_long(ours, peer), "inflight", crowd.name, "times_as_long_plain")
        stage.notes.put(_same_tokens(ours, peer), "inflight", crowd.name, "same_tokens")


async def layout(stage: Stage) -> None:
    """Tables and a code review, as people write their prompts and as the engine lays them out."""
    stage.notes.put(await stage.server.about(), "layout", "setup")
    rows = stage.scale.of_agents(400)
    for work in (reviews(rows), code_review(rows)):
        stage.notes.put(await compare(work, stage.server.url, stage.server.model), "layout", work.name)


async def prefix(stage: Stage) -> None:
    """One turn each, with a long beginning that all share, and with one of their own that is as long."""
    scale = stage.scale
    shared, own = scale.of_tokens(2_048), scale.of_tokens(500)
    output = scale.of_tokens(16)  # a hundred agents without sharing just fit the cache
    setup = {**await stage.server.about(), "shared": shared, "own": own, "output": output}
    stage.notes.put(setup, "prefix", "setup")
    for count in PREFIX_AGENTS:
        agents = scale.of_agents(count)
        together = scene_of(stage.words, Sizes(agents, 1, shared, own, output, 0), "prefix")
        apart = scene_of(stage.words, Sizes(agents, 1, 0, shared + own, output, 0), "prefix")
        one = await run_ours(stage.server, together, stage.limit)
        other = await run_ours(stage.server, apart, stage.limit)
        named = {"shared": one, "not_shared": other, "times_as_long_not_shared": _times_as_long(one, other)}
        stage.notes.put(named, "prefix", f"agents_{count}")


def scene_of(
    words: Words,
    sizes: Sizes,
    seed: str,
    *,
    key: Callable[[int, int], str] | None = None,
    seconds: Callable[[str], float] = lambda key: 0.0,
    shares_tools: bool = False,
    text: Callable[[str], str] | None = None,
) -> Scene:
    """The same words each time, behind a beginning that nobody has seen: the counts are equal, the cache is cold."""
    start = nonce()
    return Scene(
        tasks=tuple(words.own(number, start, seed, sizes.own) for number in range(sizes.agents)),
        turns=sizes.turns,
        output=sizes.output,
        system=f"{start} {words.text(seed, sizes.shared - NONCE_TOKENS)}" if sizes.shared else None,
        said=words.text(f"{seed} said", sizes.output - _CALL_TOKENS) if sizes.turns > 1 else "",
        result=words.text(f"{seed} result", sizes.result) if sizes.turns > 1 else "",
        key=key or (lambda agent, turn: f"{agent:04}-{turn}"),
        seconds=seconds,
        shares_tools=shares_tools,
        text=text,
    )


def _times_as_long(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float | None]:
    """How many times longer the other took."""
    ratios = {name: _ratio(other[name], one[name]) for name in ("wall_s", "first_result_s")}
    for name in ("ttft_first_turn_s", "ttft_later_turns_s", "tool_done_to_first_token_s"):
        ratios[f"{name}_p50"] = _ratio((other[name] or {}).get("p50"), (one[name] or {}).get("p50"))
    return ratios


def _same_tokens(one: dict[str, Any], other: dict[str, Any]) -> dict[str, bool]:
    """By what the answers said, and by what the server counted, which has also what belongs to no agent's turn."""
    counted, also = one["server_counted"], other["server_counted"]
    return {
        "in_turns": all(one[each] == other[each] for each in ("prompt_tokens", "output_tokens")),
        "on_the_server": all(counted[each] == also[each] for each in ("prompt_tokens", "generation_tokens")),
    }


def _ratio(one: float | None, other: float | None) -> float | None:
    return round(one / other, 3) if one is not None and other else None
