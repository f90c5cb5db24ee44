"""Scheduler of the simulated engine: chooses the sequences and tokens of the next step by vLLM's rules."""

import heapq

from ..sim_config import SimConfig
from .blocks import BlockPool
from .host_tier import HostTier
from .sequence import Sequence

Batch = list[tuple[Sequence, int]]


class Scheduler:
    """The running batch and the waiting queue. Running sequences come first, then waiting ones while they fit.

    A sequence that needs a block when none is free preempts the lowest-ranking one, which restarts from what the prefix
    cache still has of it."""

    def __init__(self, config: SimConfig, pool: BlockPool, host: HostTier | None = None) -> None:
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.query_tokens = 0
        self.hit_tokens = 0
        self._config = config
        self._pool = pool
        self._host = host
        self._waiting: list[tuple[tuple[int, int], Sequence]] = []
        self._arrivals = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def queue(self, sequence: Sequence) -> None:
        self._arrivals += 1
        sequence.order = self._arrivals
        if self._config.policy == "fcfs":
            sequence.priority = 0
        heapq.heappush(self._waiting, (sequence.rank, sequence))

    def drop(self, sequence: Sequence) -> None:
        """Removes a finished or aborted sequence, and frees its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
            if self._host is not None:
                kept = 0 if sequence.is_last else sequence.prompt_tokens // self._config.block_size
                self._host.end(sequence.agent, sequence.hashes[: min(kept, sequence.published)])
        else:
            self._waiting = [entry for entry in self._waiting if entry[1] is not sequence]
            heapq.heapify(self._waiting)
        self._pool.release(sequence.blocks)
        sequence.blocks.clear()

    def plan(self) -> tuple[Batch, bool]:
        """The batch of the next step, with its blocks taken and its full blocks published, and whether it is settled:
        all sequences decode, and no waiting one could join before one ends."""
        batch, preempted = self._plan_running()
        if not preempted:
            self._plan_waiting(batch)
        settled = not preempted and all(sequence.known - sequence.computed == 1 for sequence, _ in batch)
        return batch, settled

    def equal_steps(self, batch: Batch) -> int:
        """Number of steps in which this decoding batch does not change: until a sequence ends, output is due, or the
        last free block is taken."""
        steps = min(sequence.output_tokens - sequence.generated for sequence, _ in batch)
        for sequence, _ in batch:
            if sequence.emit_every:
                steps = min(steps, max(1, sequence.emit_every - (sequence.generated - sequence.emitted)))
        while steps > 1 and sum(self._blocks_missing(sequence, steps) for sequence, _ in batch) > self._pool.free:
            steps //= 2
        return steps

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Holds the blocks for `tokens` more tokens and publishes those that become full. Returns False if they are not
        available."""
        missing = self._blocks_missing(sequence, tokens)
        if missing > 0:
            if missing > self._pool.free:
                return False
            sequence.blocks.extend(self._pool.take(missing))
        full = min((sequence.computed + tokens) // self._config.block_size, len(sequence.hashes))
        if full > sequence.published:
            new = slice(sequence.published, full)
            self._pool.publish(sequence.blocks[new], sequence.hashes[new])
            if self._host is not None:
                self._host.store(sequence.hashes[new])
            sequence.published = full
        return True

    def run_alone(self, sequence: Sequence) -> None:
        """Accounts for a sequence that runs from start to end while no other runs."""
        hits = 0
        if self._config.prefix_caching:
            size = self._config.block_size
            # The last generated token is never computed; the last prompt token always is.
            computed = sequence.prompt_tokens + sequence.output_tokens - 1
            max_hits = (sequence.prompt_tokens - 1) // size
            hits = self._pool.pass_through(sequence.hashes[: computed // size], -(-computed // size), max_hits) * size
        sequence.cached = hits
        self.query_tokens += sequence.prompt_tokens
        self.hit_tokens += hits

    def _plan_running(self) -> tuple[Batch, bool]:
        planned: dict[Sequence, int] = {}
        budget = self._config.max_num_batched_tokens
        preempted = False
        for sequence in list(self.running):
            if not budget:
                break
            if preempted and sequence not in self.running:
                continue
            count = min(sequence.known - sequence.computed, budget)
            while not self.grow(sequence, count):
                preempted = True
                victim = max(self.running, key=lambda candidate: candidate.rank)
                budget += planned.pop(victim, 0)
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                planned[sequence] = count
                budget -= count
        return list(planned.items()), preempted

    def _plan_waiting(self, batch: Batch) -> None:
        budget = self._config.max_num_batched_tokens - sum(count for _, count in batch)
        while self._waiting and budget and len(self.running) < self._config.max_num_seqs:
            sequence = self._waiting[0][1]
            count = self._admit(sequence, budget)
            if not count:
                return
            heapq.heappop(self._waiting)
            self.running.append(sequence)
            batch.append((sequence, count))
            budget -= count

    def _admit(self, sequence: Sequence, budget: int) -> int:
        """Takes a waiting sequence's first blocks. Returns the number of tokens to compute in this step, or 0 if it
        must wait."""
        size = self._config.block_size
        hits = self._hits(sequence)
        loaded = self._host_hits(sequence, len(hits))
        count = min(sequence.known - (len(hits) + loaded) * size, budget)
        tokens_that_must_fit = (
            sequence.known if self._config.reserve_full_prompt else (len(hits) + loaded) * size + count
        )
        if -(-tokens_that_must_fit // size) - len(hits) > self._pool.free - self._pool.idle(hits):
            return 0
        self._start(sequence, hits, loaded)
        self.grow(sequence, count)
        return count

    def _hits(self, sequence: Sequence) -> list[int]:
        # The last token is always computed, because its result is the first token of the answer.
        return self._pool.match(sequence.hashes[: (sequence.known - 1) // self._config.block_size])

    def _host_hits(self, sequence: Sequence, start: int) -> int:
        if self._host is None:
            return 0
        return self._host.match(sequence.hashes[: (sequence.known - 1) // self._config.block_size], start)

    def _start(self, sequence: Sequence, hits: list[int], loaded: int = 0) -> None:
        self._pool.hold(hits)
        sequence.blocks.extend(hits)
        found = len(hits) + loaded
        if loaded:
            blocks = self._pool.take(loaded)
            self._pool.publish(blocks, sequence.hashes[len(hits) : found])
            sequence.blocks.extend(blocks)
        if self._host is not None:
            self._host.load(sequence.hashes[:found], loaded)
            self._host.begin(sequence.agent)
        sequence.computed = found * self._config.block_size
        sequence.published = found
        if not sequence.preemptions:
            sequence.cached = sequence.computed
            self.query_tokens += sequence.known
            self.hit_tokens += sequence.cached

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._pool.release(sequence.blocks)
        sequence.blocks.clear()
        sequence.computed = sequence.published = 0
        sequence.preemptions += 1
        self.preemptions += 1
        heapq.heappush(self._waiting, (sequence.rank, sequence))

    def _blocks_missing(self, sequence: Sequence, tokens: int) -> int:
        return -(-(sequence.computed + tokens) // self._config.block_size) - len(sequence.blocks)
