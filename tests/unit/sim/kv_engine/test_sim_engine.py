from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_agent.sim.kv_engine.blocks import BlockPool
from batch_agent.sim.kv_engine.sequence import Sequence, SequenceProgress
from batch_agent.sim.kv_engine.sim_engine import SimEngine
from batch_agent.sim.sim_config import SimConfig

SMALL = SimConfig(
    num_blocks=64,
    block_size=4,
    max_num_batched_tokens=64,
    max_num_seqs=8,
    step_base_ms=10,
    step_us_per_seq=1000,
    prefill_us_per_token=100,
    step_ns_per_kv_token=0,
)


def sequence(
    prompt: int, output: int, owner: int = 0, shared: int = 0, priority: int = 0, emit_every: int = 0
) -> Sequence:
    """A sequence whose first `shared` blocks are the same for every owner."""
    blocks = (prompt + output) // SMALL.block_size
    hashes = [index if index < shared else owner * 1000 + index + 1_000_000 for index in range(blocks)]
    return Sequence(prompt, output, hashes, priority, emit_every)


def run(engine: SimEngine, now: float = 0.0) -> list[tuple[float, SequenceProgress]]:
    """Everything that comes out until the engine is idle, with its time."""
    out = [(now, news) for news in engine.advance(now)]
    while (wake_at := engine.wake_at) is not None:
        out += [(wake_at, news) for news in engine.advance(wake_at)]
    return out


def leaving(pool: BlockPool, known: Iterable[int]) -> list[int | None]:
    """What the free blocks hold, of all `known` contents, in the order in which they go."""
    content = {block: key for key in known for block in pool.match([key])}
    return [content.get(block) for block in deepcopy(pool).take(pool.free)]


def ends(out: list[tuple[float, SequenceProgress]]) -> dict[Sequence, float]:
    return {news.sequence: at for at, news in out if news.finished}


def test_a_request_takes_a_prefill_step_and_a_step_per_further_token() -> None:
    engine = SimEngine(SMALL)
    one = sequence(prompt=21, output=5)
    engine.add(one, 0.0)
    end = ends(run(engine))[one]
    assert end == pytest.approx((0.010 + 0.001 + 20 * 0.0001) + 4 * 0.011)
    assert (one.generated, one.cached) == (5, 0)
    assert engine.pool.used == 0


def test_a_batch_costs_more_than_a_sequence_and_less_than_both_apart() -> None:
    engine = SimEngine(SMALL)
    both = [sequence(8, 10, owner) for owner in range(2)]
    for each in both:
        engine.add(each, 0.0)
    out = ends(run(engine))
    assert 10 * 0.011 < out[both[0]] < 20 * 0.011
    assert out[both[0]] == out[both[1]]


def test_a_long_prompt_is_computed_in_chunks_of_the_token_budget() -> None:
    engine = SimEngine(SMALL)
    one = sequence(prompt=150, output=1)
    engine.add(one, 0.0)
    engine.advance(0.0)
    seen = []
    while engine.wake_at is not None:
        engine.advance(engine.wake_at)
        seen.append(one.computed)
    assert seen == [64, 128, 150]


def test_a_cold_burst_with_one_prefix_computes_it_once() -> None:
    engine = SimEngine(replace(SMALL, num_blocks=256, max_num_batched_tokens=512))
    burst = [sequence(prompt=50, output=2, owner=owner, shared=10) for owner in range(8)]
    for each in burst:
        engine.add(each, 0.0)
    run(engine)
    assert [each.cached for each in burst] == [0] + [40] * 7
    assert engine.scheduler.query_tokens == 8 * 50
    assert engine.scheduler.hit_tokens == 7 * 40


def test_only_full_blocks_hit_and_the_last_prompt_token_is_always_computed() -> None:
    engine = SimEngine(SMALL)
    for prompt, cached in ((16, 12), (17, 16), (19, 16), (15, 12)):
        first, second = sequence(prompt, 1), sequence(prompt, 1)
        engine = SimEngine(SMALL)
        for each in (first, second):
            engine.add(each, 0.0)
            run(engine)
        assert second.cached == cached


def test_the_next_turn_hits_the_prompt_and_the_answer_of_the_turn_before() -> None:
    engine = SimEngine(SMALL)
    first = sequence(prompt=20, output=13)
    engine.add(first, 0.0)
    run(engine)
    second = sequence(prompt=40, output=4)
    engine.add(second, 1.0)
    run(engine, 1.0)
    assert second.cached == 32  # 33 tokens, of which the last generated one was never computed


def test_without_hashes_nothing_is_cached() -> None:
    engine = SimEngine(SMALL)
    for _ in range(2):
        engine.add(Sequence(20, 4), 0.0)
        run(engine)
    assert engine.scheduler.hit_tokens == 0
    assert engine.scheduler.query_tokens == 40


