"""Belady's optimum for a host tier behind a device whose hits are known.

Evicting the block whose next *needed* use is farthest, where a use counts only if the device lacks the block then,
serves the most blocks of any policy that stores blocks when they are used. That a block serves only together with those
before it costs nothing: whenever a block is needed, so are all blocks before it that the device lacks, hence these are
needed no later; with ties broken from the tail, a block that stays never misses one before it. So the bound of the
unconstrained problem is reached."""

import heapq
from collections.abc import Sequence

from benchmarks.kv_policy.trace import Request

NEVER = 1 << 60


def optimal_hits(trace: Sequence[Request], on_device: Sequence[int], capacity: int) -> int:
    """Blocks that a tier of `capacity` blocks serves with foreknowledge."""
    upcoming = _next_needs(trace, on_device)
    needed: dict[int, int] = {}
    heap: list[tuple[int, int, int]] = []
    served = 0
    for index, request in enumerate(trace):
        for block in request.blocks[on_device[index] :]:
            if block not in needed:
                break
            served += 1
        for depth, block in enumerate(request.blocks):
            need = upcoming[index][depth]
            if need == NEVER:
                needed.pop(block, None)
            elif needed.get(block) != need:
                needed[block] = need
                heapq.heappush(heap, (-need, -depth, block))
        while len(needed) > capacity:
            need, _, block = heapq.heappop(heap)
            if needed.get(block) == -need:
                del needed[block]
    return served


def _next_needs(trace: Sequence[Request], on_device: Sequence[int]) -> list[list[int]]:
    """For each request and each of its blocks, the index of the next request that needs the block from the tier."""
    needs: list[list[int]] = [[] for _ in trace]
    next_need: dict[int, int] = {}
    for index in range(len(trace) - 1, -1, -1):
        blocks = trace[index].blocks
        needs[index] = [next_need.get(block, NEVER) for block in blocks]
        for block in blocks[on_device[index] :]:
            next_need[block] = index
    return needs
