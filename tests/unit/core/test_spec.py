"""A spec says what is wrong with it before anything is sent."""

from collections.abc import AsyncIterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from batch_agent import Tool
from batch_agent.core.errors import SpecError
from batch_agent.core.options import ContextLimits, Limits, Prefix, Retry, Rows, SpendingLimits, Timeouts, ToolCaching
from batch_agent.core.options.evaluation import Evaluation
from batch_agent.core.requests import Sampling
from batch_agent.core.spec import OPTION_NAMES, BatchSpec
from batch_agent.core.validation import nearest

# One value per option that is not the default: (flat name, group, member, value).
OPTIONS: list[tuple[str, str, str, Any]] = [
    ("max_inflight", "limits", "max_inflight", 7),
    ("max_concurrent", "limits", "max_inflight", 7),
    ("max_dispatched", "limits", "max_agents", 8),
    ("max_agents", "limits", "max_agents", 8),
    ("max_turns", "limits", "max_turns", 9),
    ("timeout_per_agent", "timeouts", "agent", 11.0),
    ("timeout_per_turn", "timeouts", "turn", 12),
    ("timeout_per_tool", "timeouts", "tool", None),
    ("max_retries", "retry", "max_retries", 0),
    ("backoff", "retry", "backoff", 0.25),
    ("backoff_max", "retry", "backoff_max", 4.0),
    ("retry_failed", "retry", "retry_failed", False),
    ("limit", "rows", "limit", 3),
    ("sample", "rows", "sample", 3),
    ("sample_seed", "rows", "sample_seed", 7),
    ("where", "rows", "where", "stars > 2"),
    ("input_format", "rows", "input_format", "csv"),
    ("encoding", "rows", "encoding", "cp1252"),
    ("key", "rows", "key", "id"),
    ("images", "rows", "images", ("photo",)),
    ("max_tool_tokens", "context", "max_tool_tokens", 100),
    ("streaming", "context", "streaming", True),
    ("streaming_tool_dispatch", "context", "streaming_tool_dispatch", True),
    ("priority", "limits", "priority", -3),
    ("backpressure_ceiling", "limits", "backpressure_ceiling", 16),
    ("rpm", "limits", "rpm", 500),
    ("tpm", "limits", "tpm", 30_000),
    ("calibrate_backend", "limits", "calibrate_backend", True),
    ("context_tokens", "context", "context_tokens", 4096),
    ("oversized", "context", "oversized", "chunk"),
    ("compact_at", "context", "compact_at", None),
    ("compact_with", "context", "compact_with", "summarize"),
    ("kvflow", "prefix", "kvflow", True),
    ("shared_results", "prefix", "shared_results", "auto"),
    ("hoist", "prefix", "hoist", False),
    ("reorder", "prefix", "reorder", False),
    ("strict_prefix", "prefix", "strict_prefix", True),
    ("strip_preamble", "prefix", "strip_preamble", False),
    ("cache_salt", "prefix", "cache_salt", "mine"),
    ("warm_prefix", "prefix", "warm_prefix", True),
    ("tool_cache_mb", "tool_caching", "tool_cache_mb", 8),
    ("max_total_tokens", "spending", "max_total_tokens", 1000),
    ("max_usd", "spending", "max_usd", 0.5),
    ("deadline", "spending", "deadline", 60.0),
    ("prices", "spending", "prices", {"m": (1.0, 0.1, 2.0)}),
    ("tool_cache_dir", "tool_caching", "tool_cache_dir", Path("cache")),
    ("system_prompt", "prefix", "system_prompt", "Be brief."),
    ("tool_mode", "prefix", "tool_mode", "action"),
    ("temperature", "sampling", "temperature", 0.5),
    ("top_p", "sampling", "top_p", 0.9),
    ("seed", "sampling", "seed", 1),
    ("max_tokens", "sampling", "max_tokens", 64),
    ("stop", "sampling", "stop", ("END",)),
    ("extra", "sampling", "extra", {"min_p": 0.1}),
    ("samples", "evaluation", "samples", 3),
    ("models", "evaluation", "models", ("a", "b")),
    ("score", "evaluation", "score", ("exact:label",)),
]
GROUPS: dict[str, Any] = {
    "rows": Rows,
    "limits": Limits,
    "timeouts": Timeouts,
    "retry": Retry,
    "context": ContextLimits,
    "prefix": Prefix,
    "tool_caching": ToolCaching,
    "spending": SpendingLimits,
    "sampling": Sampling,
    "evaluation": Evaluation,
}


