"""A real engine whose cache holds a third of the agents: they take turns in it, and find their contexts again."""

from benchmarks.gpu.scenario import Scene
from benchmarks.gpu.scripted_backend import Played
from benchmarks.gpu.token_texts import Words, nonce
from benchmarks.gpu.turn_recorder import Watch
from tests.live.conftest import BLOCK, SMALL_BLOCKS

from batch_agent import BatchAgent
from batch_agent.backends.connect import connect

AGENTS = 16
TURNS = 3


async def test_agents_take_turns_in_a_small_cache_and_hit_their_cached_contexts(small_vllm: str) -> None:
    backend = await connect(small_vllm, None, uses_tools=False, notify=lambda text: None)
    scene, watch = scene_of(), Watch()
    try:
        results = await BatchAgent.run(
            task="{it}",
            inputs=list(scene.tasks),
            system_prompt=scene.system,
            tools=[scene.tool(watch)],
            backend=Played(backend, scene, watch),
        )
    finally:
        await backend.aclose()
    assert [result.turns for result in results if result.ok] == [TURNS] * AGENTS
    how = results.scheduling
    assert how.kv_tokens == SMALL_BLOCKS * BLOCK
    assert how.max_residents is not None
    assert 1 < how.max_residents < AGENTS
    found = sum(result.usage.cached for result in results)
    # The first turns find only what they share: about a third of all prompt tokens can never be found.
    assert found / sum(result.usage.input for result in results) > 0.5


def scene_of() -> Scene:
    words, start = Words(), nonce()
    return Scene(
        tasks=tuple(words.own(number, start, "small", 300) for number in range(AGENTS)),
        turns=TURNS,
        output=16,
        system=f"{start} {words.text('small', 120)}",
        said="Let me look that up.",
        result=words.text("small result", 30),
        seconds=lambda key: 1.0,
    )