def test_more_sequences_than_the_batch_holds_wait_in_line() -> None:
    engine = SimEngine(replace(SMALL, max_num_seqs=2))
    three = [sequence(4, 4, owner) for owner in range(3)]
    for each in three:
        engine.add(each, 0.0)
    engine.advance(0.0)
    assert (len(engine.scheduler.running), engine.scheduler.waiting) == (2, 1)
    out = ends(run(engine))
    assert out[three[2]] > out[three[0]]


def test_a_prompt_that_does_not_fit_waits_until_blocks_are_free() -> None:
    engine = SimEngine(replace(SMALL, num_blocks=10, max_num_batched_tokens=256))
    first, second = sequence(30, 4, 1), sequence(30, 4, 2)
    engine.add(first, 0.0)
    engine.add(second, 0.0)
    engine.advance(0.0)
    assert engine.scheduler.waiting == 1
    out = ends(run(engine))
    assert out[second] > out[first]
    assert engine.scheduler.preemptions == 0


def test_only_the_first_chunk_must_fit_where_the_full_prompt_is_not_reserved() -> None:
    config = replace(SMALL, num_blocks=10, max_num_batched_tokens=38)
    waiting = []
    for reserves in (True, False):
        engine = SimEngine(replace(config, reserve_full_prompt=reserves))
        engine.add(sequence(30, 4, 1), 0.0)
        engine.add(sequence(30, 4, 2), 0.0)
        engine.advance(0.0)
        waiting.append(engine.scheduler.waiting)
    assert waiting == [1, 0]


def test_when_blocks_run_out_the_latest_sequence_starts_over_and_still_finishes() -> None:
    engine = SimEngine(replace(SMALL, num_blocks=10))
    first, second = sequence(16, 20, 1), sequence(16, 20, 2)
    engine.add(first, 0.0)
    engine.add(second, 0.0)
    out = ends(run(engine))
    assert engine.scheduler.preemptions >= 1
    assert (first.preemptions, second.generated) == (0, 20)
    assert out[first] < out[second]
    assert second.cached == 0, "what a preempted sequence finds again is not counted as cached prompt"


def test_the_lowest_value_goes_first_under_the_priority_policy_only() -> None:
    for policy, expected in (("priority", [2, 0, 1]), ("fcfs", [0, 1, 2])):
        engine = SimEngine(replace(SMALL, max_num_seqs=1, policy=policy))  # type: ignore[arg-type]
        three = [sequence(4, 4, owner, priority=priority) for owner, priority in enumerate((5, 5, -1))]
        for each in three:
            engine.add(each, 0.0)
        out = ends(run(engine))
        assert sorted(range(3), key=lambda index: out[three[index]]) == expected


def test_the_worst_priority_is_preempted_even_if_it_came_first() -> None:
    engine = SimEngine(replace(SMALL, num_blocks=10, policy="priority"))
    low, high = sequence(16, 20, 1, priority=9), sequence(16, 20, 2, priority=1)
    engine.add(low, 0.0)
    engine.add(high, 0.0)
    run(engine)
    assert low.preemptions > 0
    assert high.preemptions == 0


def test_an_aborted_sequence_frees_its_blocks_wherever_it_is() -> None:
    engine = SimEngine(replace(SMALL, max_num_seqs=1))
    running, waiting, last = (sequence(16, 20, owner) for owner in range(3))
    for each in (running, waiting, last):
        engine.add(each, 0.0)
    engine.advance(0.0)
    engine.abort(waiting, 0.005)
    engine.abort(running, 0.005)
    engine.abort(running, 0.005)
    out = run(engine, 0.005)
    assert list(ends(out)) == [last]
    assert engine.counters.aborted == 2
    assert engine.pool.used == 0


def test_steps_with_nothing_to_report_are_taken_in_one_stride() -> None:
    engine = SimEngine(SMALL)
    engine.add(sequence(8, 30), 0.0)
    wakes = 0
    engine.advance(0.0)
    while engine.wake_at is not None:
        engine.advance(engine.wake_at)
        wakes += 1
    assert wakes == 2  # the prefill, and all the rest


def test_an_arrival_joins_at_the_next_step_boundary() -> None:
    engine = SimEngine(SMALL)
    engine.add(sequence(8, 30), 0.0)
    engine.advance(0.0)
    first = engine.wake_at
    assert first is not None
    engine.advance(first)
    engine.advance(first + 0.025)  # two steps of 11 ms, and a part of the third
    engine.add(sequence(8, 2, owner=1), first + 0.025)
    assert engine.wake_at == pytest.approx(first + 0.033)