def spec(**options: Any) -> BatchSpec:
    return BatchSpec.of(task="Do {it}", inputs=["a"], **options)


def test_a_flat_option_and_its_group_make_the_same_spec() -> None:
    for flat, group, member, value in OPTIONS:
        short = spec(**{flat: value})
        assert getattr(getattr(short, group), member) == value, flat
        assert asdict(short) == asdict(spec(**{group: GROUPS[group](**{member: value})})), flat
        assert asdict(short) != asdict(spec()), flat


def test_every_field_of_every_group_has_a_flat_option() -> None:
    reached = {(group, member) for _, group, member, _ in OPTIONS}
    # these make sense only together with another option, and have tests of their own
    reached |= {("tool_caching", "predictive_prewarm"), ("context", "compact_model")}
    assert reached == {(name, field.name) for name, group in GROUPS.items() for field in fields(group)}


def test_options_that_are_not_given_have_their_default() -> None:
    plain = spec()
    assert (plain.limits, plain.timeouts, plain.retry) == (Limits(), Timeouts(), Retry())
    assert (plain.context, plain.prefix) == (ContextLimits(), Prefix())
    assert plain.backend == "local://"
    assert (plain.tools, plain.output_schema, plain.model) == ((), None, None)
    assert (plain.checkpoint_dir, plain.on_result) == (None, None)


def test_of_and_the_constructor_make_the_same_spec() -> None:
    options: dict[str, Any] = {"tools": [len, min], "checkpoint_dir": "runs/1"}
    short, long = spec(**options), BatchSpec("Do {it}", ["a"], **options)
    assert asdict(short) == asdict(long)
    assert long.tools == (len, min)
    assert long.checkpoint_dir == Path("runs/1")


def test_tools_may_come_from_a_generator_or_be_none() -> None:
    assert spec(tools=(tool for tool in [len, min])).tools == (len, min)
    assert spec(tools=None).tools == ()
    with pytest.raises(SpecError, match=r"got one Tool: write tools=\["):
        spec(tools=Tool.read_file)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("max_turn", "max_turns"),
        ("temprature", "temperature"),
        ("output_scheme", "output_schema"),
        ("timeout_per_agents", "timeout_per_agent"),
        ("concurrent", "max_concurrent"),
    ],
)
def test_an_unknown_option_is_named_with_a_suggestion(wrong: str, meant: str) -> None:
    with pytest.raises(SpecError, match=rf"Unknown option '{wrong}'\. Did you mean .*'{meant}'"):
        spec(**{wrong: 1})


def test_an_option_without_a_similar_name_gets_no_suggestion() -> None:
    with pytest.raises(SpecError, match=r"^Unknown option 'zzz'\.$"):
        spec(zzz=1)


@pytest.mark.parametrize(("flat", "group", "member", "value"), OPTIONS)
def test_a_group_and_one_of_its_options_cannot_both_be_given(flat: str, group: str, member: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"{group}= and {flat}= set the same options"):
        spec(**{flat: value, group: GROUPS[group]()})


def test_two_names_of_one_option_cannot_both_be_given() -> None:
    with pytest.raises(SpecError, match=r"^max_inflight= and max_concurrent= set the same.*keep max_inflight=.$"):
        spec(max_inflight=4, max_concurrent=8)
    with pytest.raises(SpecError, match=r"^max_dispatched= and max_agents= set the same.*keep max_agents=.$"):
        spec(max_dispatched=4, max_agents=8)


