import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batch_agent.sim.kv_engine.blocks import BlockPool


def test_a_released_block_is_found_again_by_its_content() -> None:
    pool = BlockPool(4)
    blocks = pool.take(2)
    pool.publish(blocks, [11, 12])
    pool.release(blocks)
    assert pool.free == 4
    assert pool.match([11, 12, 13]) == blocks


def test_a_match_ends_at_the_first_unknown_block() -> None:
    pool = BlockPool(4)
    blocks = pool.take(3)
    pool.publish([blocks[0], blocks[2]], [11, 13])
    assert pool.match([11, 12, 13]) == [blocks[0]]


def test_the_tail_of_a_sequence_is_evicted_before_its_head() -> None:
    pool = BlockPool(3)
    blocks = pool.take(3)
    pool.publish(blocks, [11, 12, 13])
    pool.release(blocks)
    pool.take(1)
    assert pool.match([11, 12, 13]) == blocks[:2]


def test_the_least_recently_released_content_goes_first() -> None:
    pool = BlockPool(2)
    old, new = pool.take(2)
    pool.publish([old, new], [1, 2])
    pool.release([old])
    pool.release([new])
    pool.hold([old])
    pool.release([old])
    assert pool.take(1) == [new]


def test_of_several_blocks_with_one_content_the_newest_is_found() -> None:
    pool = BlockPool(2)
    first, second = pool.take(2)
    pool.publish([first], [7])
    pool.publish([second], [7])
    pool.release([first])
    assert pool.match([7]) == [second]
    assert pool.take(1) == [first]
    assert pool.match([7]) == [second]


def test_taking_more_than_there_is_is_refused() -> None:
    with pytest.raises(IndexError, match="3 blocks wanted, 2 free"):
        BlockPool(2).take(3)


class PoolMachine(RuleBasedStateMachine):
    """Holders take, share and release blocks in any order; the pool's books must always agree with theirs."""

    SIZE = 12
    KEYS = tuple(first * 100 + index for first in range(6) for index in range(5))

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.SIZE)
        self.holders: list[list[int]] = []

    @rule(count=st.integers(1, 5), first=st.integers(0, 5))
    def start(self, count: int, first: int) -> None:
        wanted = [first * 100 + index for index in range(count)]
        hits = self.pool.match(wanted)
        missing = count - len(hits)
        if missing > self.pool.free - self.pool.idle(hits):
            return
        self.pool.hold(hits)
        taken = self.pool.take(missing)
        held = {block for blocks in self.holders for block in blocks} | set(hits)
        assert not held & set(taken), "a held block was given away"
        assert len(set(taken)) == missing
        assert not set(taken) & set(self.known()), "a block that was given away is still found"
        self.pool.publish(taken, wanted[len(hits) :])
        self.holders.append(hits + taken)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.pool.release(self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1))))

    @invariant()
    def books_agree(self) -> None:
        held = {block for blocks in self.holders for block in blocks}
        assert self.pool.used == len(held)
        assert self.pool.free == self.pool.idle(range(self.SIZE)) == self.SIZE - len(held)
        assert self.pool.idle(held) == 0
        found = self.known()
        assert len(found) == len(set(found)), "a block is found by two contents"

    def known(self) -> list[int]:
        """The blocks that are found by any content."""
        return [block for key in self.KEYS for block in self.pool.match([key])]


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


@given(st.lists(st.integers(0, 3), max_size=8))
def test_a_pool_whose_blocks_are_all_released_is_all_free(sizes: list[int]) -> None:
    pool = BlockPool(24)
    held = [pool.take(size) for size in sizes]
    for blocks in held:
        pool.release(blocks)
    assert pool.free == pool.idle(range(24)) == 24
