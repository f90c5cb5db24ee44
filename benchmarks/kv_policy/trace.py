"""Requests as agents make them: contexts that grow by turns, tools in between, prefixes in common, one-shots."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from statistics import NormalDist

BLOCK_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Tool:
    """Durations are lognormal: `median_s`, and e**spread times as long one standard deviation further."""

    median_s: float
    spread: float
    share: float


TOOLS = (
    Tool(0.3, 0.6, 0.35),  # reads a file
    Tool(2.0, 0.8, 0.30),  # searches
    Tool(12.0, 0.7, 0.25),  # runs tests
    Tool(40.0, 0.4, 0.10),  # builds, or asks another model
)
SHORTEST_S, LONGEST_S = 0.1, 60.0
QUANTILE = 0.75
"""What the client predicts of a tool, like its keep-warm policy."""


@dataclass(frozen=True, slots=True)
class Load:
    sessions: int = 400
    sessions_per_s: float = 1.4
    turns: float = 8.0
    prefixes: int = 3
    prefix_tokens: int = 3_000
    first_tokens: tuple[int, int] = (2_000, 12_000)
    turn_tokens: tuple[int, int] = (300, 1_500)
    request_s: tuple[float, float] = (1.0, 6.0)
    one_shots: float = 0.25
    """Per session's request."""


@dataclass(frozen=True, slots=True)
class Request:
    name: str
    session: str
    start: float
    end: float
    blocks: tuple[int, ...]
    shared_tokens: int
    pause_s: float | None
    """Until the session's next request; None after the last one."""
    predicted_s: float | None
    """What a client that knows the tool, but not the call, says of it."""
    is_one_shot: bool = False

    @property
    def is_last(self) -> bool:
        return self.pause_s is None and not self.is_one_shot


def agent_trace(load: Load, seed: int) -> list[Request]:
    """In the order of their starts. Arrivals do not depend on the cache: each policy meets the same requests."""
    random = Random(seed)
    numbers = iter(range(1, 1 << 40))
    prefixes = [_blocks(numbers, load.prefix_tokens) for _ in range(load.prefixes)]
    requests: list[Request] = []
    now = 0.0
    for number in range(load.sessions):
        now += random.expovariate(load.sessions_per_s)
        requests += _session(f"s{number}", now, random.choice(prefixes), load, random, numbers)
    agents = len(requests)
    for number in range(int(agents * load.one_shots)):
        start = random.uniform(0.0, now)
        blocks = random.choice(prefixes) + _blocks(numbers, random.randint(*load.first_tokens))
        end = start + random.uniform(*load.request_s)
        name = f"once{number}"
        requests.append(Request(name, name, start, end, blocks, load.prefix_tokens, None, None, is_one_shot=True))
    return sorted(requests, key=lambda one: one.start)


def _session(
    session: str, start: float, prefix: tuple[int, ...], load: Load, random: Random, numbers: Iterator[int]
) -> list[Request]:
    blocks = prefix + _blocks(numbers, random.randint(*load.first_tokens))
    turns = 1 + int(random.expovariate(1 / (load.turns - 1)))
    requests = []
    for turn in range(turns):
        end = start + random.uniform(*load.request_s)
        tool = random.choices(TOOLS, [one.share for one in TOOLS])[0]
        pause_s = min(LONGEST_S, max(SHORTEST_S, random.lognormvariate(math.log(tool.median_s), tool.spread)))
        predicted_s = tool.median_s * math.exp(tool.spread * NormalDist().inv_cdf(QUANTILE))
        is_last = turn == turns - 1
        requests.append(
            Request(
                f"{session}.{turn}",
                session,
                start,
                end,
                blocks,
                load.prefix_tokens,
                None if is_last else pause_s,
                None if is_last else predicted_s,
            )
        )
        start = end + pause_s
        blocks += _blocks(numbers, random.randint(*load.turn_tokens))
    return requests


def _blocks(numbers: Iterator[int], tokens: int) -> tuple[int, ...]:
    return tuple(next(numbers) for _ in range(tokens // BLOCK_TOKENS))