def test_an_error_about_a_former_spelling_names_both() -> None:
    with pytest.raises(SpecError, match=r"^max_concurrent= is max_inflight=: max_inflight must be an integer"):
        spec(max_concurrent=0)


def test_the_spec_constructor_accepts_flat_options_and_exposes_them() -> None:
    flat: Any = BatchSpec
    made = flat("Do {it}", ["a"], max_turns=4, max_concurrent=3, timeout_per_tool=7)
    assert asdict(made) == asdict(spec(max_turns=4, max_inflight=3, timeout_per_tool=7))
    assert (made.max_turns, made.max_concurrent, made.timeout_per_tool, made.system_prompt) == (4, 3, 7, None)
    with pytest.raises(SpecError, match=r"^Unknown option 'max_turnz'\. Did you mean 'max_turns'\?$"):
        flat("Do {it}", ["a"], max_turnz=4)
    with pytest.raises(AttributeError, match=r"^A BatchSpec has no 'node_id'\. batch-agent 0\.2 had this name; now "):
        _ = made.node_id


@pytest.mark.parametrize("name", ["reduce", "node_id", "min_response_tokens"])
def test_a_name_that_shares_only_a_part_is_not_suggested(name: str) -> None:
    assert nearest(name, OPTION_NAMES) == []


@pytest.mark.parametrize("missing", ["task", "inputs"])
def test_the_task_and_the_inputs_must_be_given(missing: str) -> None:
    options: dict[str, Any] = {"task": "Do {it}", "inputs": ["a"]}
    del options[missing]
    with pytest.raises(SpecError, match=f"^{missing}= is missing"):
        BatchSpec.of(**options)


@pytest.mark.parametrize("task", ["", "  \n", None, 5, ["Do {it}"]])
def test_the_task_must_be_a_string_that_says_something(task: Any) -> None:
    with pytest.raises(SpecError, match="task must be a string"):
        BatchSpec.of(task=task, inputs=[])


@pytest.mark.parametrize("inputs", ["one", b"one", {"a": 1}])
def test_one_input_is_not_a_list_of_inputs(inputs: Any) -> None:
    with pytest.raises(SpecError, match=rf"not one {type(inputs).__name__}: write inputs=\[\.\.\.\]"):
        BatchSpec.of(task="Do {it}", inputs=inputs)


@pytest.mark.parametrize("inputs", [5, None, object()])
def test_inputs_must_be_iterable(inputs: Any) -> None:
    with pytest.raises(SpecError, match="inputs must be iterable"):
        BatchSpec.of(task="Do {it}", inputs=inputs)


async def test_inputs_may_come_lazily_and_are_not_read_by_the_spec() -> None:
    async def slowly() -> AsyncIterator[str]:
        yield "a"

    lazy, slow = iter(["a"]), slowly()
    assert BatchSpec.of(task="Do {it}", inputs=lazy).inputs is lazy
    assert next(lazy) == "a"
    assert BatchSpec.of(task="Do {it}", inputs=slow).inputs is slow
    await anext(slow)
    assert [value async for value in slow] == []


NOT_A_COUNT = [0, -1, True, 1.5, "3", None]


@pytest.mark.parametrize("value", NOT_A_COUNT)
@pytest.mark.parametrize("name", ["max_tool_tokens"])
def test_a_count_is_a_whole_number_of_at_least_one(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"^{name} must be an integer >= 1; got"):
        spec(**{name: value})


@pytest.mark.parametrize("value", NOT_A_COUNT[:-1])
@pytest.mark.parametrize("name", ["max_tokens", "max_turns"])
def test_an_optional_limit_is_none_or_a_count(name: str, value: Any) -> None:
    assert spec(**{name: None}) is not None
    with pytest.raises(SpecError, match=f"^{name} must be an integer >= 1; got"):
        spec(**{name: value})


