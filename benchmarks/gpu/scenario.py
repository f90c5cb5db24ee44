"""What the agents of a measurement say and do: known beforehand, and the same for whoever drives them."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from batch_agent import Tool

from .turn_recorder import Watch

TOOL = "look_up"


@dataclass(frozen=True, slots=True)
class Scene:
    """Agents that each call a tool on every turn but the last."""

    tasks: tuple[str, ...]
    """The first message of each agent; all differ."""
    turns: int
    output: int
    """Tokens that the server generates for every answer."""
    system: str | None = None
    said: str = ""
    """What stands in the conversation beside a call."""
    result: str = ""
    key: Callable[[int, int], str] = lambda agent, turn: f"{agent}-{turn}"
    """The tool's argument, for an agent and a turn."""
    seconds: Callable[[str], float] = lambda key: 0.0
    """How long the tool takes."""
    shares_tools: bool = False
    text: Callable[[str], str] | None = None
    """What the tool returns for a key, if not the same for all."""
    numbers: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", {task: number for number, task in enumerate(self.tasks)})

    def is_last(self, turn: int) -> bool:
        return turn >= self.turns - 1

    def arguments(self, agent: int, turn: int) -> str:
        return orjson.dumps({"key": self.key(agent, turn)}).decode()

    async def look_up(self, key: str, watch: Watch) -> str:
        await asyncio.sleep(self.seconds(key))
        watch.tool_done(key)
        return self.result if self.text is None else self.text(key)

    def tool(self, watch: Watch) -> Tool:
        async def look_up(key: str) -> str:
            """Looks a key up."""
            return await self.look_up(key, watch)

        return Tool.define(name=TOOL, effect="read" if self.shares_tools else "write")(look_up)


def between(least: float, most: float) -> Callable[[str], float]:
    """Tool times spread evenly, and the same for the same key."""
    return lambda key: random.Random(key).uniform(least, most)
