"""Views of runs that never were: large, small, in stages, under way, hostile. The page cannot tell them from real
ones."""

import json
import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from tests.browser.agent_attempts import Clock, Life, activity, cut_off, lives_of, timeline

Model = dict[str, Any]
BEGAN = 1_794_769_689.577
HOSTILE = "<img src=x onerror=\"document.title='broken'\"></script><script>document.title='broken'</script>&lt;b&gt;"
_KINDS = ["bad_request", "tool_loop", "schema", "context_overflow"]


@cache
def plain(
    agents: int = 300, *, seed: int = 1, slots: int = 32, scale: float = 1.0, turns: int = 3, failing: float = 0.02
) -> Model:
    """A finished run. Who asks for the same is given the same: nobody changes it."""
    chance = random.Random(seed)
    lives = Clock(chance, [chance.randint(0, 40) for _ in range(slots)], scale).lives(0, agents, turns, failing)
    return _model("results.jsonl.checkpoint", [_stage("", lives, chance)], lives, chance)


def flow(agents: int = 120, *, seed: int = 2) -> Model:
    """Three stages, of which the last is not begun by all."""
    chance = random.Random(seed)
    clock = Clock(chance, [chance.randint(0, 40) for _ in range(24)], 1.0)
    stages, lives = [], []
    for stage, (name, count, turns) in enumerate(
        [("read", agents, 3), ("judge", agents, 2), ("merge", agents // 8, 1)]
    ):
        own = clock.lives(stage, count, turns, 0.01)
        stages.append({**_stage(name, own, chance), "model": f"model-{stage % 2 + 1}"})
        lives += own
    return _model("papers.checkpoint", stages, lives, chance) | {"processes": [0, 11.5]}


def evaluated() -> Model:
    """Three samples of each input, with scores, compared with another model."""
    model = plain(30, seed=9)
    lives = model["timeline"]
    count = len(lives["index"])
    order = {index: at for at, index in enumerate(sorted(lives["index"]))}
    sampled = lives | {
        "index": [order[index] // 3 for index in lives["index"]],
        "sample": [order[index] % 3 for index in lives["index"]],
    }
    assert len(order) == count
    metric = {
        "model": "small", "name": "exact", "mean": 0.8, "low": 0.4901, "high": 0.9433, "inputs": 10, "scored": 10,
        "unscored": 0, "method": "wilson",
    }  # fmt: skip
    totals = {"answers": 10, "failed": 0, "tokens_in": 100, "tokens_out": 10, "cost": None, "seconds": 1.5}
    difference = {
        "name": "exact", "before": 0.8, "after": 0.9, "difference": 0.1, "low": -0.1, "high": 0.3, "p_value": 1.0,
        "test": "mcnemar", "inputs": 10, "won": 1, "lost": 0,
    }  # fmt: skip
    changed = {
        "index": 3,
        "key": "r3",
        "before": ["yes"],
        "after": ["<b>no</b>", "maybe"],
        "scores": {"exact": [1, None]},
    }
    comparison = {
        "before": totals | {"name": "small"}, "after": totals | {"name": "large", "cost": 0.5}, "shared": 10,
        "only_before": 0, "only_after": 0, "agreement": 0.5, "agreement_low": None, "agreement_high": None,
        "scores": [difference], "changed": [changed], "changed_inputs": 7,
    }  # fmt: skip
    unknown = metric | {"model": "large", "mean": None, "low": None, "high": None, "method": "t"}
    scores = {
        "exact": [order[index] % 2 for index in lives["index"]],
        "<i>judge</i>": [None, 0.25, *[0.5] * (count - 2)],
    }
    return model | {
        "timeline": sampled,
        "results": model["results"] | {"scores": scores},
        "evaluation": {"metrics": [metric, unknown], "comparisons": [comparison]},
    }


def cut(model: Model, seconds: float) -> Model:
    """The run as it was at that time, under way."""
    lives = [cut_off(life, round(seconds * 100)) for life in lives_of(model["timeline"]) if life.start < seconds * 100]
    stages = []
    for number, stage in enumerate(model["stages"]):
        own = [life for life in lives if life.stage == number]
        fresh = _stage(stage["name"], own, random.Random(3)) | {"total": stage["total"], "model": stage["model"]}
        doing = [life.segments[-1][0] if life.segments else 0 for life in own if life.ok == 2]
        fresh["states"] = {name: doing.count(kind) for kind, name in enumerate(("waiting", "generating", "tools"))}
        stages.append(fresh)
    fresh_model = _model(model["title"], stages, lives, random.Random(4))
    left = sum(stage["total"] or 0 for stage in stages) - sum(life.ok != 2 for life in lives)
    rate = sum(life.ok != 2 for life in lives) / seconds
    return fresh_model | {
        "state": "running",
        "seconds": seconds,
        "throughput": {"per_second": rate, "eta": left / rate if rate else None},
    }


def hostile() -> Model:
    """Every text in it tries to be markup."""

    def spoil(value: Any) -> Any:
        match value:
            case dict():
                return {key: spoil(each) if key not in ("segments", "state") else each for key, each in value.items()}
            case list():
                return [spoil(each) for each in value]
            case str():
                return HOSTILE
        return value

    spoiled: Model = spoil(flow(40))
    return spoiled


def bare() -> Model:
    """Nothing is known but that there was a run."""
    return {"format": 1, "title": "empty", "state": "ended early", "stages": []}


def nulls(model: Model) -> Model:
    """The same with null for every number and text outside the timeline."""

    def empty(value: Any) -> Any:
        match value:
            case dict():
                return {key: empty(each) for key, each in value.items()}
            case list():
                return [empty(each) for each in value]
        return None

    return {key: value if key in ("timeline", "format") else empty(value) for key, value in model.items()}


def _model(title: str, stages: list[Model], lives: list[Life], chance: random.Random) -> Model:
    lives.sort(key=lambda life: life.start)
    seconds = max((life.end for life in lives), default=0) / 100
    active = activity(lives, seconds)
    generating = _lengths(lives, 1)
    in_tools = _lengths(lives, 2)
    used = [stage["usage"] for stage in stages]
    requested = len(in_tools)
    tools = _tools(requested, sum(in_tools)) if requested else []
    return {
        "format": 1,
        "title": title,
        "state": "finished",
        "began": BEGAN,
        "seconds": seconds,
        "processes": [0],
        "now": BEGAN + seconds,
        "version": "1.0.0",
        "stages": stages,
        "throughput": {"per_second": len(lives) / seconds if seconds else None, "eta": None},
        "series": _series(active, chance),
        "activity": active,
        "timeline": timeline(lives),
        "results": _results(lives),
        "distributions": {
            "ttft": _distribution([0.2 * length for length in generating]),
            "turn": _distribution(generating),
            "agent": _distribution([(life.end - life.start) / 100 for life in lives]),
            "queued": _distribution([chance.lognormvariate(-2, 1) for _ in generating]),
            "tool": _distribution(in_tools),
        },
        "tools": tools,
        "limits": [
            {"at": at, "inflight": 2**power, "reason": "the server has room"}
            for at, power in ((0.4, 4), (1.9, 5), (4.2, 6))
        ],
        "pauses": [{"at": seconds * 0.4, "seconds": seconds * 0.03, "reason": "rate limited"}],
        "scheduling": {
            "kv_tokens": 120_000,
            "kv_limit": 108_000,
            "max_residents": 61,
            "evictions": 4,
            "overcommitted": 0,
            "cache_misses": 2,
            "pace": "Paced at 500 requests/min (the service's limit): 1,234 requests waited for it.",
        },
        "savings": _savings(used, tools),
    }


def _results(lives: Sequence[Life]) -> Model:
    """Every seventh answer is cut off; who is under way has nothing yet."""
    errors = [[kind, f"The server said 400: no room, {kind}"] for kind in _KINDS]
    rows = []
    for life in lives:
        turns = sum(segment[0] == 1 for segment in life.segments)
        is_cut = life.ok == 1 and life.index % 7 == 3
        cost = (322 * 0.5 + 1101 * 0.05 + 187 * 1.5) * turns / 1e6
        done = (turns, 1423 * turns, 1101 * turns, 187 * turns, cost, (life.end - life.start) / 100)
        finish = 0 if life.ok != 1 else 2 if is_cut else 1
        error = life.index % len(errors) if life.ok == 0 else -1
        answer = f'{{"city": "Lyon", "number": {life.index}}}' if life.ok == 1 else ""
        rows.append(
            (finish, error, *((0,) * 6 if life.ok == 2 else done), f"note: Letter {life.index} of many", answer)
        )
    names = ("finish", "error", "turns", "tokens_in", "cached", "tokens_out", "cost", "seconds", "input", "answer")
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    return {"finishes": [None, "stop", "length"], "errors": errors, **columns}


def _description(name: str) -> Model:
    return {
        "task": f"Read {{note}}{' in ' + name if name else ''} and name the city.",
        "system_prompt": "You are a geographer.\n\nAnswer in one sentence.",
        "tools": [
            {"name": "look_up", "description": "Look a key up.", "parameters": {"type": "object", "properties": {}}},
            {"name": "read_page", "description": "Read a page.", "parameters": {"type": "object"}},
        ],
        "output_schema": {"type": "object", "properties": {"city": {"type": "string"}}} if name else None,
        "options": {"backend": "vllm://localhost:8000", "max_turns": 6, "extra": {"api_key": "***"}},
    }


def _savings(used: list[Model], tools: list[Model]) -> list[Model]:
    tokens, calls = sum(use["input"] for use in used), sum(tool["requested"] for tool in tools)
    return [
        {
            "name": "prompt tokens not computed",
            "saved": sum(use["cached"] for use in used),
            "unit": "tokens",
            "without": tokens,
            "formula": "The cached prompt tokens of all turns. Without the cache each prompt is computed in full.",
            "basis": "as the server counted",
        },
        {
            "name": "tool executions avoided",
            "saved": sum(tool["shared"] + tool["cached"] for tool in tools),
            "unit": "executions",
            "without": calls,
            "formula": "Calls that got the result of another. Without sharing each agent runs its own.",
            "basis": "as the run counted",
        },
        {
            "name": "retries avoided",
            "saved": None,
            "unit": "tokens",
            "without": None,
            "formula": "The tokens of all turns before one that was sent again.",
            "basis": "The server did not say how many tokens it used.",
        },
    ]


def _stage(name: str, lives: Sequence[Life], chance: random.Random) -> Model:
    failed = [life for life in lives if life.ok == 0]
    turns = sum(1 for life in lives for segment in life.segments if segment[0] == 1)
    done = sorted((life for life in lives if life.ok != 2), key=lambda life: -life.end)
    slowest = sorted(lives, key=lambda life: life.start - life.end)[:10]
    return {
        "name": name,
        "model": "sim-7b",
        "backend": "vllm",
        "seen": ["vllm batch-agent-sim"],
        "description": _description(name),
        "prices": [0.5, 0.05, 1.5],
        "total": len(lives),
        "started": len(lives),
        "answered": sum(life.ok == 1 for life in lives),
        "failed": len(failed),
        "resumed": 0,
        "states": {"waiting": 0, "generating": 0, "tools": 0},
        "turns": turns,
        "retries": turns // 15,
        "compactions": turns // 200,
        "usage": {"input": turns * 1423, "cached": turns * 1101, "output": turns * 187},
        "cost": turns * 0.000231,
        "prefix": {
            "shared_tokens": 1102,
            "prompt_tokens": 1423,
            "predicted": 0.774,
            "measured": 0.768,
            "diverges_at": "…and answer in one sentence.\n\nNote 1. word word",
            "findings": ["The date in the system prompt changes each day: put it behind what all share."],
        },
        "failures": [
            {
                "kind": kind,
                "count": len(own),
                "examples": [
                    {
                        "index": life.index,
                        "key": f"{life.index:08x}",
                        "message": f"The server said 400: no room for agent {life.index}",
                    }
                    for life in own[:3]
                ],
            }
            for number, kind in enumerate(_KINDS)
            if (own := failed[number :: len(_KINDS)])
        ],
        "latest": [
            {
                "index": life.index,
                "ok": life.ok == 1,
                "text": f'{{"city": "Lyon", "bridges": {chance.randint(1, 20)}, "sure": true}}',
                "seconds": (life.end - life.start) / 100,
                "at": life.end / 100,
            }
            for life in done[:8]
        ],
        "slowest": [
            {
                "index": life.index,
                "key": f"{life.index:08x}",
                "seconds": (life.end - life.start) / 100,
                "turns": len(life.segments),
            }
            for life in slowest
        ],
    }


def _tools(requested: int, seconds: float) -> list[Model]:
    shares = (("look_up", 0.6), ("read_page", 0.3), ("ask_the_archive_of_everything", 0.1))
    rows = []
    for name, share in shares:
        calls = max(1, round(requested * share))
        executed = max(1, round(calls * 0.2))
        shared = (calls - executed) // 3
        counts = {"requested": calls, "executed": executed, "shared": shared, "cached": calls - executed - shared}
        times = {"seconds": seconds * share * 0.2, "seconds_saved": seconds * share * 0.8, "p50": 0.41, "p99": 2.7}
        rows.append({"name": name, **counts, "failed": calls // 100, **times})
    return rows


def _series(activity: Model, chance: random.Random) -> Model:
    inflight = activity["generating"]
    limits = [16 if point < 20 else 32 if point < 60 else 64 for point in range(len(inflight))]
    return {
        "at": activity["at"],
        "inflight": inflight,
        "limit": limits,
        "waiting": activity["waiting"],
        "residents": [busy + tools for busy, tools in zip(inflight, activity["tools"], strict=True)],
        "kv_held": [1500 * busy + chance.randint(0, 3000) for busy in inflight],
        "kv_limit": [108_000] * len(inflight),
        "kv_usage": [None if point % 50 == 7 else min(1.0, busy / 60) for point, busy in enumerate(inflight)],
        "server_running": inflight,
        "server_waiting": [0] * len(inflight),
    }


def _distribution(values: Sequence[float]) -> Model | None:
    known = sorted(value for value in values if value > 0)
    if not known:
        return None
    low, high = known[0], max(known[-1], known[0] * 1.01)
    edges = [low * (high / low) ** (step / 24) for step in range(25)]
    counts = [0] * 24
    for value in known:
        counts[min(23, max(0, bisect_right(edges, value) - 1))] += 1
    rank = {share: known[min(len(known) - 1, int(len(known) * share / 100))] for share in (50, 90, 99)}
    return {
        "count": len(known),
        "p50": rank[50],
        "p90": rank[90],
        "p99": rank[99],
        "max": known[-1],
        "edges": edges,
        "counts": counts,
    }


def _lengths(lives: Iterable[Life], wanted: int) -> list[float]:
    return [(end - start) / 100 for life in lives for kind, start, end in life.segments if kind == wanted]


def broken(model: Model, chance: random.Random) -> Model:
    """The same with one thing in it, anywhere, that should not be there."""
    copy: Any = json.loads(json.dumps(model))
    at: Any = copy
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = chance.choice(keys)
        if not isinstance(at[key], dict | list) or not at[key] or chance.random() < 0.2:
            at[key] = chance.choice([None, "text", -1, 1e300, [], {}, True, [None], {"at": "x"}])
            return dict(copy)
        at = at[key]
