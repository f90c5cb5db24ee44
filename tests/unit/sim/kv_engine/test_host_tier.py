"""The host tier of the simulated KV cache."""

from hypothesis import given
from hypothesis import strategies as st

from batch_agent.sim import SimConfig
from batch_agent.sim.kv_engine.host_tier import HostTier
from batch_agent.sim.kv_engine.sequence import Sequence
from batch_agent.sim.kv_engine.sim_engine import SimEngine

SIZE = 16
CONFIG = SimConfig(num_blocks=10, block_size=SIZE, max_model_len=160, host_blocks=40, prefill_us_per_token=100)


def ask(engine: SimEngine, content: int, now: float, blocks: int = 8) -> tuple[int, float]:
    """Tokens found, and when the answer is there, for a prompt of its own content on an idle engine."""
    engine.advance(now)
    sequence = Sequence(blocks * SIZE + 1, 1, [content * 1000 + block for block in range(blocks)])
    engine.add(sequence, now)
    while (at := engine.wake_at) is not None or not sequence.finished:
        engine.advance(now if at is None else at)
        now = now if at is None else at
    return sequence.cached, now


def test_a_context_that_the_device_evicted_is_found_in_the_host_tier() -> None:
    engine = SimEngine(CONFIG)
    at = 0.0
    for content in (1, 2, 3):
        cached, at = ask(engine, content, at)
        assert cached == 0
    assert ask(engine, 1, at)[0] == 8 * SIZE
    assert engine.host is not None
    assert engine.host.loaded_blocks == 8


def test_without_the_tier_it_is_lost() -> None:
    engine = SimEngine(SimConfig(num_blocks=10, block_size=SIZE, max_model_len=160, prefill_us_per_token=100))
    at = 0.0
    for content in (1, 2, 3):
        _, at = ask(engine, content, at)
    assert ask(engine, 1, at)[0] == 0


def test_what_was_used_least_recently_is_evicted_from_the_host_tier_too() -> None:
    engine = SimEngine(CONFIG)
    at = 0.0
    for content in (1, 2, 3, 4, 5, 1, 6):  # the tier holds five contexts
        _, at = ask(engine, content, at)
    assert ask(engine, 1, at)[0] == 8 * SIZE
    assert ask(engine, 2, at)[0] == 0


def test_copies_delay_the_engine() -> None:
    def seconds(us: float) -> float:
        engine = SimEngine(
            SimConfig(num_blocks=10, block_size=SIZE, max_model_len=160, host_blocks=40, host_us_per_token=us)
        )
        return ask(engine, 1, 0.0)[1]

    assert seconds(1000.0) - seconds(0.0) == 0.128  # 8 blocks of 16 tokens are stored


@given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=8, unique=True), max_size=30), st.integers(1, 20))
def test_the_tier_never_holds_more_than_it_can(stores: list[list[int]], blocks: int) -> None:
    tier = HostTier(blocks)
    for hashes in stores:
        tier.store(hashes)
        assert sum(tier.match([key], 0) for key in range(61)) <= blocks
        newest = hashes[: min(blocks, len(hashes))]
        assert tier.match(newest, 0) == len(newest)
