"""The exclusive host tier under the real scheduler of the vLLM that runs this script; needs neither a GPU nor a model.

    python check_exclusive_in_vllm.py MODEL_FOLDER

Of the model only its configuration is read: every step "samples" a token, and copies complete with the next step.
Prints `ok` and the version, or fails with what went wrong. `test_vllm_exclusive_tier.py` runs it.
"""

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
import vllm
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiKVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16
SHARED, OWN, GROWTH, OUTPUT = 64, 160, 32, 6
"""Tokens: of the prefix that agents share, of an agent's first prompt behind it, of a turn, of an answer."""


@dataclass
class Agent:
    name: str
    turns: int
    wait: int
    """Steps that its tool takes."""
    prompt: list[int]
    done: int = 0
    back_at: int = 0
    request: str | None = None
    cached: list[int] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)


class Engine:
    """vLLM's scheduler, with a model that takes a step for everything."""

    def __init__(self, model: str, device: int, host: int) -> None:
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=32, dtype=torch.float32)
        page = spec.page_size_bytes
        connectors = [
            {
                "kv_connector": "BatchAgentPins",
                "kv_connector_module_path": "batch_agent_vllm.pins_connector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"max_pinned_fraction": 0.9},
            },
            {
                "kv_connector": "ExclusiveOffloadingConnector",
                "kv_connector_module_path": "batch_agent_vllm.exclusive_offloading",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"cpu_bytes_to_use": host * page},
            },
        ]
        config = VllmConfig(
            model_config=ModelConfig(model=model, max_model_len=1024, skip_tokenizer_init=True, dtype="float32"),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
            scheduler_config=SchedulerConfig(
                max_num_seqs=64,
                max_num_batched_tokens=1024,
                max_model_len=1024,
                is_encoder_decoder=False,
                enable_chunked_prefill=True,
                async_scheduling=False,
            ),
            device_config=DeviceConfig("cpu"),
            kv_transfer_config=KVTransferConfig(
                kv_connector="MultiConnector",
                kv_role="kv_both",
                kv_connector_extra_config={"connectors": connectors},
            ),
        )
        config.cache_config.num_gpu_blocks = device
        caches = KVCacheConfig(
            num_blocks=device,
            kv_cache_tensors=[_tensor(page * device, page)],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=caches,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=True,
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self._completed: list[int] = []
        self._loaded: dict[int, str] = {}
        self.stores = self.loads = 0
        self.found: dict[str, int] = {}
        """Tokens of each request that were in a cache."""

    def add(self, name: str, prompt: list[int], hints: dict[str, Any]) -> None:
        sampling = SamplingParams(max_tokens=OUTPUT, ignore_eos=True)
        sampling.extra_args = {"kv_transfer_params": {"batch_agent": hints}}
        self.scheduler.add_request(Request(name, prompt, sampling, None, block_hasher=self._hasher))

    def step(self) -> set[str]:
        """Requests that ended in it."""
        planned = self.scheduler.schedule()
        self.found |= {new.req_id: new.num_computed_tokens for new in planned.scheduled_new_reqs}
        jobs = next(
            meta for meta in planned.kv_connector_metadata.metadata if getattr(meta, "store_jobs", None) is not None
        )
        ids = list(planned.num_scheduled_tokens)
        sampled = []
        for each in ids:
            request = self.scheduler.requests[each]
            is_complete = request.num_computed_tokens >= request.num_tokens
            sampled.append([7] if is_complete else [])
        worker = OffloadingWorkerMetadata()
        received = set()
        for job in self._completed:
            worker.completed_jobs[job] = 1
            if job in self._loaded:
                received.add(self._loaded.pop(job))
        self.stores += len(jobs.store_jobs)
        self.loads += len(jobs.load_jobs)
        self._completed = [*jobs.store_jobs, *jobs.load_jobs]
        self._loaded |= {job: transfer.req_id for job, transfer in jobs.load_jobs.items()}
        done = KVConnectorOutput(
            finished_recving=received or None,
            kv_connector_worker_meta=MultiKVConnectorWorkerMetadata((None, worker)) if worker.completed_jobs else None,
        )
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={each: index for index, each in enumerate(ids)},
            sampled_token_ids=sampled,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=done,
        )
        before = set(self.scheduler.requests)
        self.scheduler.update_from_output(planned, output)
        return before - set(self.scheduler.requests)


def _tensor(size: int, page: int) -> KVCacheTensor:
    if "shared_by" in KVCacheTensor.__dataclass_fields__:  # 0.26
        return KVCacheTensor(size=size, shared_by=["layer"])
    return KVCacheTensor(size=size, layers=["layer"], layer_stride=size, block_stride=page)


def run(engine: Engine, agents: list[Agent], in_flight: int) -> int:
    """Runs agents that ask, wait for a tool, and ask again. Returns the steps."""
    step = 0
    requests: dict[str, Agent] = {}
    while any(agent.done < agent.turns for agent in agents):
        step += 1
        assert step < 20_000
        for agent in agents:
            if (
                agent.request is None
                and agent.done < agent.turns
                and agent.back_at <= step
                and len(requests) < in_flight
            ):
                agent.request = f"{agent.name}.{agent.done}"
                hints = {"session": agent.name, "next_use_s": 1.0, "shared_tokens": SHARED}
                hints["drop"] = agent.done == agent.turns - 1
                engine.add(agent.request, list(agent.prompt), hints)
                requests[agent.request] = agent
        for ended in engine.step():
            agent = requests.pop(ended)
            agent.cached.append(engine.found[ended])
            agent.prompts.append(len(agent.prompt))
            agent.done += 1
            agent.request = None
            agent.back_at = step + agent.wait
            start = 1_000 * (int(agent.name) + 1) + 50 * agent.done
            agent.prompt += range(start, start + GROWTH)
    for _ in range(3):
        engine.step()
    return step


def make_agents(count: int, turns: int, wait: int) -> list[Agent]:
    return [
        Agent(
            str(index),
            turns,
            wait,
            [*range(SHARED), *range(1_000 * (index + 1) + 500, 1_000 * (index + 1) + 500 + OWN)],
        )
        for index in range(count)
    ]


def found_share(agents: list[Agent]) -> float:
    """Share of the context of the turn before that later turns found."""
    found = sum(
        min(cached, before)
        for agent in agents
        for cached, before in zip(agent.cached[1:], agent.prompts[:-1], strict=True)
    )
    return found / sum(before // BLOCK * BLOCK for agent in agents for before in agent.prompts[:-1])


def check_that_device_and_host_together_keep_what_fits_into_both(model: str) -> None:
    """A context ends with 20 blocks, of which 4 are shared: each tier holds 6 agents."""
    engine = Engine(model, device=4 + 6 * 16 + 1, host=4 + 6 * 16)
    agents = make_agents(count=9, turns=5, wait=12)
    run(engine, agents, in_flight=4)
    assert found_share(agents) > 0.9, found_share(agents)
    assert engine.loads, "nothing came from the host"
    free = engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    assert free == 4 + 6 * 16, f"{free} blocks are free"


def check_that_more_agents_than_fit_lose_contexts_and_end(model: str) -> None:
    engine = Engine(model, device=4 + 4 * 20 + 1, host=4 + 3 * 20)
    agents = make_agents(count=16, turns=4, wait=60)
    run(engine, agents, in_flight=4)
    assert all(agent.done == 4 for agent in agents)
    assert engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 4 + 4 * 20


if __name__ == "__main__":
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check(sys.argv[1])
    print("ok", vllm.__version__)
