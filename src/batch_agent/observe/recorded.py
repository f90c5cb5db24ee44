"""What a checkpoint tells of a run: its rules, as far as its plan describes them, and its agents' results."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from ..agent.conversation import Conversation, Done
from ..agent.output import output_type
from ..core.facts import Compacted, Fact, Replied, Returned, Started
from ..core.options import Retry
from ..core.prompt import Prompt, ToolSpec
from ..core.requests import Sampling
from ..core.results import AgentResult
from ..core.rules import ACTION_ARGUMENTS, ACTION_FINAL, ACTION_TOOL, WRAPPED_ANSWER, Job, Rules
from ..core.schema import JsonSchema, is_object

USUAL_RETRIES = Retry().max_retries
"""A plan does not say how often an unusable answer was asked for again: it changes no answer."""

_INJECTED = "It must fit this JSON schema:\n"
_TEXT = {"type": "string"}


def recorded_rules(plan: Mapping[str, Any], output_schema: Any = None, max_retries: int | None = None) -> Rules:
    """The rules of the run that kept this plan. Its output schema is known as JSON only: answers are plain data, unless
    the run's own type is given, and what such a type converts, fills in or checks beyond its schema is not known."""
    turn, last = plan["output schema"]
    return Rules(
        prompt=Prompt(plan["system prompt"], recorded_tools(plan)),
        model=plan["model"],
        sampling=recorded_sampling(plan),
        tool_mode=plan["tool mode"],
        output=output_type(answer_schema(plan) if output_schema is None else output_schema),
        turn_schema=turn,
        last_turn_schema=last,
        max_turns=plan["max_turns"],
        max_retries=USUAL_RETRIES if max_retries is None else max_retries,
    )


def recorded_sampling(plan: Mapping[str, Any]) -> Sampling:
    sampling = dict(plan["sampling"])
    return Sampling(**{**sampling, "stop": tuple(sampling["stop"])})


def recorded_tools(plan: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """The tools as the model saw them. In action mode the plan has their names and parameters in its schema only."""
    if plan["tool mode"] == "native":
        return tuple(ToolSpec(tool["name"], tool["description"], tool["parameters"]) for tool in plan["tools"])
    choices = (plan["output schema"][0] or _injected(plan) or {}).get("anyOf", ())
    calls = [choice["properties"] for choice in choices if ACTION_TOOL in choice["properties"]]
    return tuple(ToolSpec(call[ACTION_TOOL]["const"], "", call[ACTION_ARGUMENTS]) for call in calls)


def answer_schema(plan: Mapping[str, Any]) -> JsonSchema | None:
    """What each answer had to be; None where it was the model's text."""
    kept: JsonSchema | None = plan["output schema"][1]
    if plan["tool mode"] == "action":
        asked = kept or _final_choice(_injected(plan))
        answer = _part(asked, ACTION_FINAL) if asked else None
        return None if answer == _TEXT else answer
    if kept is None:
        return _injected(plan)
    return _part(kept, WRAPPED_ANSWER) if _is_wrapped(kept) else kept


def retold(rules: Rules, key: str, facts: Sequence[Fact]) -> Conversation:
    """The agent's conversation as far as it went. Other agents than those with facts have none."""
    talk = Conversation(rules, recorded_job(key, facts))
    talk.replay(facts)
    return talk


def recorded_job(key: str, facts: Sequence[Fact]) -> Job:
    started = facts[0]
    assert isinstance(started, Started), "an agent's first fact is its start"
    return Job(started.index, key, started.input, started.task)


def recorded_result(rules: Rules, key: str, facts: Sequence[Fact]) -> AgentResult | None:
    """The result of an agent whose facts tell its end, or None."""
    talk = retold(rules, key, facts)
    if not isinstance(talk.next(), Done):
        return None
    return talk.result(recorded_seconds(facts))


def recorded_seconds(facts: Sequence[Fact]) -> float:
    """What an agent's turns and calls took, without its waiting."""
    return sum(fact.seconds for fact in facts if isinstance(fact, Replied | Returned | Compacted))


def _injected(plan: Mapping[str, Any]) -> JsonSchema | None:
    """The schema that the end of the system prompt asks to keep to, where the server does not see to it."""
    _, found, text = plan["system prompt"].rpartition(_INJECTED)
    if not found:
        return None
    try:
        schema = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return schema if isinstance(schema, dict) else None


def _final_choice(schema: JsonSchema | None) -> JsonSchema | None:
    """Of the actions of a turn, the one that ends the agent."""
    if schema is None:
        return None
    return {**schema["anyOf"][-1], "$defs": schema.get("$defs", {})}


def _is_wrapped(schema: JsonSchema) -> bool:
    """Whether the object was put around an answer that is none itself (plan/compile.py)."""
    properties = schema.get("properties", {})
    if set(properties) != {WRAPPED_ANSWER} or schema.get("additionalProperties") is not False:
        return False
    return not is_object(properties[WRAPPED_ANSWER]) and all(
        name.startswith(WRAPPED_ANSWER) for name in schema.get("$defs", {})
    )


def _part(schema: JsonSchema, name: str) -> JsonSchema:
    """A part of an object as a schema of its own."""
    definitions = schema.get("$defs") or {}
    part = schema["properties"][name]
    if part == {"$ref": f"#/$defs/{name}"}:  # it refers to its own root
        part = definitions[name]
    return {**part, "$defs": definitions} if definitions else part
