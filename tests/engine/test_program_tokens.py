"""Token ids of programs: the gateway asks for them, and the program notices nothing."""

from collections import Counter

from tests.support.program_agents import LOOK, FakeRuntime, calls_then, run_programs, tool_loop
from tests.support.token_backend import TokenBackend

from batch_agent.core.messages import User
from batch_agent.core.options import Retry
from batch_agent.core.program_runtime import CompletionRequest, CompletionService, ProgramFailed
from batch_agent.rollouts.rollout import Rollout, rollout_of
from batch_agent.store.memory_store import MemoryStore

TITLE = CompletionRequest((User("A title for: Do it"),), "You name things.")


async def rollout(store: MemoryStore, agent: str = "agent-0") -> Rollout:
    found = rollout_of(await store.facts(agent))
    assert found is not None
    return found


async def test_the_requests_of_a_program_have_the_ids_of_the_engine_and_continue_each_other() -> None:
    seen: list[object] = []

    async def program(service: CompletionService, agent: str, text: str) -> str:
        seen.append((await service.complete(agent, TITLE)).tokens)
        return await tool_loop(service, agent, text)

    backend, store = TokenBackend(calls_then("done", 2)), MemoryStore()
    results = await run_programs(FakeRuntime(program), backend, ["it", "that"], store=store, tokens=True)
    assert [result.output for result in results] == ["done", "done"]
    assert seen == [None, None]
    found = [await rollout(store, f"agent-{number}") for number in range(2)]
    kept = Counter((turn.tokens.prompt, turn.tokens.sampled) for each in found for turn in each.records)
    assert kept == Counter(backend.engine_log)
    for each in found:
        assert [len(thread) for thread in each.threads] == [3, 1]  # the task, and the title
        assert [record.sent_as_ids for record in each.records] == [False, False, True, True]
        assert each.breaks == ()


async def test_a_program_that_rewrites_its_history_has_a_break() -> None:
    async def program(service: CompletionService, agent: str, text: str) -> str:
        first = await service.complete(agent, CompletionRequest((User(text),), "", (LOOK,)))
        shortened = CompletionRequest((User(text), User(f"You have called {first.calls[0].name}.")), "", (LOOK,))
        return (await service.complete(agent, shortened)).text

    backend, store = TokenBackend(lambda request: calls_then("x", 2 - len(request.messages))(request)), MemoryStore()
    await run_programs(FakeRuntime(program), backend, ["it"], store=store, tokens=True)
    found = await rollout(store)
    assert [each.turn for each in found.breaks] == [1]
    assert len(list(found.sequences())) == 2


async def test_a_program_that_failed_and_started_again_has_the_tokens_of_its_last_attempt() -> None:
    attempts: list[str] = []

    async def program(service: CompletionService, agent: str, text: str) -> str:
        attempts.append(agent)
        said = await tool_loop(service, agent, text)
        if len(attempts) == 1:
            raise ProgramFailed("it crashed", retryable=True)
        return said

    backend, store = TokenBackend(calls_then("done", 1)), MemoryStore()
    await run_programs(FakeRuntime(program), backend, ["it"], store=store, tokens=True, retry=Retry(max_retries=1))
    found = await rollout(store)
    assert (len(attempts), len(backend.engine_log), len(found.turns)) == (2, 4, 2)
    assert [(turn.prompt, turn.sampled) for turn in found.turns] == backend.engine_log[2:]
