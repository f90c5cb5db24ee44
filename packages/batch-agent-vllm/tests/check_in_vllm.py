"""The policy in the real classes of the vLLM that runs this script; needs neither a GPU nor a model.

Prints `ok` and the version, or fails with what went wrong. `test_vllm_offloading.py` runs it.
"""

from random import Random
from types import SimpleNamespace
from typing import Any

import vllm
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key

from batch_agent_vllm.offloading import LOADS_POLICIES, NextUseOffloadingManager, NextUseOffloadingSpec

TOKENS = 16


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Server:
    """Calls a manager as the scheduler side of the offloading connector does."""

    def __init__(self, capacity: int) -> None:
        config = SimpleNamespace(
            extra_config={"cpu_bytes_to_use": capacity},
            enable_kv_cache_events=True,
            groups=(SimpleNamespace(tokens_per_block=TOKENS),),
            cache=SimpleNamespace(tokens_per_hash=TOKENS, blocks_per_chunk=1),
            parallel=SimpleNamespace(world_size=1),
            worker_kv_bytes_per_block=0,
            replicated_layout=False,
        )
        spec = NextUseOffloadingSpec(config)
        setattr(spec, "num_chunks" if LOADS_POLICIES else "num_blocks", capacity)
        manager = spec.get_manager()
        assert isinstance(manager, NextUseOffloadingManager)
        assert manager is spec.get_manager()
        self.manager = manager
        self.clock = Clock()
        manager._policy._clock = self.clock
        self.requests = 0

    def request(self, blocks: list[str], **hints: Any) -> int:
        """Blocks that the tier served to a request of which the device had none."""
        manager, context, keys = self.manager, self.new(hints), [key_of(block) for block in blocks]
        if LOADS_POLICIES:
            for index, key in enumerate(keys):
                context.set_offload_key_position(key, (index + 1) * TOKENS)
        manager.on_new_request(context)
        hits = 0
        while hits < len(keys) and manager.lookup(keys[hits], context) is LookupResult.HIT:
            hits += 1
        if not LOADS_POLICIES:
            manager.touch(keys, context)
        if hits:
            manager.prepare_load(keys[:hits], context)
            manager.complete_load(keys[:hits], context)
        if hits < len(keys):
            stored = manager.prepare_store(keys[hits:], context)
            if stored is not None:
                if not LOADS_POLICIES:
                    manager.touch(keys, context)
                manager.complete_store(stored.keys_to_store, context)
        manager.on_request_finished(context)
        return hits

    def new(self, hints: dict[str, Any]) -> ReqContext:
        self.requests += 1
        return ReqContext(f"r{self.requests}", {"batch_agent": hints} if hints else None)

    def held(self, *blocks: str) -> list[str]:
        return [block for block in blocks if self.manager._policy.get(key_of(block)) is not None]


def key_of(block: str) -> Any:
    return make_offload_key(block.encode().ljust(32, b"."), 0)


def chain(name: str, count: int) -> list[str]:
    return [f"{name}{index}" for index in range(count)]


def check_that_a_session_that_ended_goes_first() -> None:
    server = Server(8)
    server.request(chain("a", 4), session="a", next_use_s=50)
    server.request(chain("b", 4), session="b", next_use_s=1, drop=True)
    server.request(chain("c", 2), session="c", next_use_s=5)
    assert server.held(*chain("a", 4), *chain("b", 4)) == [*chain("a", 4), "b0", "b1"]


def check_that_the_farthest_session_loses_its_tail() -> None:
    server = Server(8)
    server.request(chain("a", 4), session="a", next_use_s=50)
    server.request(chain("b", 4), session="b", next_use_s=5)
    server.request(chain("c", 2), session="c", next_use_s=9)
    assert server.held(*chain("a", 4), *chain("b", 4)) == ["a0", "a1", *chain("b", 4)]
    assert server.request(chain("b", 5), session="b", next_use_s=5) == 4


def check_that_without_hints_it_is_lru() -> None:
    server = Server(8)
    for name in "ab":
        server.clock.now += 1
        server.request(chain(name, 4))
    server.clock.now += 1
    assert server.request(chain("a", 4)) == 4
    server.clock.now += 1
    server.request(chain("c", 4))
    assert server.held(*chain("a", 4), *chain("b", 4)) == chain("a", 4)


def check_that_a_shared_prefix_stays() -> None:
    server = Server(10)
    for name in "abc":
        server.clock.now += 1
        server.request(["p0", "p1", *chain(name, 3)], session=name, next_use_s=30, shared_tokens=2 * TOKENS)
    server.request(chain("x", 8), session="x", next_use_s=3)
    assert server.held("p0", "p1") == ["p0", "p1"]


def check_that_a_tier_full_of_transfers_refuses() -> None:
    server = Server(4)
    waiting = server.new({"session": "a"})
    server.manager.on_new_request(waiting)
    assert server.manager.prepare_store([key_of(block) for block in chain("a", 4)], waiting) is not None
    other = server.new({"session": "b"})
    server.manager.on_new_request(other)
    assert server.manager.prepare_store([key_of("b0")], other) is None
    server.manager.complete_store([key_of(block) for block in chain("a", 4)], waiting, success=False)
    assert server.manager.prepare_store([key_of("b0")], other) is not None


def check_random_requests() -> None:
    """The manager's own assertions hold, and it never holds more than it has."""
    random = Random(1)
    server = Server(64)
    for _ in range(3_000):
        server.clock.now += random.random()
        name = f"s{random.randrange(12)}-"
        hints: dict[str, Any] = {"session": name, "next_use_s": random.choice([None, 1, 20]), "shared_tokens": 48}
        blocks = ["p0", "p1", "p2", *chain(name, random.randrange(1, 12))]
        hints |= {"drop": random.random() < 0.1, "once": random.random() < 0.1}
        server.request(blocks, **(hints if random.random() < 0.9 else {}))
        policy = server.manager._policy
        assert len(policy._chunks) == len(policy._policy) <= 64
        if random.random() < 0.002:
            server.manager.reset_cache()


for name, check in list(globals().items()):
    if name.startswith("check_"):
        check()
print("ok", vllm.__version__)
