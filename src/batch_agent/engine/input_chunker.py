"""Inputs that do not fit the model's window, as jobs in parts that do."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..core.agent_config import Job
from ..plan.chunks import TextField, longest_text, part_task, placeholder, split, with_text
from .context_window import ContextWindow

_SAMPLE = 20_000
_USUAL_CHARS = 3.0
_MARGIN = 0.9
_TRIES = 10
_FEWEST_CHARS = 64
"""Shorter parts say nothing."""
_LEAST_SHARE = 16
"""If less than one part in so many of the room is left beside the rest of the task, splitting helps nobody."""
_ADVICE = "Shorten it, or use a model with a larger window."

Render = Callable[[int, Any], tuple[str, int]]
"""The task of the input at an index, and how much of it is shared."""


class InputChunker:
    """`oversized="chunk"`: the longest text of an input is cut where its structure allows."""

    def __init__(self, window: ContextWindow, render: Render, fields: Sequence[str]) -> None:
        """`fields`: those of an input that its task uses."""
        self._window = window
        self._render = render
        self._fields = fields

    async def fit(self, job: Job) -> Job:
        """The job as it is, in parts, or with a problem if no parts can be made that fit. The same input in the same
        window gives the same parts, as long as the server counts."""
        if job.problem is not None or (tokens := await self._window.overflow(job.task)) is None:
            return job
        found = longest_text(job.input, self._fields)
        if found is None:
            return self._window.refusal(job, tokens, f"It has no text that could be split. {_ADVICE}")
        tasks = await self._tasks(job, found)
        if tasks is None:
            return self._window.refusal(job, tokens, f"Without the text to split, too little room is left. {_ADVICE}")
        outline = self._rendered(job, found, placeholder(len(tasks)))
        return replace(job, task=outline, parts=tasks, shared=_shared(job, outline))

    async def _tasks(self, job: Job, found: TextField) -> tuple[str, ...] | None:
        """The tasks of the parts: as few as there can be, or None."""
        rest = await self._rest(job, found)
        spare = self._window.room - rest
        if spare <= 0 or spare < self._window.room / _LEAST_SHARE:
            return None
        most_chars = int(_MARGIN * spare * await self._chars_per_token(found.text))
        for _ in range(_TRIES):
            if most_chars < _FEWEST_CHARS:
                return None
            parts = split(found.text, most_chars)
            tasks = tuple(self._task(job, found, part, n, len(parts)) for n, part in enumerate(parts, 1))
            longest = await self._longest(tasks)
            if longest is None:
                return tasks
            most_chars = int(most_chars * _MARGIN * spare / max(1, longest - rest))
        return None

    def _task(self, job: Job, found: TextField, part: str, number: int, parts: int) -> str:
        return part_task(self._rendered(job, found, part), number, parts)

    def _rendered(self, job: Job, found: TextField, text: str) -> str:
        return self._render(job.index, with_text(job.input, found.steps, text))[0]

    async def _rest(self, job: Job, found: TextField) -> int:
        """Tokens of a part's task without its part of the text."""
        task = self._task(job, found, "", 1, 99)
        return await self._window.count(task) or int(len(task) / _USUAL_CHARS)

    async def _chars_per_token(self, text: str) -> float:
        sample = text[:_SAMPLE]
        tokens = await self._window.count(sample)
        return len(sample) / tokens if tokens else _USUAL_CHARS

    async def _longest(self, tasks: Sequence[str]) -> int | None:
        """About how many tokens the longest one has, if it does not fit."""
        async with asyncio.TaskGroup() as group:
            checks = [group.create_task(self._window.overflow(task, careful=True)) for task in tasks]
        return max((tokens for check in checks if (tokens := check.result()) is not None), default=None)


def _shared(job: Job, task: str) -> int:
    """What the job's task has in common with others, if this one begins like it."""
    return job.shared if task.startswith(job.task[: job.shared]) else 0
