"""Several answers for each input (`samples=`): seeds, keys, order, grouping, tables, resume and export."""

import csv
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from tests.support.redis_server import RedisServer, redis_server

from batch_agent import BatchAgent, Results, SpecError, exact
from batch_agent.backends.dialects.openai.encoder import OpenAIChat
from batch_agent.core.requests import Request
from batch_agent.run.checkpoint_table import read_results
from batch_agent.testing import ScriptedBackend, say

__all__ = ["redis_server"]
WORDS = ["a", "b"]


def sent_seed(request: Request) -> int | None:
    seed: int | None = orjson.loads(OpenAIChat().encode(request)).get("seed")
    return seed


def task_of(request: Request) -> str:
    return str(getattr(request.messages[0], "text", ""))


def backend() -> ScriptedBackend:
    """Answers with the seed that is sent."""
    return ScriptedBackend(lambda request: say(str(sent_seed(request))))


async def run(samples: int, inputs: Any = WORDS, server: ScriptedBackend | None = None, **options: Any) -> Results[Any]:
    given = {"seed": 7, "progress": False, **options}
    results: Results[Any] = await BatchAgent.run(
        task="Say {it}", inputs=inputs, backend=server or backend(), samples=samples, **given
    )
    return results


async def test_each_input_has_several_answers_with_seeds_of_their_own() -> None:
    results = await run(3)
    assert [(each.index, each.sample, each.input) for each in results] == [
        (0, 0, "a"), (0, 1, "a"), (0, 2, "a"), (1, 0, "b"), (1, 1, "b"), (1, 2, "b"),
    ]  # fmt: skip
    assert results[0].output == "7"
    assert len({each.output for each in results[:3]}) == 3
    assert [each.output for each in results[:3]] == [each.output for each in results[3:]]
    assert len({each.key for each in results[:3]}) == 1


async def test_without_samples_results_have_no_sample() -> None:
    [result, _] = await run(1)
    assert (result.sample, result.model, result.scores) == (None, None, {})


async def test_samples_of_one_input_are_sent_one_after_the_other() -> None:
    server = backend()
    await run(4, [f"word {n}" for n in range(5)], server, max_inflight=1)
    assert [task_of(request) for request in server.requests] == [f"Say word {n}" for n in range(5) for _ in range(4)]


async def test_more_samples_with_the_same_checkpoint_only_add_the_missing_ones(tmp_path: Path) -> None:
    first, more = backend(), backend()
    before = await run(3, server=first, checkpoint_dir=tmp_path)
    after = await run(5, server=more, checkpoint_dir=tmp_path)
    assert (len(first.requests), len(more.requests)) == (6, 4)
    answers = {(each.index, each.sample): each.output for each in after}
    assert all(answers[each.index, each.sample] == each.output for each in before)
    again = backend()
    assert await run(2, server=again, checkpoint_dir=tmp_path) == [each for each in after if (each.sample or 0) < 2]
    assert not again.requests


async def test_equal_inputs_keep_their_samples_when_there_are_more(tmp_path: Path) -> None:
    before = await run(2, ["a", "b", "a"], checkpoint_dir=tmp_path)
    server = backend()
    after = await run(3, ["a", "b", "a"], server, checkpoint_dir=tmp_path)
    assert len(server.requests) == 3
    kept = [each for each in after if (each.sample or 0) < 2]
    assert [each.output for each in kept] == [each.output for each in before]
    assert len({each.output for each in after if each.input == "a"}) == 6


async def test_rows_with_an_id_have_samples_too(tmp_path: Path) -> None:
    rows = [{"id": "x~1", "it": "a"}, {"id": "y@2", "it": "b"}]
    results = await run(3, rows, checkpoint_dir=tmp_path, key="id")
    assert [(each.key, each.sample) for each in results] == [(row["id"], n) for row in rows for n in range(3)]
    assert len({each.output for each in results[:3]}) == 3
    server = backend()
    assert await run(4, list(reversed(rows)), server, checkpoint_dir=tmp_path, key="id")
    assert len(server.requests) == 2
    table = read_results(tmp_path)
    assert [(each.key, each.sample) for each in table] == [
        (key, n) for key in ("y@2", "x~1") for n in range(4)
    ]  # fmt: skip


async def test_a_checkpoint_is_read_back_as_the_results_were(tmp_path: Path) -> None:
    await run(2, checkpoint_dir=tmp_path)
    results = await run(3, checkpoint_dir=tmp_path)
    found = read_results(tmp_path)
    assert [(each.index, each.key, each.sample, each.output) for each in found] == [
        (each.index, each.key, each.sample, each.output) for each in results
    ]


