"""Helpers of the flow tests: scripts that answer with the prompt, and readers of reduce prompts."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.engine_harness import asked

from batch_agent.core.requests import Request, Usage
from batch_agent.testing import Answer, ScriptedBackend, say


def prompts(backend: ScriptedBackend, *, beginning: str = "") -> list[str]:
    return [asked(request) for request in backend.requests if asked(request).startswith(beginning)]


def entries(prompt: str) -> list[Any]:
    """What an agent that reduces was shown."""
    listed: list[Any] = json.loads(prompt[prompt.index("[\n{") :].rsplit("\n]", 1)[0] + "\n]")
    return listed


def leaves(prompt: str) -> list[Any]:
    """The results behind a reduce whose partial answers, as those of `joining`, are the results that they saw."""
    seen: list[Any] = []
    for entry in entries(prompt):
        seen += entry["output"].split() if entry["status"] == "merged" else [str(entry["index"])]
    return seen


def joining(request: Request) -> Answer:
    """Reduces ("Join ...") answer with the numbers of all results behind them, others with a text of 100 characters."""
    task = asked(request)
    return say(" ".join(leaves(task)) if task.startswith("Join") else "x" * 100, Usage(10, 0, 5))


def saying(answers: Mapping[str, Any] | Callable[[str], Any]) -> Callable[[Request], Answer]:
    """A script by what the task begins with: texts as they are, the rest as JSON."""

    def answer(request: Request) -> Answer:
        task = asked(request)
        if callable(answers):
            given = answers(task)
        else:
            given = next((value for begin, value in answers.items() if re.match(begin, task)), "ok")
        given = given(task) if callable(given) else given
        return given if isinstance(given, Answer) else say(given if isinstance(given, str) else json.dumps(given))

    return answer
