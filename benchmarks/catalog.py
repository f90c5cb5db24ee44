"""Catalog of published results: for each file of benchmarks/results, the command that makes it and what that needs."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

GROUPS: Mapping[str, str] = {
    "virtual": "virtual time: the numbers do not depend on the machine, nor on what else it does",
    "cores": "two cores that do nothing else",
    "peers": "two cores that do nothing else, and other libraries, each in an environment that is made for it",
    "engines": "real engines on the CPU, installed by scripts.engines.install",
    "16 cores": "16 cores that do nothing else",
    "gpu": "an H200 with vLLM",
}
"""What the commands of each group need."""


@dataclass(frozen=True, slots=True)
class Published:
    """A file of results, and the words after `python -m benchmarks.` that make it."""

    result: str
    command: str
    group: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command)

    @property
    def is_complete(self) -> bool:
        """Whether the command needs nothing that only its caller knows, such as the URL of a server."""
        return not any(word.isupper() for word in self.words)


def _out(name: str) -> str:
    return f"--out benchmarks/results/{name}.json"


_LOOPS = "one_key_50,one_key_200,slow_tool,ten_keys_64,ten_keys_256,checkpoint_off,checkpoint_on,four_endpoints"
_ACTORS = "200000,1,0 1600000,8,0 200000,1,0,1 200000,1,0,8 800000,4,0 400000,2,0"
_LOOPS_16 = "one_key_50,one_key_200,ten_keys_64,ten_keys_256,slow_tool,checkpoint_on,single_10000,four_endpoints"


def _gpu(name: str, parts: str, more: str = "") -> Published:
    command = f"gpu serve-and-run --python PYTHON --model-root DIRECTORY --tokenizer DIRECTORY{more} --only {parts}"
    return Published(name, f"{command} {_out(name)}", "gpu")


CATALOG: tuple[Published, ...] = (
    Published("capacity", "cluster.capacity", "virtual"),
    Published("kv_policy", "kv_policy", "virtual"),
    Published("kv_pools", "kv_pools", "virtual"),
    Published("kv_tiers", "kv_tiers", "virtual"),
    Published("ordering", "prefix_order", "virtual"),
    Published("routing", "routing", "virtual"),
    Published("shared_results", "shared_results", "virtual"),
    Published("workers", "workers", "virtual"),
    Published("baseline", "check --baseline", "cores"),
    Published("budget", "budget", "cores"),
    Published("checkpoint", "checkpoint", "cores"),
    Published("cluster", "cluster", "cores"),
    Published("cluster_workers", f"cluster --only many-workers {_out('cluster_workers')}", "cores"),
    Published("compaction", "compaction", "cores"),
    Published("dashboard", "dashboard", "cores"),
    Published("flows", "flows", "cores"),
    Published("forecast", "forecast", "cores"),
    Published("keep_warm", "keep_warm", "cores"),
    Published("lanes", "lanes", "cores"),
    Published("layout", "layout", "cores"),
    Published("lazy_inputs", "lazy_inputs", "cores"),
    Published("refusals", "refusals", "cores"),
    Published("response_parsers", "response_parsers", "cores"),
    Published("rollouts_cpu", "rollouts_cpu", "cores"),
    Published("scheduling", "scheduling", "cores"),
    Published("sim_vs_vllm", "sim_vs_vllm", "cores"),
    Published("terminal_frames", "terminal_frames", "cores"),
    Published("tools", "tools", "cores"),
    Published("watching", "observability", "cores"),
    Published("working_copies", "workspaces", "cores"),
    Published("peers", f"peers {_out('peers')}", "peers"),
    Published("peers_loops", f"peers --peers batch_agent,expert,gather --only {_LOOPS} {_out('peers_loops')}", "peers"),
    Published("pools", "pools --peer DIRECTORY", "peers"),
    Published("coding_cost", "coding cost", "engines"),
    Published("coding_prefix", "coding prefix URL", "engines"),
    Published("keep_warm_vllm", "keep_warm_vllm URL", "engines"),
    Published("kv_hints", "kv_hints", "engines"),
    Published("kv_hints_vllm", "kv_hints_vllm URL URL", "engines"),
    Published("quality", "quality", "engines"),
    Published("rollouts_sglang", "rollouts sglang", "engines"),
    Published("rollouts_sglang_claude_code", "rollouts sglang --program claude-code", "engines"),
    Published("rollouts_sglang_codex", "rollouts sglang --program codex", "engines"),
    Published("rollouts_vllm", "rollouts vllm", "engines"),
    Published("rollouts_vllm_claude_code", "rollouts vllm --program claude-code", "engines"),
    Published("rollouts_vllm_codex", "rollouts vllm --program codex", "engines"),
    Published("cluster_16", f"cluster --only scaling-cpu,cost,worker-processes {_out('cluster_16')}", "16 cores"),
    Published("dataset_kills", f"cluster.dataset 10000000,8,200 {_out('dataset_kills')}", "16 cores"),
    Published("dataset_scaling", f"cluster.dataset {_ACTORS} {_out('dataset_scaling')}", "16 cores"),
    Published("peers_16", f"peers --peers batch_agent,expert,gather --only {_LOOPS_16} {_out('peers_16')}", "16 cores"),
    _gpu("gpu", "inflight"),
    _gpu("gpu_kv_exclusive", "kv_exclusive_16,kv_keep_warm,kv_none,kv_16,kv_64", " --rounds 3"),
    _gpu(
        "gpu_kv_tiers",
        "kv_none,kv_workers,kv_keep_warm,kv_16,kv_64,kv_all,kv_plugin_16,kv_plugin_64,kv_plugin_none",
        " --rounds 3",
    ),
    _gpu("gpu_peers", "peers"),
    _gpu("gpu_pools", "pools"),
    _gpu("gpu_prompts", "prefix,layout,flows,resident"),
    _gpu("gpu_shared_results", "shared_results,shared_results_more,shared_results_roomy"),
    _gpu("gpu_watching", "watching"),
    _gpu("gpu_workers", "workers"),
)
