"""vLLM's native host tier as an addition to the device instead of a copy of it.

    --kv-transfer-config '{"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config":
      {"connectors": [
        {"kv_connector": "BatchAgentPins", "kv_connector_module_path": "batch_agent_vllm.pins_connector",
         "kv_role": "kv_both"},
        {"kv_connector": "ExclusiveOffloadingConnector", "kv_role": "kv_both",
         "kv_connector_module_path": "batch_agent_vllm.exclusive_offloading",
         "kv_connector_extra_config": {"cpu_bytes_to_use": 17179869184}}]}}'

vLLM stores blocks as they are computed, so that the tier mostly holds what the device holds too. Here a context is
stored when its request ends, and pinned on the device until the copy is complete. While a session's request runs, its
copy is the first to be evicted. So the device has the contexts of sessions that run, the host those of sessions that
wait, and both together keep what fits into both.
"""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.base import OffloadKey, OffloadPolicy, PrepareStoreOutput, ReqContext
from vllm.v1.kv_offload.base import RequestOffloadingContext as RequestPlan

from batch_agent_vllm import capabilities, device_tier
from batch_agent_vllm.hints import parse_hints
from batch_agent_vllm.offloading import NextUseCachePolicy, NextUseOffloadingManager, NextUseOffloadingSpec

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorRole
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.kv_offload.base import ScheduleEndContext


class ExclusiveOffloadingManager(NextUseOffloadingManager):
    """Stores the contexts of ended requests whose sessions return."""

    def __init__(self, capacity: int, tokens_per_chunk: int, **options: Any) -> None:
        super().__init__(capacity, tokens_per_chunk, **options)
        self._policy = NextUseCachePolicy(capacity, tokens_per_chunk, is_exclusive=True)

    def on_new_request(self, req_context: ReqContext) -> RequestPlan:
        super().on_new_request(req_context)
        # Offers loaded blocks again at the end of the request, because their copy may have been evicted by then.
        return RequestPlan(policy=OffloadPolicy.REQUEST_LEVEL)

    def on_schedule_end(self, context: "ScheduleEndContext") -> None:
        super().on_schedule_end(context)
        for request in context.new_req_ids:
            self._policy.request_starts(request)

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Called once per request, after it has ended."""
        hints = parse_hints(req_context.kv_transfer_params)
        is_kept = hints.session is not None and device_tier.keeps(hints.session)
        self._policy.request_ends(keys, req_context, is_kept=is_kept)
        try:
            if hints.drop or hints.once or hints.update:
                return super(NextUseOffloadingManager, self).prepare_store([], req_context)
            output = super(NextUseOffloadingManager, self).prepare_store(keys, req_context)
            if output is None:
                if hints.session is not None:
                    self._policy.keep_on_device(hints.session)
                return super(NextUseOffloadingManager, self).prepare_store([], req_context)
            if not output.keys_to_store:
                self._release(req_context)
            return output
        finally:
            self._policy.store_prepared()

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        super().complete_store(keys, req_context, success)
        if success:
            self._release(req_context)

    def _release(self, req_context: ReqContext) -> None:
        session = parse_hints(req_context.kv_transfer_params).session
        if session is not None:
            device_tier.release(session)


class ExclusiveOffloadingSpec(NextUseOffloadingSpec):
    """vLLM's host tier, exclusive and with the next-use policy."""

    manager_class = ExclusiveOffloadingManager


class ExclusiveOffloadingConnector(OffloadingConnector):
    """vLLM's connector, modified to offer blocks for storing only after their request has ended."""

    def __init__(self, vllm_config: Any, role: "KVConnectorRole", kv_cache_config: "KVCacheConfig") -> None:
        options = vllm_config.kv_transfer_config.kv_connector_extra_config
        options.setdefault("spec_name", ExclusiveOffloadingSpec.__name__)
        options.setdefault("spec_module_path", ExclusiveOffloadingSpec.__module__)
        super().__init__(vllm_config, role, kv_cache_config)
        capabilities.declare(exclusive=True)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> "KVConnectorMetadata":
        return super().build_connector_meta(replace(scheduler_output, num_scheduled_tokens={}))


# MultiConnector finds the classes of its children's statistics by name, even for children that it loads by module path.
with suppress(ValueError):  # it is registered already
    KVConnectorFactory.register_connector(
        ExclusiveOffloadingConnector.__name__, __name__, ExclusiveOffloadingConnector.__name__
    )
