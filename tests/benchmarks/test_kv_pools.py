"""The simulated agents on several endpoints."""

from benchmarks.kv_pools import CASES, PooledAgents
from benchmarks.kv_tiers import run_to_end


def test_all_agents_end_with_a_ledger_for_each_endpoint() -> None:
    case = CASES["all fit"]
    agents = run_to_end(lambda: PooledAgents(case, "each", 0))
    assert len(agents.ended_at) == case.agents
    assert 0 < agents.later_turns.cached < agents.later_turns.input
