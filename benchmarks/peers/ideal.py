"""Wall time of an ideal client, the lower bound: it costs nothing, keeps no slot idle, makes each call once.

Not for servers without latency, where an ideal client would take as long as the server's own CPU does.
"""

import heapq

from benchmarks.peers.participants import ENDPOINTS, FAULTS
from benchmarks.peers.workloads import RETRY_AFTER_S, Workload
from benchmarks.pools import Case
from benchmarks.pools import Work as Prompts


def ideal_s(workload: Workload) -> float | None:
    """None where the server has no latency."""
    if workload.kind == ENDPOINTS:
        tokens = workload.answer_tokens
        return Case(Prompts(workload.agents, (tokens, tokens)), (workload.server,) * workload.endpoints).engines_s()
    if not workload.model_s:
        return None
    if workload.kind == FAULTS:
        # Who is refused at the start comes back when it may; meanwhile others have the slots, and a refusal is quick.
        return max(_best(workload), RETRY_AFTER_S + workload.model_s)
    return _best(workload)


def _best(workload: Workload) -> float:
    """The better of two orders: agents that come back first, or last."""
    if workload.tool_s is None:
        return -(-workload.agents // workload.inflight) * workload.model_s
    return min(schedule_s(workload, returning_first=first) for first in (False, True))


def schedule_s(workload: Workload, *, returning_first: bool) -> float:
    """When the last of two turns ends, if every slot that is free takes the next turn that is ready. Of each key, the
    first call runs the tool, from when it is made; the others have its result with it, or at once."""
    model_s, tool_s = workload.model_s, workload.tool_s or 0.0
    done_at: dict[int, float] = {}
    slots = [0.0] * workload.inflight
    fresh = list(range(workload.agents - 1, -1, -1))
    returning: list[tuple[float, int]] = []
    end = 0.0
    while fresh or returning:
        now = heapq.heappop(slots)
        is_back = bool(returning) and returning[0][0] <= now
        if fresh and not (returning_first and is_back):
            agent = fresh.pop()
            end = now + model_s
            ready = done_at.setdefault(agent % workload.keys, end + tool_s)
            heapq.heappush(returning, (max(end, ready), agent))
        else:
            ready, _ = heapq.heappop(returning)
            end = max(now, ready) + model_s
        heapq.heappush(slots, end)
    return max(slots)
