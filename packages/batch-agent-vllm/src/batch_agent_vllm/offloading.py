"""The next-use policy in vLLM's native host tier, by its public configuration.

From vLLM 0.26 on, as an offloading spec, which also learns how long the device keeps a context:

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config":
      {"spec_name": "NextUseOffloadingSpec", "spec_module_path": "batch_agent_vllm.offloading",
       "cpu_bytes_to_use": 17179869184}}'

From 0.27 on also as a policy alone, for instance with secondary tiers: `"eviction_policy": "NextUseCachePolicy"`,
`"cache_policy_module_path": "batch_agent_vllm.offloading"`.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib.util import find_spec
from typing import Any

from vllm.v1.kv_offload.base import LookupResult, OffloadingManager, OffloadKey, PrepareStoreOutput, ReqContext
from vllm.v1.kv_offload.base import RequestOffloadingContext as RequestPlan
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from batch_agent_vllm import capabilities
from batch_agent_vllm.hints import Hints, parse_hints
from batch_agent_vllm.next_use_policy import NextUsePolicy

LOADS_POLICIES = find_spec("vllm.v1.kv_offload.cpu.policies.factory") is not None
"""From 0.27 on the manager loads a policy by its name, and tells it of ended requests and of positions."""


class NextUseCachePolicy(CachePolicy):
    """vLLM's cache policy on top of NextUsePolicy: holds the state of each block, reads the hints, keeps the time."""

    def __init__(
        self,
        cache_capacity: int,
        tokens_per_chunk: int = 1,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_exclusive: bool = False,
    ) -> None:
        super().__init__(cache_capacity)
        self._policy: NextUsePolicy[OffloadKey] = NextUsePolicy(is_exclusive=is_exclusive)
        self._spared_until: float | None = None
        self._chunks: dict[OffloadKey, Any] = {}
        self._hints: dict[str, Hints] = {}
        self._storing: tuple[ReqContext, dict[OffloadKey, int]] | None = None
        self._tokens_per_chunk = tokens_per_chunk
        self._clock = clock

    def get(self, key: OffloadKey) -> Any | None:
        return self._chunks.get(key)

    def insert(self, key: OffloadKey, chunk: Any) -> None:
        self._chunks[key] = chunk
        self._policy.add(key)
        if self._storing is not None and key in self._storing[1]:
            request, positions = self._storing
            self._policy.touch(request.req_id, self._hints_of(request), [(key, positions[key])], self._clock())
        if chunk.ref_cnt == 0:
            self._policy.unpin(key)

    def remove(self, key: OffloadKey) -> None:
        del self._chunks[key]
        self._policy.remove(key)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        blocks = self._positions(list(keys), req_context)
        self._policy.touch(req_context.req_id, self._hints_of(req_context), blocks.items(), self._clock())

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.request_stores(keys, req_context)

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        for keys in key_groups:
            self.touch(keys, req_context)
        self.request_finished(req_context)

    def evict(self, n: int, protected: set[OffloadKey]) -> list[tuple[OffloadKey, Any]] | None:
        victims = self._policy.evict(n, protected, self._clock(), spared_until=self._spared_until)
        return None if victims is None else [(key, self._chunks.pop(key)) for key in victims]

    def clear(self) -> None:
        self._policy.clear()
        self._chunks.clear()
        self._storing = None

    def mark_evictable(self, key: OffloadKey) -> None:
        self._policy.unpin(key)

    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._policy.pin(key)

    def request_arrives(self, req_context: ReqContext) -> None:
        hints = self._hints_of(req_context)
        if not hints.update:  # the session itself is still away; the end of the request corrects its next use
            self._policy.arrive(req_context.req_id, hints, self._clock())

    def device_misses(self, key: OffloadKey, req_context: ReqContext) -> None:
        self._policy.miss_on_device(req_context.req_id, self._hints_of(req_context), key, self._clock())

    def request_runs(self, req_context: ReqContext) -> None:
        self._policy.run(req_context.req_id, self._hints_of(req_context), self._clock())

    def request_stores(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Notes that the next inserted blocks belong to this request. 0.26 tells this only afterwards, by a touch."""
        self.request_runs(req_context)
        if LOADS_POLICIES:
            known = self._storing[1] if self._storing is not None and self._storing[0] is req_context else {}
            self._storing = req_context, known | self._positions(list(keys), req_context)

    def store_prepared(self) -> None:
        self._storing = None
        self._spared_until = None

    def request_starts(self, request: str) -> None:
        """Handles the first scheduling of the request."""
        if (hints := self._hints.get(request)) is not None and not hints.update:
            self._policy.run(request, hints, self._clock())

    def keep_on_device(self, session: str) -> None:
        self._policy.keep_on_device(session, self._clock())

    def request_ends(self, keys: Iterable[OffloadKey], req_context: ReqContext, *, is_kept: bool) -> None:
        """Handles the end of a request, with all of its blocks offered, beginning with the first. `is_kept`: whether
        the device keeps them."""
        hints, now = self._hints_of(req_context), self._clock()
        if not self._policy.has_ended(req_context.req_id):
            self._policy.finish(req_context.req_id, hints, now)
        if is_kept:
            self._spared_until = math.inf
        elif hints.next_use_s is not None:
            self._spared_until = now + hints.next_use_s
        by_index = {key: (index + 1) * self._tokens_per_chunk for index, key in enumerate(keys)}
        self._storing = req_context, by_index

    def request_finished(self, req_context: ReqContext) -> None:
        self._policy.finish(req_context.req_id, self._hints_of(req_context), self._clock())
        self._hints.pop(req_context.req_id, None)
        self._storing = None

    def _hints_of(self, req_context: ReqContext) -> Hints:
        """Hints of a request, parsed only once: vLLM touches the blocks of a waiting request in every step."""
        hints = self._hints.get(req_context.req_id)
        if hints is None:
            hints = parse_hints(req_context.kv_transfer_params)
            if not self._policy.has_ended(req_context.req_id):
                self._hints[req_context.req_id] = hints
        return hints

    def _positions(self, keys: list[OffloadKey], req_context: ReqContext) -> dict[OffloadKey, int]:
        """Tokens up to the end of each block. 0.26 touches the whole chain, so the index gives the position."""
        by_index = {key: (index + 1) * self._tokens_per_chunk for index, key in enumerate(keys)}
        if LOADS_POLICIES:
            return {key: req_context.get_offload_key_position(key) or end for key, end in by_index.items()}
        return by_index


class NextUseOffloadingManager(CPUOffloadingManager):
    """vLLM's manager of the host tier, extended to tell the policy about the progress of requests."""

    _policy: NextUseCachePolicy

    def __init__(self, capacity: int, tokens_per_chunk: int, **options: Any) -> None:
        if LOADS_POLICIES:
            name, module = NextUseCachePolicy.__name__, NextUseCachePolicy.__module__
            super().__init__(capacity, cache_policy=name, cache_policy_module_path=module, **options)
        else:
            super().__init__(capacity, **options)
        self._policy = NextUseCachePolicy(capacity, tokens_per_chunk)
        self._looked_up: set[str] = set()

    def on_new_request(self, req_context: ReqContext) -> RequestPlan:
        self._policy.request_arrives(req_context)
        return super().on_new_request(req_context)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        if req_context.req_id not in self._looked_up:  # the first block that the device lacks
            self._looked_up.add(req_context.req_id)
            self._policy.device_misses(key, req_context)
        return super().lookup(key, req_context)

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        self._policy.request_stores(keys, req_context)
        try:
            return super().prepare_store(keys, req_context)
        finally:
            self._policy.store_prepared()

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        super().complete_load(keys, req_context)
        self._policy.request_runs(req_context)

    def on_request_finished(self, req_context: ReqContext) -> None:
        super().on_request_finished(req_context)
        self._policy.request_finished(req_context)
        self._looked_up.discard(req_context.req_id)


class NextUseOffloadingSpec(CPUOffloadingSpec):
    """vLLM's host tier with the next-use policy."""

    manager_class = NextUseOffloadingManager
    _manager: OffloadingManager | None

    def get_manager(self) -> OffloadingManager:
        if not self._manager:
            chunks, tokens = (self.num_chunks if LOADS_POLICIES else self.num_blocks), self.tokens_per_block[0]
            capabilities.declare(policy="next use", host_tokens=chunks * tokens * self.blocks_per_chunk)
            self._manager = self.manager_class(
                self.num_chunks if LOADS_POLICIES else self.num_blocks,
                self.tokens_per_block[0] * self.blocks_per_chunk,
                enable_events=self.kv_events_config.enable_kv_cache_events,
                store_threshold=int(self.extra_config.get("store_threshold", 0)),
                max_tracker_size=int(self.extra_config.get("max_tracker_size", 64_000)),
            )
        return self._manager
