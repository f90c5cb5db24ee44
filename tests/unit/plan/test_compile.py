"""Which schema goes where: to the server or into the prompt, never both, never twice."""

from typing import Any, Literal

import jsonschema_rs
import orjson
import pytest
from pydantic import BaseModel
from tests.support.plans import SEARCH, plan, rules, traits

from batch_agent.core.agent_config import AgentConfig
from batch_agent.core.errors import ErrorKind, SpecError
from batch_agent.core.messages import ToolSpec
from batch_agent.core.schema import JsonSchema

INJECTED = "It must fit this JSON schema:\n"


class City(BaseModel):
    name: str


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class Unit(BaseModel):
    unit: Literal["m"]


class Size(BaseModel):
    size: Unit


SAME_NAME = ToolSpec(
    "final",
    "",
    {
        "type": "object",
        "properties": {"u": {"$ref": "#/$defs/Unit"}},
        "required": ["u"],
        "$defs": {"Unit": {"enum": ["km"]}},
    },
)


def injected(made: AgentConfig) -> list[Any]:
    """The schemas in the prompt."""
    return [orjson.loads(part.partition("\n\n")[0]) for part in made.prompt.system.split(INJECTED)[1:]]


def fits(schema: JsonSchema | None, value: Any) -> bool:
    assert schema is not None
    return jsonschema_rs.validator_for(dict(schema)).is_valid(value)


def test_a_server_that_keeps_schemas_is_given_the_schema_and_the_prompt_is_not() -> None:
    made = rules(output=City)
    assert fits(made.turn_schema, {"name": "Roma"})
    assert not fits(made.turn_schema, {})
    assert made.last_turn_schema == made.turn_schema
    assert made.prompt.system == ""


def test_a_server_that_does_not_keep_schemas_finds_it_once_in_the_prompt() -> None:
    made = rules(output=City, traits=traits(json_schema=False), system_prompt="Be brief.")
    assert (made.turn_schema, made.last_turn_schema) == (None, None)
    assert made.output is not None
    assert injected(made) == [made.output.json_schema]
    assert made.prompt.system.startswith("Be brief.\n\nAnswer with JSON only")


def test_a_schema_that_would_make_tool_calls_impossible_goes_into_the_prompt() -> None:
    made = rules((SEARCH,), City, traits(beside_tools=False))
    assert made.turn_schema is None
    assert made.last_turn_schema is not None  # no call can be lost where none may be made
    assert len(injected(made)) == 1
    assert made.prompt.tools == (SEARCH,)


def test_a_schema_that_goes_with_tools_goes_to_the_server() -> None:
    made = rules((SEARCH,), City)
    assert fits(made.turn_schema, {"name": "Roma"})
    assert injected(made) == []
    assert made.prompt.tools == (SEARCH,)
    assert made.tool_mode == "native"


def test_without_an_output_type_no_schema_goes_anywhere() -> None:
    for tools in ((), (SEARCH,)):
        made = rules(tools)
        assert (made.turn_schema, made.last_turn_schema, made.output) == (None, None, None)
        assert made.prompt.system == ""


def test_in_action_mode_the_server_is_given_calls_and_the_answer_and_at_last_only_the_answer() -> None:
    made = rules((SEARCH,), City, traits(native_tools=False))
    call, final = {"tool": "search", "arguments": {"q": "x"}}, {"final": {"name": "Roma"}}
    assert made.tool_mode == "action"
    assert fits(made.turn_schema, call)
    assert fits(made.turn_schema, final)
    assert fits(made.last_turn_schema, final)
    assert not fits(made.last_turn_schema, call)
    nearly: list[Any] = [{"tool": "find", "arguments": {}}, {"tool": "search", "arguments": {}}, {"final": {}}, {}]
    for wrong in [*nearly, call | final]:
        assert not fits(made.turn_schema, wrong)


def test_in_action_mode_the_tools_are_words_in_the_prompt_and_nothing_else() -> None:
    made = rules((SEARCH,), City, traits(native_tools=False), system_prompt="Be brief.")
    assert made.prompt.tools == ()
    assert made.prompt.system.startswith(
        "Be brief.\n\nYou use tools. Reply with one JSON object.\nTools:\nsearch(q: str) - Finds pages.\n"
    )
    assert made.prompt.system.count("search") == 1
    assert injected(made) == []


def test_in_action_mode_without_schemas_the_prompt_holds_the_schema_once_and_the_server_none() -> None:
    made = rules((SEARCH,), City, traits(native_tools=False, json_schema=False))
    assert (made.turn_schema, made.last_turn_schema) == (None, None)
    (schema,) = injected(made)
    assert fits(schema, {"tool": "search", "arguments": {"q": "x"}})
    assert fits(schema, {"final": {"name": "Roma"}})