def test_a_streamed_sequence_reports_its_first_token_and_then_every_chunk() -> None:
    engine = SimEngine(SMALL)
    engine.add(sequence(8, 10, emit_every=4), 0.0)
    spans = [(news.start, news.stop, news.finished) for _, news in run(engine)]
    assert spans == [(0, 1, False), (1, 5, False), (5, 9, False), (9, 10, True)]


@given(st.lists(st.tuples(st.integers(1, 220), st.integers(1, 36), st.integers(1, 4)), max_size=12))
def test_running_alone_comes_to_what_the_steps_come_to(plan: list[tuple[int, int, int]]) -> None:
    config = replace(SMALL, zero_latency=True)
    stepped, alone = SimEngine(config), SimEngine(config)
    known = set[int]()
    for prompt, output, owner in plan:
        one, other = (sequence(prompt, output, owner, shared=3) for _ in range(2))
        stepped.add(one, 0.0)
        assert [news.finished for news in stepped.advance(0.0)] == [True]
        alone.run_alone(other)
        assert (one.cached, one.generated) == (other.cached, other.generated)
        known.update(one.hashes)
        assert leaving(stepped.pool, known) == leaving(alone.pool, known)
        assert alone.pool.free == alone.pool.idle(range(config.num_blocks)) == config.num_blocks
    assert stepped.counters == alone.counters
    assert stepped.scheduler.query_tokens == alone.scheduler.query_tokens
    assert stepped.scheduler.hit_tokens == alone.scheduler.hit_tokens


arrivals = st.lists(
    st.tuples(
        st.integers(0, 40),  # milliseconds since the one before
        st.integers(1, 60),  # prompt
        st.integers(1, 30),  # output
        st.integers(0, 3),  # owner
        st.integers(-1, 1),  # priority
        st.sampled_from([0, 0, 1, 3]),  # emit_every
        st.sampled_from([None, None, None, 5, 60]),  # aborted after milliseconds
    ),
    max_size=14,
)


@settings(max_examples=80, deadline=None)
@given(
    arrivals,
    st.integers(23, 60),
    st.integers(8, 70),
    st.integers(1, 6),
    st.sampled_from(["fcfs", "priority"]),
    st.booleans(),
)
def test_every_request_finishes_once_with_exact_usage_and_no_block_leaks(
    plan: list[tuple[int, int, int, int, int, int, int | None]],
    num_blocks: int,
    budget: int,
    seqs: int,
    policy: str,
    reserves: bool,
) -> None:
    config = replace(
        SMALL,
        num_blocks=num_blocks,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        policy=policy,  # type: ignore[arg-type]
        reserve_full_prompt=reserves,
    )
    engine = SimEngine(config)
    todo: list[tuple[float, int, Sequence]] = []
    at = 0.0
    for index, (gap, prompt, output, owner, priority, emit, aborted_after) in enumerate(plan):
        at += gap / 1000
        each = sequence(prompt, output, owner, shared=3, priority=priority, emit_every=emit)
        todo.append((at, 2 * index, each))
        if aborted_after is not None:
            todo.append((at + aborted_after / 1000, 2 * index + 1, each))
    todo.sort(key=lambda entry: entry[:2])
    tokens: dict[Sequence, int] = {}
    aborted: set[Sequence] = set()
    alive: set[Sequence] = set()

    def note(out: list[SequenceProgress]) -> None:
        for news in out:
            assert news.sequence in alive, "news of a sequence that is not there"
            assert news.start == tokens.get(news.sequence, 0)
            assert news.stop > news.start
            tokens[news.sequence] = news.stop
            if news.finished:
                alive.remove(news.sequence)
        held = {block for each in engine.scheduler.running for block in each.blocks}
        assert engine.pool.used == len(held)
        assert engine.pool.free == engine.pool.idle(range(config.num_blocks)) == config.num_blocks - len(held)
        assert len(engine.scheduler.running) + engine.scheduler.waiting == len(alive)
        assert len(engine.scheduler.running) <= seqs

    while todo or engine.wake_at is not None:
        wake_at = engine.wake_at
        if todo and (wake_at is None or todo[0][0] <= wake_at):
            now, kind, each = todo.pop(0)
            note(engine.advance(now))
            if kind % 2 == 0:
                alive.add(each)
                engine.add(each, now)
            elif not each.finished:
                alive.remove(each)
                aborted.add(each)
                engine.abort(each, now)
            note(engine.advance(now))
        else:
            assert wake_at is not None
            note(engine.advance(wake_at))
    assert not alive
    assert engine.pool.used == 0
    for each, count in tokens.items():
        if each not in aborted:
            assert count == each.generated == each.output_tokens
            assert 0 <= each.cached < each.prompt_tokens
    assert engine.counters.finished + engine.counters.aborted == len(plan)
