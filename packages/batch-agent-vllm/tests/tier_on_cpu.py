"""The exclusive host tier where the device is a CPU too: only the copies differ from those of a GPU.

vLLM's own worker of the tier needs a GPU. All else, the scheduler, the connector and the manager, is the same.
"""

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from batch_agent_vllm.exclusive_offloading import ExclusiveOffloadingSpec


class CopyingWorker(OffloadingWorker):
    """Copies blocks at once."""

    def __init__(self, caches: CanonicalKVCaches, num_blocks: int) -> None:
        self._device = [each.tensor for each in caches.tensors]
        self._host = [torch.empty((num_blocks, *each.shape[1:]), dtype=each.dtype) for each in self._device]
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: CPULoadStoreSpec) -> bool:
        for device, host in zip(self._device, self._host, strict=True):
            host[torch.as_tensor(dst_spec.block_ids).long()] = device[torch.as_tensor(src_spec.block_ids).long()]
        self._finished.append(TransferResult(job_id, True))
        return True

    def submit_load(self, job_id: int, src_spec: CPULoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        for device, host in zip(self._device, self._host, strict=True):
            device[torch.as_tensor(dst_spec.block_ids).long()] = host[torch.as_tensor(src_spec.block_ids).long()]
        self._finished.append(TransferResult(job_id, True))
        return True

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is pending."""


class ExclusiveTierOnCpu(ExclusiveOffloadingSpec):
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        return CopyingWorker(kv_caches, self.num_chunks)