def test_in_action_mode_plain_text_is_a_final_text() -> None:
    made = rules((SEARCH,), None, traits(native_tools=False))
    assert fits(made.last_turn_schema, {"final": "text"})
    assert not fits(made.last_turn_schema, {"final": 5})


def test_definitions_of_a_tool_and_of_the_answer_do_not_collide() -> None:
    other = ToolSpec("other", "", {**SAME_NAME.parameters, "$defs": {"Unit": {"enum": ["s"]}}})
    made = rules((SAME_NAME, other), Size, traits(native_tools=False))
    for good in (
        {"tool": "final", "arguments": {"u": "km"}},
        {"tool": "other", "arguments": {"u": "s"}},
        {"final": {"size": {"unit": "m"}}},
    ):
        assert fits(made.turn_schema, good)
    for bad in (
        {"tool": "final", "arguments": {"u": "s"}},
        {"tool": "other", "arguments": {"u": "km"}},
        {"final": {"size": "km"}},
    ):
        assert not fits(made.turn_schema, bad)


@pytest.mark.parametrize("native_tools", [True, False])
@pytest.mark.parametrize("tools", [(), (SEARCH,)])
def test_a_recursive_answer_is_kept_by_the_server_in_every_mode(
    native_tools: bool, tools: tuple[ToolSpec, ...]
) -> None:
    made = rules(tools, Node, traits(native_tools=native_tools))
    key = "answer" if made.tool_mode == "native" else "final"
    for schema in (made.turn_schema, made.last_turn_schema):
        assert fits(schema, {key: {"value": 1, "children": [{"value": 2}]}})
        assert not fits(schema, {key: {"value": 1, "children": [{"value": "two"}]}})


@pytest.mark.parametrize(
    ("output", "good", "bad"),
    [
        (list[City], [{"name": "Roma"}], [{}]),
        (int, 5, "x"),
        (Literal["a", "b"], "a", "c"),
        (int | None, None, "x"),
        (City | None, None, {}),
        ({"type": "array", "items": {"type": "integer"}}, [1], ["x"]),
    ],
)
def test_an_answer_that_is_no_object_travels_inside_one(output: Any, good: Any, bad: Any) -> None:
    made = rules(output=output)
    assert made.turn_schema is not None
    assert made.turn_schema["type"] == "object"
    assert fits(made.turn_schema, {"answer": good})
    assert not fits(made.turn_schema, {"answer": bad})
    assert not fits(made.turn_schema, good)


def test_an_answer_that_is_no_object_is_asked_for_as_it_is_in_the_prompt() -> None:
    made = rules(output=list[int], traits=traits(json_schema=False))
    assert injected(made) == [{"type": "array", "items": {"type": "integer"}}]


@pytest.mark.parametrize(
    ("wanted", "native_tools", "mode"),
    [
        ("auto", True, "native"),
        ("auto", False, "action"),
        ("action", True, "action"),
        ("action", False, "action"),
        ("native", True, "native"),
    ],
)
def test_the_tool_mode_is_what_was_asked_for_or_what_the_server_can(wanted: str, native_tools: bool, mode: str) -> None:
    assert rules((SEARCH,), None, traits(native_tools=native_tools), tool_mode=wanted).tool_mode == mode


def test_native_tools_are_refused_where_the_server_has_none() -> None:
    with pytest.raises(SpecError, match=r"tool_mode='native', but fake does not support tool calls\. Use tool_mode="):
        rules((SEARCH,), None, traits(native_tools=False), tool_mode="native")


@pytest.mark.parametrize("wanted", ["auto", "native", "action"])
def test_without_tools_the_tool_mode_is_not_a_question(wanted: str) -> None:
    made = rules((), City, traits(native_tools=False), tool_mode=wanted)
    assert made.tool_mode == "native"
    assert made.prompt.system == ""
    assert fits(made.turn_schema, {"name": "Roma"})


def test_the_rest_of_the_rules_is_what_the_spec_says() -> None:
    made = rules(max_turns=3, max_retries=2, streaming=True, temperature=0.5, model="m")
    assert (made.max_turns, made.max_retries, made.stream, made.model) == (3, 2, True, "m")
    assert made.sampling.temperature == 0.5
    assert rules().model == "default-model"


def test_all_jobs_of_a_plan_share_the_rules_and_are_asked_their_own_task() -> None:
    made = plan(task="Do {it}")
    jobs = [made.job(index, value) for index, value in enumerate(["a", {"it": "b"}])]
    assert [(job.index, job.task, job.problem) for job in jobs] == [(0, "Do a", None), (1, "Do b", None)]


def test_an_input_that_does_not_fit_the_task_is_a_job_that_says_so() -> None:
    job = plan().job(7, {"that": 1})
    assert job.task == ""
    assert job.problem is not None
    assert job.problem.kind is ErrorKind.BAD_INPUT
    assert job.problem.message.startswith("Input 7: The task names the field {it}")
    assert "write {{it}}" in job.problem.message
