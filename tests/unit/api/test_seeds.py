"""Seeds of agents: the run's, and one of its own for each repetition of an input."""

import asyncio
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.conversations import rules

from batch_agent import BatchAgent
from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.core.agent_config import repeated_seed, sample_of, without_sample
from batch_agent.core.messages import User
from batch_agent.core.program_runtime import CompletionRequest
from batch_agent.core.requests import Request, Sampling
from batch_agent.programs.action_adapter import ActionAdapter
from batch_agent.testing import Answer, ScriptedBackend, call, say


def sent_seed(request: Request) -> int | None:
    seed: int | None = orjson.loads(OpenAIChat().encode(request)).get("seed")
    return seed


def backend() -> ScriptedBackend:
    """Answers with the seed that is sent."""
    return ScriptedBackend(lambda request: say(str(sent_seed(request))))


async def answers(inputs: list[str], seed: int | None, folder: Path | None = None) -> list[str | None]:
    results = await BatchAgent.run(
        task="Say {it}", inputs=inputs, backend=backend(), seed=seed, checkpoint_dir=folder, progress=False
    )
    return results.outputs


async def test_repeated_inputs_have_seeds_of_their_own_and_others_the_runs() -> None:
    found = await answers(["a", "b", "a", "a", "b"], 7)
    assert found[:2] == ["7", "7"]
    assert len({found[0], found[2], found[3]}) == 3
    assert found[2] == found[4]  # the second of each pair of equal inputs


async def test_seeds_are_the_same_in_every_run_and_differ_with_the_seed_of_the_run(tmp_path: Path) -> None:
    first = await answers(["a"] * 20, 7)
    assert first == await answers(["a"] * 20, 7)
    other = await answers(["a"] * 20, 8)
    assert len({*first, *other}) == 40
    await answers(["a"] * 5, 7, tmp_path / "c")
    assert await answers(["a"] * 20, 7, tmp_path / "c") == first


async def test_without_a_seed_none_is_sent() -> None:
    assert await answers(["a", "a"], None) == ["None", "None"]


async def test_all_turns_of_an_agent_have_its_seed() -> None:
    async def look(it: str) -> str:
        """Look."""
        await asyncio.sleep(0)
        return it

    def script(request: Request) -> Answer:
        return call("look", it="x") if len(request.messages) == 1 else say("done")

    scripted = ScriptedBackend(script)
    await BatchAgent.run(task="Say {it}", inputs=["a", "a"], tools=[look], backend=scripted, seed=3, progress=False)
    by_agent: dict[str, set[int | None]] = {}
    for request in scripted.requests:
        by_agent.setdefault(request.agent, set()).add(sent_seed(request))
    assert sorted(map(len, by_agent.values())) == [1, 1]
    assert len(set.union(*by_agent.values())) == 2


def test_requests_of_programs_have_the_seed_of_their_agent() -> None:
    config = replace(rules(), sampling=Sampling(seed=5))
    adapter = ActionAdapter(config, ScriptedBackend(lambda _: say("")).traits, uses_actions=False)
    asked = CompletionRequest((User("Go on."),))
    first, second = (adapter.request(asked, key, 0, {}) for key in ("0f", "0f-1"))
    assert (sent_seed(first), sent_seed(second)) == (5, repeated_seed(5, "0f-1"))


@pytest.mark.parametrize(("key", "same_as"), [("0f-1.part2", "0f-1"), ("ab-1", "0f-1"), ("ab-12.merge1.3", "ab-12")])
def test_parts_of_an_input_have_the_seed_of_their_agent(key: str, same_as: str) -> None:
    assert repeated_seed(5, key) == repeated_seed(5, same_as)


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1])
def test_derived_seeds_fit_every_server(seed: int) -> None:
    assert repeated_seed(seed, "0f") is None
    made = {repeated_seed(seed, f"0f-{n}") for n in range(1, 1000)}
    assert len(made) == 999
    assert all(each is not None and 0 <= each < 2**31 for each in made)


@settings(max_examples=50)
@given(st.from_regex(r"([a-z%~-]{1,8}@)?[0-9a-f]{8}(-[1-9])?", fullmatch=True), st.integers(1, 999), st.booleans())
def test_the_number_of_a_sample_is_in_its_key_and_gives_it_a_seed(key: str, sample: int, is_chunk: bool) -> None:
    chunk = ".part1" if is_chunk else ""
    sampled = f"{key}~{sample}{chunk}"
    assert (sample_of(sampled), without_sample(sampled)) == (sample, f"{key}{chunk}")
    assert (sample_of(key), without_sample(key)) == (0, key)
    assert repeated_seed(5, sampled) not in (None, repeated_seed(5, key))