@pytest.mark.parametrize("value", [0, -2, True, 1.5, "3"])
@pytest.mark.parametrize("name", ["max_inflight", "max_agents"])
def test_a_limit_of_agents_or_requests_is_a_count(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"^{name} must be an integer >= 1; got"):
        spec(**{name: value})


@pytest.mark.parametrize("value", [-1, True, 1.5, "3"])
def test_a_ceiling_for_the_queue_is_a_count(value: Any) -> None:
    with pytest.raises(SpecError, match=r"^backpressure_ceiling must be an integer >= 1; got"):
        spec(backpressure_ceiling=value)


def test_former_values_for_no_limit_are_still_accepted() -> None:
    assert spec(max_inflight=-1, max_dispatched=-1, backpressure_ceiling=0).limits == Limits()


@pytest.mark.parametrize("value", [-1, True, 1.5, "3", None])
def test_retries_are_a_whole_number_that_may_be_zero(value: Any) -> None:
    with pytest.raises(SpecError, match=r"^max_retries must be an integer >= 0"):
        spec(max_retries=value)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "60", True])
@pytest.mark.parametrize("name", ["timeout_per_agent", "timeout_per_turn", "timeout_per_tool"])
def test_a_timeout_must_be_positive(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"^{name} must be more than 0 seconds, or None"):
        spec(**{name: value})


@pytest.mark.parametrize(
    "options",
    [
        {"backoff": 0},
        {"backoff": -1.0},
        {"backoff": "1"},
        {"backoff": float("nan")},
        {"backoff": 31.0},
        {"backoff_max": 0.4},
        {"backoff_max": None},
    ],
)
def test_the_backoff_must_be_between_zero_and_its_maximum(options: dict[str, Any]) -> None:
    with pytest.raises(
        SpecError, match=r"^backoff must be between 0 and backoff_max|^backoff_max must be more than 0 seconds"
    ):
        spec(**options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", 1.1),
        ("seed", 1.5),
        ("seed", True),
        ("stop", "END"),
        ("stop", None),
        ("stop", [1]),
        ("extra", ["min_p"]),
        ("system_prompt", 5),
        ("tool_mode", "natve"),
        ("model", 5),
        ("tools", len),
        ("tools", "search"),
        ("on_result", "print"),
        ("limits", {"max_turns": 3}),
        ("sampling", None),
    ],
)
def test_an_option_of_the_wrong_type_is_named(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"^{name} must be"):
        spec(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 0), ("top_p", 1), ("stop", ["END"]), ("seed", 0), ("max_retries", 0)]
)
def test_edge_values_of_options_are_accepted(name: str, value: Any) -> None:
    assert spec(**{name: value}) is not None


@pytest.mark.parametrize(
    ("extra", "advice"),
    [
        ({"n": 3}, r"an agent has one answer.*repeat the input: inputs=\[text\] \* 3"),
        ({"best_of": 2}, "best_of=2: an agent has one answer"),
        ({"max_tokens": 5}, "pass max_tokens="),
        ({"tools": []}, "pass tools="),
        ({"messages": []}, "task= and inputs="),
        ({"stream": True}, "pass streaming=True"),
    ],
)
def test_a_field_that_the_run_sets_is_refused_with_what_to_do(extra: dict[str, Any], advice: str) -> None:
    with pytest.raises(SpecError, match=rf"^extra must not hold .*{advice}"):
        spec(extra=extra)


def test_a_response_format_is_the_callers_unless_there_is_a_schema() -> None:
    extra = {"response_format": {"type": "json_object"}, "n": 1, "top_k": 5, "thinking": {"type": "enabled"}}
    assert spec(extra=extra).sampling.extra == extra
    with pytest.raises(SpecError, match=r"'response_format', which output_schema= sets: keep one of them"):
        spec(extra=extra, output_schema=int)
