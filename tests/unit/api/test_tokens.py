"""`tokens=True`: the token ids of each turn are those of the engine, and histories are sent as ids."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.support.event_list import EventList
from tests.support.token_backend import SAMPLED, TokenBackend

from batch_agent import BatchAgent, Results, SpecError
from batch_agent.cli.commands.export import export as export_command
from batch_agent.core.errors import BackendError, ErrorKind
from batch_agent.core.requests import Reply, Request
from batch_agent.rollouts.formats import RolloutFormat
from batch_agent.rollouts.rollout import Rollout, rollout_of
from batch_agent.store.reader import CheckpointReader
from batch_agent.testing import ScriptedBackend, by_turn, call, say

NAMES = ["Ariel", "Calypso", "Dido"]
TWO_CALLS = by_turn(call("look", ship="Ariel"), call("look", ship="Dido"), say("done"))


def look(ship: str) -> str:
    """Finds a ship."""
    return f"{ship} is at berth {len(ship)}."


async def run(backend: Any, folder: Path, **options: Any) -> Results:
    options = {"tools": [look], "tokens": True, "checkpoint_dir": folder, "inputs": NAMES, **options}
    results: Results = await BatchAgent.run(task="Where is {it}?", backend=backend, **options)
    return results


def rollouts(folder: Path) -> list[Rollout]:
    with CheckpointReader(folder) as reader:
        found = [rollout_of(stored.facts) for stored in reader.inputs()]
    return [each for each in found if each is not None]


def kept(folder: Path) -> Counter[tuple[bytes, bytes]]:
    return Counter((turn.prompt, turn.sampled) for each in rollouts(folder) for turn in each.turns)


async def test_agents_with_tools_keep_the_ids_of_the_engine(tmp_path: Path) -> None:
    backend = TokenBackend(TWO_CALLS)
    results = await run(backend, tmp_path)
    assert [result.output for result in results.raise_for_failures()] == ["done"] * 3
    assert kept(tmp_path) == Counter(backend.engine_log)
    for each in rollouts(tmp_path):
        assert [record.sent_as_ids for record in each.records] == [False, True, True]
        assert each.breaks == ()
        (whole,) = each.sequences()
        assert [id >= SAMPLED for id, mask in zip(whole.completion_ids, whole.mask, strict=True) if mask].count(
            False
        ) == len(each.turns)  # the id that ends a turn


async def test_a_run_without_the_option_asks_for_nothing_and_keeps_nothing(tmp_path: Path) -> None:
    backend = TokenBackend(TWO_CALLS)
    await run(backend, tmp_path, tokens=False)
    assert {request.tokens for request in backend.requests} == {None}
    assert (backend.rendered, rollouts(tmp_path)) == (0, [])


@pytest.mark.parametrize("options", [{"takes_ids": False}, {"renders": False}])
async def test_a_server_that_takes_no_ids_causes_breaks_which_are_reported(
    tmp_path: Path, options: dict[str, bool]
) -> None:
    backend, events = TokenBackend(TWO_CALLS, **options), EventList()
    await run(backend, tmp_path, events=events)
    assert kept(tmp_path) == Counter(backend.engine_log)
    assert [len(each.breaks) for each in rollouts(tmp_path)] == [2, 2, 2]
    (notice,) = events.notices
    assert notice.startswith("6 of 9 turns do not continue the tokens of the turn before")


async def test_a_turn_that_was_retried_is_kept_once(tmp_path: Path) -> None:
    failed: list[str] = []

    def script(request: Request) -> Reply | BackendError:
        if request.turn == 1 and request.agent not in failed:
            failed.append(request.agent)
            return BackendError(ErrorKind.SERVER, "it broke")
        reply = TWO_CALLS(request)
        assert isinstance(reply, Reply)
        return reply

    backend = TokenBackend(script)
    await run(backend, tmp_path, backoff=0.001)
    assert len(failed) == 3
    assert kept(tmp_path) == Counter(backend.engine_log)
    assert [len(each.turns) for each in rollouts(tmp_path)] == [3, 3, 3]


async def test_a_resumed_run_keeps_the_tokens_of_both(tmp_path: Path) -> None:
    def stops(request: Request) -> Reply | BackendError:
        return BackendError(ErrorKind.AUTH, "no more") if request.turn == 1 else call("look", ship="Ariel")

    first = TokenBackend(stops)
    await run(first, tmp_path, max_retries=0)
    second = TokenBackend(TWO_CALLS)
    results = await run(second, tmp_path)
    assert results.raise_for_failures()
    assert kept(tmp_path) == Counter(first.engine_log + second.engine_log)
    # The process that asked before has ended, and with it what it knew of the first turn.
    assert [[each.turn for each in rollout.breaks] for rollout in rollouts(tmp_path)] == [[1], [1], [1]]


async def test_a_server_that_returns_no_ids_after_all_fails_with_what_to_use(tmp_path: Path) -> None:
    results = await run(ScriptedBackend(TWO_CALLS, token_ids=True), tmp_path)
    assert all("Use vLLM" in str(result.error) for result in results)


async def test_a_backend_without_token_ids_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    backend = ScriptedBackend(TWO_CALLS)
    with pytest.raises(SpecError, match=r"returns no token ids\. Use vLLM"):
        await run(backend, tmp_path)
    assert backend.requests == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_dir": None}, "checkpoint_dir"),
        ({"streaming": True}, "streaming"),
        ({"streaming_tool_dispatch": True}, "streaming"),
        ({"lane": "flex"}, "lane"),
        ({"oversized": "chunk"}, "chunk"),
        ({"store": "redis://127.0.0.1:1/0"}, "store"),
        ({"tokens": 1}, "True or False"),
    ],
)
async def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    backend = TokenBackend(TWO_CALLS)
    with pytest.raises(SpecError, match=message):
        await run(backend, tmp_path, **options)
    assert backend.requests == []


def export(folder: Path, kind: RolloutFormat, tmp_path: Path) -> list[dict[str, Any]]:
    out = tmp_path / f"{kind}.jsonl"
    assert export_command(folder, format=kind, out=out) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


async def test_the_exports_have_the_same_ids(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    await run(TokenBackend(TWO_CALLS), folder, score=lambda answer, row: answer == "done")
    known = rollouts(folder)
    for row, rollout in zip(export(folder, "trl", tmp_path), known, strict=True):
        (whole,) = rollout.sequences()
        assert (row["prompt_ids"], row["completion_ids"]) == (whole.prompt_ids, whole.completion_ids)
        assert (row["env_mask"], row["logprobs"], row["reward"]) == (whole.mask, whole.logprobs, 1.0)
        assert (row["turns"], row["finish_reason"], row["model"], row["model_version"]) == (3, "stop", "tiny", "v1")
    for row in export(folder, "verifiers", tmp_path):
        steps = [step["tokens"] for step in row["trajectory"]]
        assert [len(step["completion_ids"]) for step in steps] == [len(step["completion_logprobs"]) for step in steps]
        assert (row["reward"], row["is_completed"], row["completion"][-1]["content"]) == (1.0, True, "done")
        assert [set(step["prompt_mask"]) | set(step["completion_mask"]) for step in steps] == [{0, 1}] * 3
    for row in export(folder, "atif", tmp_path):
        assert [step["source"] for step in row["steps"]] == ["user", "agent", "agent", "agent"]
        assert [step["step_id"] for step in row["steps"]] == [1, 2, 3, 4]
        first = row["steps"][1]
        assert first["tool_calls"][0]["arguments"] == {"ship": "Ariel"}
        assert first["observation"]["results"][0]["content"] == "Ariel is at berth 5."
        assert len(first["metrics"]["completion_token_ids"]) == len(first["metrics"]["logprobs"])


async def test_rollouts_are_written_as_parquet(tmp_path: Path) -> None:
    folder, out = tmp_path / "run", tmp_path / "rollouts.parquet"
    await run(TokenBackend(TWO_CALLS), folder)
    assert export_command(folder, format="trl", out=out) == 0
    rows = duckdb.sql(f"SELECT completion_ids, env_mask FROM '{out}' ORDER BY index").fetchall()
    assert [list(row[0]) for row in rows] == [next(each.sequences()).completion_ids for each in rollouts(folder)]


async def test_a_run_without_tokens_has_no_rollouts(tmp_path: Path) -> None:
    await run(ScriptedBackend(TWO_CALLS), tmp_path, tokens=False)
    with pytest.raises(SpecError, match="has no token ids"):
        export_command(tmp_path, format="trl")
    with pytest.raises(SpecError, match="JSONL"):
        export_command(tmp_path, format="atif", out=tmp_path / "x.parquet")
