"""A device with an LRU prefix cache, and the host tiers that may stand behind it."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from batch_agent_vllm.hints import Hints
from batch_agent_vllm.next_use_policy import NextUsePolicy
from benchmarks.kv_policy.trace import BLOCK_TOKENS, Request

HintsOf = Callable[[Request], Hints]


class Tier(Protocol):
    """Host tier as vLLM's offloading manager drives its cache policy; transfers take no time."""

    def load(self, request: Request, missing: Sequence[int]) -> int:
        """How many of the blocks that the device lacks the tier has, from the first on."""
        ...

    def store(self, request: Request, offered: Sequence[int]) -> None: ...

    def finish(self, request: Request, seen: Sequence[int]) -> None: ...


def device_hits(trace: Sequence[Request], capacity: int) -> list[int]:
    """Blocks of each request that an LRU device of `capacity` blocks still has when it starts.

    What a tier behind it holds changes nothing here: loaded or computed, a request's blocks are on the device
    afterwards. Blocks of running requests stay; ended ones leave tail first, as vLLM frees them."""
    held: OrderedDict[int, None] = OrderedDict()
    in_use: dict[int, int] = {}
    hits = []
    for is_start, request in events(trace):
        if not is_start:
            for block in reversed(request.blocks):
                in_use[block] -= 1
                if not in_use[block]:
                    del in_use[block]
                    held[block] = None
            continue
        found = 0
        while found < len(request.blocks) and (request.blocks[found] in held or request.blocks[found] in in_use):
            found += 1
        hits.append(found)
        for block in request.blocks:
            held.pop(block, None)
            in_use[block] = in_use.get(block, 0) + 1
        while held and len(held) + len(in_use) > capacity:
            held.popitem(last=False)
    return hits


def events(trace: Sequence[Request]) -> Iterator[tuple[bool, Request]]:
    """Starts and ends in the order of time."""
    running: list[tuple[float, int]] = []
    for index, request in enumerate(trace):
        while running and running[0][0] <= request.start:
            yield False, trace[heapq.heappop(running)[1]]
        yield True, request
        heapq.heappush(running, (request.end, index))
    while running:
        yield False, trace[heapq.heappop(running)[1]]


def host_hits(trace: Sequence[Request], on_device: Sequence[int], tier: Tier) -> int:
    """Blocks that the tier served."""
    served = 0
    positions = iter(on_device)
    seen: dict[str, Sequence[int]] = {}
    for is_start, request in events(trace):
        if not is_start:
            tier.finish(request, seen.pop(request.name))
            continue
        local = next(positions)
        loaded = tier.load(request, request.blocks[local:])
        served += loaded
        # vLLM offers the blocks that the device had only if it loaded none.
        offered = request.blocks[local + loaded :] if loaded else request.blocks
        tier.store(request, offered)
        seen[request.name] = request.blocks[local:] if loaded else request.blocks
    return served


class Lru:
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def load(self, request: Request, missing: Sequence[int]) -> int:
        return _leading(missing, self._blocks.__contains__)

    def store(self, request: Request, offered: Sequence[int]) -> None:
        for block in offered:
            if block not in self._blocks:
                self._blocks[block] = None
        kept = set(offered)
        others = (block for block in self._blocks if block not in kept)
        for block in list(islice(others, max(0, len(self._blocks) - self._capacity))):
            del self._blocks[block]

    def finish(self, request: Request, seen: Sequence[int]) -> None:
        for block in reversed(seen):
            if block in self._blocks:
                self._blocks.move_to_end(block)


