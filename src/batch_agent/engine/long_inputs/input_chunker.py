"""Input chunker: splits inputs that do not fit the context window into parts that do."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...core.agent_config import Job
from ...plan.chunks import TextField, longest_text, part_task, placeholder, split, with_text
from .context_window import ContextWindow

_SAMPLE_CHARS = 20_000
_CHARS_PER_TOKEN = 3.0
_MARGIN = 0.9
_MAX_TRIES = 10
_MIN_PART_CHARS = 64
"""Shorter parts are useless."""
_MIN_ROOM_DIVISOR = 16
"""If the rest of the task leaves less than this fraction of the room, the input is not split."""
_ADVICE = "Shorten it, or use a model with a larger context window."

Render = Callable[[int, Any], tuple[str, int]]
"""Renders the task of an input: its text, and how many characters of it are shared."""


class InputChunker:
    """`oversized="chunk"`: splits the longest text of an input at its structure."""

    def __init__(self, window: ContextWindow, render: Render, fields: Sequence[str]) -> None:
        """`fields`: the fields of an input that its task uses."""
        self._window = window
        self._render = render
        self._fields = fields

    async def fit(self, job: Job) -> Job:
        """The job unchanged, in parts, or with a problem if it cannot be split into parts that fit. Deterministic if
        the server counts tokens."""
        if job.problem is not None or (tokens := await self._window.oversized_tokens(job.task)) is None:
            return job
        if job.images:
            return self._window.reject(job, tokens, f"It has images, so its text is not split. {_ADVICE}")
        found = longest_text(job.input, self._fields)
        if found is None:
            return self._window.reject(job, tokens, f"It has no text that could be split. {_ADVICE}")
        tasks = await self._tasks(job, found)
        if tasks is None:
            return self._window.reject(
                job, tokens, f"The rest of its task leaves too little room for parts of its text. {_ADVICE}"
            )
        outline = self._rendered(job, found, placeholder(len(tasks)))
        return replace(job, task=outline, parts=tasks, shared=_shared(job, outline))

    async def _tasks(self, job: Job, found: TextField) -> tuple[str, ...] | None:
        """The tasks of as few parts as possible, or None."""
        rest = await self._rest(job, found)
        spare = self._window.room - rest
        if spare <= 0 or spare < self._window.room / _MIN_ROOM_DIVISOR:
            return None
        max_chars = int(_MARGIN * spare * await self._chars_per_token(found.text))
        for _ in range(_MAX_TRIES):
            if max_chars < _MIN_PART_CHARS:
                return None
            parts = split(found.text, max_chars)
            tasks = tuple(self._task(job, found, part, n, len(parts)) for n, part in enumerate(parts, 1))
            longest = await self._longest(tasks)
            if longest is None:
                return tasks
            max_chars = int(max_chars * _MARGIN * spare / max(1, longest - rest))
        return None

    def _task(self, job: Job, found: TextField, part: str, number: int, parts: int) -> str:
        return part_task(self._rendered(job, found, part), number, parts)

    def _rendered(self, job: Job, found: TextField, text: str) -> str:
        return self._render(job.index, with_text(job.input, found.steps, text))[0]

    async def _rest(self, job: Job, found: TextField) -> int:
        """Tokens of a part's task without its text."""
        task = self._task(job, found, "", 1, 99)
        return await self._window.count(task) or int(len(task) / _CHARS_PER_TOKEN)

    async def _chars_per_token(self, text: str) -> float:
        sample = text[:_SAMPLE_CHARS]
        tokens = await self._window.count(sample)
        return len(sample) / tokens if tokens else _CHARS_PER_TOKEN

    async def _longest(self, tasks: Sequence[str]) -> int | None:
        """Approximate tokens of the longest task that does not fit; None if all fit."""
        async with asyncio.TaskGroup() as group:
            checks = [group.create_task(self._window.oversized_tokens(task, careful=True)) for task in tasks]
        return max((tokens for check in checks if (tokens := check.result()) is not None), default=None)


def _shared(job: Job, task: str) -> int:
    """Characters of the task that are shared with other jobs, if it begins like the job's task."""
    return job.shared if task.startswith(job.task[: job.shared]) else 0
