"""The exclusive host tier of the simulated KV cache."""

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.sim import SimConfig
from batch_agent.sim.kv_engine.host_tier import ExclusiveTier
from batch_agent.sim.kv_engine.sequence import Sequence
from batch_agent.sim.kv_engine.sim_engine import SimEngine

SIZE = 16
CONFIG = SimConfig(
    num_blocks=10, block_size=SIZE, max_model_len=160, host_blocks=16, host_exclusive=True, prefill_us_per_token=100
)


def ask(engine: SimEngine, agent: str, now: float, *, is_last: bool = False) -> tuple[int, float]:
    """Tokens that the agent found, and when its answer is there, on an idle engine."""
    engine.advance(now)
    hashes = [hash((agent, block)) for block in range(8)]
    sequence = Sequence(8 * SIZE + 1, 1, hashes, agent=agent, is_last=is_last)
    engine.add(sequence, now)
    while (at := engine.wake_at) is not None or not sequence.finished:
        engine.advance(now if at is None else at)
        now = now if at is None else at
    return sequence.cached, now


def test_the_tier_keeps_as_many_contexts_as_fit_and_never_those_that_run() -> None:
    engine, at = SimEngine(CONFIG), 0.0
    for agent in ("a", "b", "c", "d"):  # the tier holds two; the last one is still on the device
        _, at = ask(engine, agent, at)
    found = {}
    for agent in ("d", "a", "b", "c"):
        found[agent], at = ask(engine, agent, at)
    assert found == {"d": 128, "a": 128, "b": 128, "c": 0}


def test_a_context_that_ended_leaves_the_tier() -> None:
    engine, at = SimEngine(CONFIG), 0.0
    for agent in ("a", "b"):
        _, at = ask(engine, agent, at)
    _, at = ask(engine, "a", at, is_last=True)
    _, at = ask(engine, "c", at)
    _, at = ask(engine, "d", at)
    assert ask(engine, "c", at)[0] == 128


_HASHES = st.lists(st.integers(0, 30), max_size=8, unique=True)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcde"), _HASHES), max_size=40), st.integers(1, 20))
def test_the_tier_never_holds_more_than_it_can_and_forgets_nothing_that_waits(
    steps: list[tuple[bool, str, list[int]]], blocks: int
) -> None:
    tier = ExclusiveTier(blocks)
    waiting: dict[str, list[int]] = {}
    for begins, agent, hashes in steps:
        if begins:
            tier.begin(agent)
            waiting.pop(agent, None)
        else:
            stored = tier.stored_blocks
            tier.end(agent, hashes)
            waiting.pop(agent, None)
            if hashes and (tier.stored_blocks > stored or tier.match(hashes, 0) == len(hashes)):
                waiting[agent] = hashes
        assert sum(tier.match([key], 0) for key in range(31)) <= blocks
        assert all(tier.match(context, 0) == len(context) for context in waiting.values())