async def test_a_checkpoint_of_lazy_inputs_is_read_back_with_samples(tmp_path: Path) -> None:
    async def lazy() -> AsyncIterator[str]:
        for word in WORDS:
            yield word

    results = await run(2, lazy(), checkpoint_dir=tmp_path)
    assert [(each.index, each.sample) for each in results] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [(each.index, each.sample) for each in read_results(tmp_path)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


async def test_a_finished_run_with_samples_needs_no_server(tmp_path: Path) -> None:
    await run(2, checkpoint_dir=tmp_path)
    results = await BatchAgent.run(
        task="Say {it}", inputs=WORDS, backend="http://127.0.0.1:1", model="scripted", samples=2, seed=7,
        checkpoint_dir=tmp_path, progress=False,
    )  # fmt: skip
    assert all(each.ok for each in results)


async def test_tables_have_a_column_for_the_sample(tmp_path: Path) -> None:
    results = await run(2, out=tmp_path / "out.csv")
    results.to_csv(tmp_path / "all.csv")
    results.to_jsonl(tmp_path / "all.jsonl")
    for path in (tmp_path / "out.csv", tmp_path / "all.csv"):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        assert sorted((row["index"], row["sample"]) for row in rows) == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
        assert "model" not in rows[0]
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [line["sample"] for line in lines] == [0, 1, 0, 1]


async def test_a_parquet_file_is_sorted_by_input_and_sample(tmp_path: Path) -> None:
    results = await run(3)
    results.reverse()
    results.to_parquet(tmp_path / "all.parquet")
    duckdb = pytest.importorskip("duckdb")
    rows = duckdb.sql(f"SELECT index, sample FROM '{tmp_path / 'all.parquet'}'").fetchall()
    assert rows == [(index, sample) for index in range(2) for sample in range(3)]


async def test_an_input_that_cannot_be_used_fails_in_each_sample() -> None:
    results = await run(2, [{"it": "a"}, {"other": 1}])
    assert [(each.index, each.sample, each.ok) for each in results] == [
        (0, 0, True), (0, 1, True), (1, 0, False), (1, 1, False),
    ]  # fmt: skip


async def test_the_majority_and_the_votes_of_each_input() -> None:
    answers = iter(["yes", "no", "no", "x", "x", "y"])
    results = await run(3, server=ScriptedBackend(lambda _: say(next(answers))), max_inflight=1)
    assert results.majority().outputs == ["no", "x"]
    assert results.votes() == [Counter({"no": 2, "yes": 1}), Counter({"x": 2, "y": 1})]
    assert [len(each) for each in results.by_input] == [3, 3]
    assert results.best_of(lambda each: each.output == "yes" or each.output == "y").outputs == ["yes", "y"]


async def test_the_majority_of_a_field() -> None:
    answers = iter([{"label": "a", "why": str(n)} if n != 1 else {"label": "b", "why": "1"} for n in range(6)])
    server = ScriptedBackend(lambda _: say(orjson.dumps(next(answers)).decode()))
    results = await run(3, server=server, max_inflight=1, output_schema={"type": "object"})
    assert results.majority("label").outputs == [{"label": "a", "why": "0"}, {"label": "a", "why": "3"}]
    with pytest.raises(SpecError, match="No answer has a field 'nothing'"):
        results.majority("nothing")


async def test_samples_at_temperature_0_are_a_warning() -> None:
    with pytest.warns(UserWarning, match="samples=2 with temperature=0"):
        await run(2, temperature=0)


def test_a_flow_refuses_samples() -> None:
    with pytest.raises(SpecError, match=r"options of BatchAgent\.run"):
        BatchAgent.run_with_reduce_sync(task="Say {it}", inputs=WORDS, reduce="All", samples=2, backend=backend())


@pytest.mark.slow
async def test_a_shared_run_has_samples_too(redis_server: RedisServer) -> None:
    rows = [{"it": word} for word in WORDS]
    results = await run(3, rows, store=redis_server.url, run_id=f"samples-{uuid4()}", score=exact("it"))
    assert [(each.index, each.sample) for each in results] == [(n, s) for n in range(2) for s in range(3)]
    assert len({each.output for each in results[:3]}) == 3
    assert (results.metrics["exact"].scored, results.metrics["exact"].mean) == (6, 0.0)
