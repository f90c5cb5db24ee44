"""Builders of conversations and of the facts that are applied to them."""

from typing import Any

from pydantic import BaseModel

from batch_agent.agent.conversation import CallTools, Conversation, Done, Generate
from batch_agent.agent.output import output_type
from batch_agent.core.agent_config import AgentConfig, Compaction, Job, ToolMode
from batch_agent.core.facts import Replied, Returned
from batch_agent.core.messages import Prompt, ToolCall, ToolResult, ToolSpec
from batch_agent.core.requests import FinishReason, Reply, Request, Sampling, Usage
from batch_agent.core.results import AgentResult

TURN: dict[str, Any] = {"type": "object", "description": "any turn"}
LAST: dict[str, Any] = {"type": "object", "description": "the last turn"}
LOOK = ToolSpec("look", "Looks.", {"type": "object"})


class City(BaseModel):
    name: str


def rules(
    output: Any = None,
    mode: ToolMode = "native",
    turns: int = 5,
    retries: int = 3,
    max_tokens: int | None = None,
    compaction: Compaction | None = None,
) -> AgentConfig:
    return AgentConfig(
        prompt=Prompt("Be brief.", (LOOK,) if mode == "native" else ()),
        model="m",
        sampling=Sampling(max_tokens=max_tokens),
        tool_mode=mode,
        output=output_type(output),
        turn_schema=TURN,
        last_turn_schema=LAST,
        max_turns=turns,
        max_retries=retries,
        compaction=compaction,
    )


def talk(output: Any = None, **options: Any) -> Conversation:
    return Conversation(rules(output, **options), Job(3, "key", {"it": 1}, "Do it."))


def say(text: str, finish: FinishReason = "stop", *calls: ToolCall, **more: Any) -> Replied:
    return Replied(Reply(text, finish, Usage(10, 4, 2), calls, **more))


def call(arguments: str = "{}", id: str = "c1", name: str = "look", text: str = "") -> Replied:
    return say(text, "calls", ToolCall(id, name, arguments))


def give(step: object, content: str = "seen", is_error: bool = False) -> Returned:
    """What the tools return for the calls of a step."""
    assert isinstance(step, CallTools)
    return Returned(tuple(ToolResult(wanted, content, is_error, 0.5) for wanted in step.calls), 0.5)


def asked(talk: Conversation) -> Request:
    step = talk.next()
    assert isinstance(step, Generate)
    return step.request


def done(talk: Conversation) -> AgentResult:
    assert isinstance(talk.next(), Done)
    return talk.result(1.5)
