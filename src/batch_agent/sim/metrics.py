"""The /metrics page, with vLLM's names."""

import time

from .engine import Engine


def metrics_text(engine: Engine, http_requests: int) -> bytes:
    """`http_requests`: how many asked for answers; a list of prompts is one of them, and many to the engine."""
    config, scheduler, counters = engine.config, engine.scheduler, engine.counters
    who = f'{{engine="0",model_name="{config.model}"}}'
    caches = "" if config.prefix_caching else 'enable_prefix_caching="False",'
    cache = f'{{block_size="{config.block_size}",{caches}engine="0",num_gpu_blocks="{config.num_blocks}"}}'
    lines = [
        *_metric("vllm:num_requests_running", "gauge", who, len(scheduler.running)),
        *_metric("vllm:num_requests_waiting", "gauge", who, scheduler.waiting),
        *_metric("vllm:kv_cache_usage_perc", "gauge", who, engine.pool.used / engine.pool.num_blocks),
        *_metric("vllm:prefix_cache_queries_total", "counter", who, scheduler.query_tokens),
        *_metric("vllm:prefix_cache_hits_total", "counter", who, scheduler.hit_tokens),
        *_metric("vllm:num_preemptions_total", "counter", who, scheduler.preemptions),
        *_metric("vllm:prompt_tokens_total", "counter", who, counters.prompt_tokens),
        *_metric("vllm:generation_tokens_total", "counter", who, counters.generation_tokens),
        *_metric("vllm:request_success_total", "counter", who, counters.finished),
        *_metric("vllm:cache_config_info", "gauge", cache, 1),
        *_metric("sim:requests_aborted_total", "counter", who, counters.aborted),
        *_metric("sim:http_requests_total", "counter", who, http_requests),
        *_metric("process_cpu_seconds_total", "counter", "", time.process_time()),
    ]
    return ("\n".join(lines) + "\n").encode()


def _metric(name: str, kind: str, labels: str, value: float) -> tuple[str, str]:
    family = name.removesuffix("_total") if kind == "counter" else name
    return f"# TYPE {family} {kind}", f"{name}{labels} {float(value)!r}"
