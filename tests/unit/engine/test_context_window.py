"""Which tasks fit the model's window, and how few of them have to be counted."""

from typing import Any

import pytest

from batch_agent.core.agent_config import AgentConfig, Job
from batch_agent.core.errors import ErrorKind
from batch_agent.core.messages import Prompt, ToolSpec
from batch_agent.core.requests import Sampling
from batch_agent.core.results import AgentError
from batch_agent.core.spec import BatchSpec
from batch_agent.engine.long_inputs.context_window import ContextWindow, open_window
from batch_agent.testing import ScriptedBackend, say


class Counter:
    """Counts tokens as a tokenizer with so many characters per token does."""

    def __init__(self, chars_per_token: float = 4.0, says: bool = True) -> None:
        self.asked: list[str] = []
        self._chars = chars_per_token
        self._says = says

    async def __call__(self, text: str) -> int | None:
        self.asked.append(text)
        return int(len(text) / self._chars) if self._says else None


def job(task: str, index: int = 7) -> Job:
    return Job(index, "key", task, task)


async def test_a_job_beyond_the_window_is_refused_with_advice() -> None:
    window = ContextWindow(16_384, prefix=1000, answer=1024, count=Counter())
    refused = await window.fit(job("word " * 32_800))
    assert refused.problem is not None
    assert refused.problem.kind is ErrorKind.CONTEXT_OVERFLOW
    message = refused.problem.message
    assert "Input 7" in message
    assert "about 42,064 tokens" in message  # with what all agents share
    assert "16,384, of which 1,024" in message
    assert "oversized='chunk'" in message


async def test_a_job_that_fits_or_has_a_problem_already_stays_as_it_is() -> None:
    window = ContextWindow(1000, count=Counter())
    fitting, broken = job("short"), Job(0, "k", None, "", AgentError(ErrorKind.BAD_INPUT, "no"))
    assert await window.fit(fitting) is fitting
    assert await window.fit(broken) is broken


async def test_short_inputs_are_never_counted() -> None:
    counter = Counter()
    window = ContextWindow(16_384, answer=1024, count=counter)
    for task in ("word " * 100, "x" * 15_000, "word " * 5_500, "汉字" * 2_400, "naïve café " * 1_000):
        assert await window.fit(job(task)) == job(task)
    assert counter.asked == []


@pytest.mark.parametrize(
    ("text", "chars_per_token", "fits"),
    [
        ("汉字汉" * 5_000, 1.4, False),  # an estimate from English would be a third of it
        ("汉字汉" * 5_000, 1.6, True),
        ("3.14159 " * 4_000, 2.0, False),
        ("    \n" * 10_000, 16.0, True),
    ],
)
async def test_where_an_estimate_may_be_wrong_the_server_counts(text: str, chars_per_token: float, fits: bool) -> None:
    counter = Counter(chars_per_token)
    assert (await ContextWindow(10_000 + 64, count=counter).oversized_tokens(text) is None) == fits
    assert counter.asked == [text]


async def test_a_far_too_long_input_is_not_tokenized() -> None:
    counter = Counter()
    window = ContextWindow(1000, count=counter)
    assert await window.oversized_tokens("word " * 100_000) == 125_000
    assert counter.asked == []


async def test_token_counts_narrow_which_texts_must_be_counted() -> None:
    counter = Counter(8.0)
    window = ContextWindow(10_000 + 64, count=counter)
    for _ in range(20):
        await window.oversized_tokens("x" * 25_000)
    assert len(counter.asked) < 10
    assert await window.oversized_tokens("x" * 25_000) is None


@pytest.mark.parametrize("count", [None, Counter(says=False)])
async def test_without_a_token_counter_only_clearly_too_long_inputs_are_refused(count: Counter | None) -> None:
    window = ContextWindow(10_000, count=count)
    assert await window.oversized_tokens("word " * 8_400) is None  # 1.05 times the window, by the estimate
    assert await window.oversized_tokens("word " * 11_600) is None
    assert await window.oversized_tokens("word " * 12_400) is not None
    assert await window.oversized_tokens("word " * 8_400, careful=True) is not None
    assert await window.oversized_tokens("word " * 4_900, careful=True) is None


async def test_a_text_with_a_lone_surrogate_can_be_measured() -> None:
    assert await ContextWindow(100).oversized_tokens("\ud83d" * 1000) is not None


class Counting(ScriptedBackend):
    def __init__(self, **traits: Any) -> None:
        super().__init__(lambda request: say("done"), **traits)
        self.counter = Counter()

    async def count_tokens(self, text: str) -> int | None:
        return await self.counter(text)


TOOL = ToolSpec("search", "Finds pages. " * 40, {"type": "object", "properties": {}})


def rules(system: str = "", *tools: ToolSpec) -> AgentConfig:
    return AgentConfig(Prompt(system, tools), "m", Sampling(), "native", None, None, None, max_turns=4, max_retries=0)


async def opened(
    backend: ScriptedBackend, with_rules: AgentConfig | None = None, **options: Any
) -> ContextWindow | None:
    spec = BatchSpec.of(task="{it}", inputs=["a"], **options)
    return await open_window(spec, with_rules or rules(), backend)


async def room(backend: ScriptedBackend, with_rules: AgentConfig | None = None, **options: Any) -> int:
    window = await opened(backend, with_rules, **options)
    assert window is not None
    return window.room


async def test_without_a_known_window_nothing_is_checked() -> None:
    assert await opened(Counting()) is None


async def test_context_tokens_overrides_the_window_of_the_server() -> None:
    assert await room(Counting(context_tokens=8192)) == 8192 - 1024 - 64
    assert await room(Counting(context_tokens=8192), context_tokens=3200) == 3200 - 400 - 64


async def test_the_system_prompt_and_the_tools_take_their_part_of_the_window() -> None:
    backend = Counting(context_tokens=8192)
    alone = await room(backend)
    assert await room(backend, rules("Be brief. " * 400)) == pytest.approx(alone - 1000, abs=2)
    assert await room(backend, rules("", TOOL)) == pytest.approx(alone - 150, abs=20)
    guessed = ScriptedBackend(lambda request: say("done"), context_tokens=8192)
    assert await room(guessed, rules("Be brief. " * 400)) == pytest.approx(alone - 1000, abs=2)


@pytest.mark.parametrize(
    ("oversized", "max_tokens", "kept"),
    [("refuse", 500, 500), ("refuse", 8000, 4096), ("chunk", 6000, 6000), ("chunk", 9999, 7168), ("chunk", None, 1024)],
)
async def test_the_window_check_leaves_room_for_the_answer(oversized: str, max_tokens: int | None, kept: int) -> None:
    window = await opened(Counting(context_tokens=8192), oversized=oversized, max_tokens=max_tokens)
    assert window is not None
    assert window.answer == kept