class Arc:
    """Adaptive replacement as in vLLM's ARCCachePolicy: a reuse, once per request, moves a block to the second list."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._target = 0.0
        self._once: OrderedDict[int, None] = OrderedDict()
        self._often: OrderedDict[int, None] = OrderedDict()
        self._once_ghosts: OrderedDict[int, None] = OrderedDict()
        self._often_ghosts: OrderedDict[int, None] = OrderedDict()
        self._inserted: dict[str, set[int]] = {}

    def load(self, request: Request, missing: Sequence[int]) -> int:
        return _leading(missing, lambda block: block in self._once or block in self._often)

    def store(self, request: Request, offered: Sequence[int]) -> None:
        new = [block for block in offered if block not in self._once and block not in self._often]
        self._inserted[request.name] = set(new)
        for block in reversed(new):
            self._adapt(block)
        excess = len(self._once) + len(self._often) + len(new) - self._capacity
        if excess > 0:
            self._evict(excess, set(offered))
        for block in new:
            self._once[block] = None
            self._once_ghosts.pop(block, None)
            self._often_ghosts.pop(block, None)

    def finish(self, request: Request, seen: Sequence[int]) -> None:
        inserted = self._inserted.pop(request.name)
        for block in reversed(seen):
            if block in self._often:
                self._often.move_to_end(block)
            elif block in self._once and block in inserted:
                self._once.move_to_end(block)
            elif block in self._once:
                del self._once[block]
                self._often[block] = None

    def _adapt(self, block: int) -> None:
        once, often = self._once_ghosts, self._often_ghosts
        if block in once:
            self._target = min(self._target + max(1, len(often) / len(once)), self._capacity)
            once.move_to_end(block)
        elif block in often:
            self._target = max(self._target - max(1, len(once) / len(often)), 0)
            often.move_to_end(block)

    def _evict(self, count: int, kept: set[int]) -> None:
        once = iter(list(islice((block for block in self._once if block not in kept), count)))
        often = iter(list(islice((block for block in self._often if block not in kept), count)))
        for _ in range(count):
            order = (once, often) if len(self._once) >= int(self._target) else (often, once)
            block = next(order[0], None) or next(order[1], None)
            if block is None:
                return
            if block in self._once:
                del self._once[block]
                self._once_ghosts[block] = None
            else:
                del self._often[block]
                self._often_ghosts[block] = None
        for ghosts in (self._once_ghosts, self._often_ghosts):
            while len(ghosts) > self._capacity:
                ghosts.popitem(last=False)


class NextUse:
    """Our policy as `batch_agent_vllm.offloading` drives it."""

    def __init__(self, capacity: int, hints_of: HintsOf) -> None:
        self.policy: NextUsePolicy[int] = NextUsePolicy()
        self._capacity = capacity
        self._hints_of = hints_of

    def load(self, request: Request, missing: Sequence[int]) -> int:
        hints = self._hints_of(request)
        self.policy.arrive(request.name, hints, request.start)
        if missing:
            self.policy.miss_on_device(request.name, hints, missing[0], request.start)
        return _leading(missing, self.policy.__contains__)

    def store(self, request: Request, offered: Sequence[int]) -> None:
        policy, hints = self.policy, self._hints_of(request)
        policy.run(request.name, hints, request.start)
        new = [block for block in offered if block not in policy]
        excess = len(policy) + len(new) - self._capacity
        if excess > 0 and policy.evict(excess, set(offered), request.start) is None:
            return
        for block in new:
            policy.add(block)
        self._touch(request, hints, offered, request.start)
        for block in new:
            policy.unpin(block)

    def finish(self, request: Request, seen: Sequence[int]) -> None:
        hints = self._hints_of(request)
        self._touch(request, hints, seen, request.end)
        self.policy.finish(request.name, hints, request.end)

    def _touch(self, request: Request, hints: Hints, blocks: Sequence[int], now: float) -> None:
        first = len(request.blocks) - len(blocks) + 1  # offered blocks are a tail of the request's
        positions = range(BLOCK_TOKENS * first, BLOCK_TOKENS * (first + len(blocks)), BLOCK_TOKENS)
        self.policy.touch(request.name, hints, zip(blocks, positions, strict=True), now)


def _leading(blocks: Sequence[int], is_held: Callable[[int], bool]) -> int:
    found = 0
    while found < len(blocks) and is_held(blocks[found]):
        found += 1
    return found
