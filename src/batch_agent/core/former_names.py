"""Names of batch-agent 0.2 that have another name now, or none. docs/migration/from-0.2.md has the same tables.

Names that work as they did are in none of them."""

from collections.abc import Mapping

FORMER: Mapping[str, Mapping[str, str]] = {
    "option": {
        "no_hoist": "write `hoist=False`",
        "model_max_context": "write `context_tokens=`, or leave it out: the server is asked",
        "min_response_tokens": "leave it out: `max_tokens=` is the room that is kept for an answer",
        "nvext_agent_hints": "leave it out: Dynamo (`dynamo://`) is always sent them, with `priority=`",
        "compaction_backend_url": "write `compact_with='summarize'`, and `compact_model=` for another model",
        "reduce": "call `BatchAgent.run_with_reduce(reduce=...)`",
        "reduce_schema": "call `BatchAgent.run_with_reduce(reduce=..., reduce_schema=...)`",
        "distributed": "write `store='redis://HOST:6379/0'`, and start `batch-agent worker` elsewhere",
        "node_id": "leave it out: workers find a name of their own; `store=` and `run_id=` name the run",
        "diff_kv": "leave it out: no change of the server is needed",
        "effective_max_inflight": "read `spec.limits.max_inflight`; None: it is found while the run goes",
    },
    "runtime option": {
        "opencode_bin": "write `command=`",
        "working_dir": "write `workdir=`: each agent works in a copy of it, and `result.changes` has what it changed",
        "model_alias": "leave it out: OpenCode is told the model's own name",
        "context_limit": "leave it out: OpenCode is told the server's window, or `context_tokens=` of `BatchAgent.run`",
        "output_limit": "write `max_tokens=` of `BatchAgent.run`",
        "temperature": "write `temperature=`, a number, of `BatchAgent.run`",
        "tool_call": "leave it out: OpenCode always calls tools; `tools=` says which",
        "extra_env": "write `env=`",
    },
    "tool option": {
        "cache_key_func": "write `version=`, a function of the arguments: results are shared while it gives the same",
        "batch_query": "leave it out: `Tool.batchable(key_arg=...)` takes a function of a list of keys, and "
        "`sql_lookup_tool(...)` makes one of a query",
        "func": "read `function`",
        "cacheable": "read `sharing.is_shared`",
        "rate_limit": "read `pace.rate_limit`",
        "key_arg": "read `batch`",
        "registry": "pass the object that `@Tool.define` gives, as in `tools=[search]`",
    },
    "result field": {
        "attempts": "read `turns` and `usage`: requests that were sent again are no attempts of an agent",
        "type": "read `kind`, an `ErrorKind`, where 0.2 had the name of an exception class",
    },
    "command option": {
        "spec": "write its options into batch.toml or a .yaml file and its inputs into a .jsonl file, then "
        "`batch-agent run --config FILE`",
        "output": "write `--out FILE`; it is results.jsonl if not given, and never the standard output",
        "checkpoint_dir": "write `--checkpoint FOLDER`",
        "output_schema": "write `--schema`, with a JSON schema file or module:Model",
        "max_concurrent": "write `--max-inflight`",
        "max_dispatched": "write `--max-agents`",
        "model_max_context": "leave it out: the server is asked",
        "compaction_backend_url": "leave it out: an option of `BatchAgent.run` (`compact_with=`) does this",
        "nvext_agent_hints": "leave it out: Dynamo (`dynamo://`) is always sent them",
        "distributed": "write `--store redis://HOST:6379/0`, and start `batch-agent worker` elsewhere",
    },
}
