"""What agents do in the cluster benchmark: two turns, with calls of one tool between them."""

import asyncio
import json
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from batch_agent import Tool

TASK = "{it}"


@dataclass(frozen=True, slots=True)
class Agents:
    """So many of them."""

    number: int
    calls: int = 1
    """Of the tool, by each agent."""
    keys: int = 0
    """What the calls are about: one of so many things. 0: each call about another one."""
    effect: Literal["read", "write"] = "read"
    tool_s: float = 0.0
    is_told: bool = True
    """The engine is told what to answer, so that answers can be checked. Otherwise it answers by its script."""

    def inputs(self, shard: tuple[int, int] = (0, 1)) -> list[dict[str, str]]:
        """All, or those of one shard: its number, and how many there are."""
        return [{"it": self.text(agent)} for agent in range(shard[0], self.number, shard[1])]

    def text(self, agent: int) -> str:
        asked = f"Look up item {agent}."
        if not self.is_told:
            return asked
        calls = [{"name": "look", "arguments": {"key": key}} for key in self._wanted(agent)]
        return f"[[sim: {json.dumps([{'calls': calls}, {'text': self.answer(agent)}])}]] {asked}"

    def answer(self, agent: int) -> str:
        """From 3 to 18 tokens, so that agents do not end in step."""
        return f"answer {agent}" + "." * Random(f"answer {agent}").randint(0, 60)

    def is_right(self, agent: int, answer: Any) -> bool:
        return answer == self.answer(agent) if self.is_told else bool(answer)

    def tool(self, notes: str | None) -> Tool:
        """`notes`: a file that gets a line for each execution, with its key."""

        async def look(key: str) -> str:
            """Look a key up."""
            if notes is not None:
                with open(notes, "a") as file:
                    file.write(f"{key}\n")
            if self.tool_s:
                await asyncio.sleep(self.tool_s)
            return f"the value of {key}"

        return Tool.define(effect=self.effect)(look)

    def _wanted(self, agent: int) -> list[str]:
        numbers = range(agent * self.calls, (agent + 1) * self.calls)
        return [str(number % self.keys if self.keys else number) for number in numbers]
