"""Maps over Ray Datasets, on a real Ray of this machine and the simulated engine: rows in, rows out, what is paid."""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel
from tests.docs.markdown import blocks_of
from tests.live.ray_cluster import local_ray, map_actors

from batch_agent import BatchAgent, SpecError, Tool
from batch_agent.core.events import Event, Notice
from batch_agent.data.input_files import local_data_files
from batch_agent.ray import ray_run
from batch_agent.sim import SimConfig, SimServer

# Ray leaves the files of its logs open, and warns of its own defaults.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore:The minimum number of concurrent actors"
)

UNWRITTEN = 4
"""A killed actor had so many requests for each slot in flight, or answered but not yet written, at most: it is less
than two unless the disk is very slow. Each of its blocks has hundreds of rows."""
SAY = 'Say {it}. [[sim: {{"json": {{"text": "{it}"}}}}]]'


class Said(BaseModel):
    text: str


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with local_ray(cpus=3):
        yield


@pytest.fixture
def sim() -> Iterator[SimServer]:
    with SimServer(SimConfig(step_base_ms=2.0)) as server:
        yield server


def dataset(rows: Sequence[dict[str, Any]], blocks: int) -> Any:
    import ray

    return ray.data.from_items(list(rows), override_num_blocks=blocks)


def words(count: int) -> list[dict[str, Any]]:
    return [{"id": number, "it": f"n{number}"} for number in range(count)]


def mapped(rows: Any, sim: SimServer, **options: Any) -> Any:
    given = {"task": SAY, "output_schema": Said, "backend": sim.url, "max_inflight": 16, "workers": 2, "lease": 3.0}
    return BatchAgent.map(rows, actor_options={"num_cpus": 0.5}, **{**given, **options})


def requests_of(sim: SimServer) -> float:
    """Requests that the server received, also those that it did not finish."""
    return sim.metrics()["sim:http_requests_total"]


def test_every_row_comes_out_once_with_its_answer_and_its_columns(sim: SimServer) -> None:
    rows = [*words(300), *words(300)]  # equal rows, in one block and in several
    out = mapped(dataset(rows, 5), sim).take_all()
    assert Counter(row["id"] for row in out) == Counter(row["id"] for row in rows)
    assert all(row["output"]["text"] == row["it"] and row["ok"] and row["turns"] == 1 for row in out)
    assert requests_of(sim) <= len(rows)


@pytest.mark.nightly
def test_a_map_of_a_map_and_empty_blocks(sim: SimServer) -> None:
    import ray

    some = dataset(words(60), 4).filter(expr=ray.data.expressions.col("id") < 10)  # blocks without rows
    first = mapped(some, sim, workers=1)
    with pytest.raises(Exception, match="column_prefix="):
        mapped(first, sim, workers=1).take_all()
    out = mapped(
        first,
        sim,
        workers=1,
        task='Say {output.text}. [[sim: {{"text": "again"}}]]',
        output_schema=None,
        column_prefix="b_",
    )
    assert {(row["id"], row["output"]["text"], row["b_output"]) for row in out.take_all()} == {
        (number, f"n{number}", "again") for number in range(10)
    }


@pytest.mark.nightly
def test_a_dataset_may_have_no_row_and_one(sim: SimServer) -> None:
    assert mapped(dataset(words(10), 2).limit(0), sim, workers=1).take_all() == []
    [row] = mapped(dataset(words(1), 1), sim, workers=1).take_all()
    assert (row["id"], row["output"], row["ok"]) == (0, {"text": "n0"}, True)


def test_a_run_on_ray_takes_a_dataset_and_returns_its_results_in_order(sim: SimServer, tmp_path: Path) -> None:
    rows, out = dataset(words(5_000), 3), tmp_path / "out.jsonl"
    options: dict[str, Any] = {"task": SAY, "output_schema": Said, "backend": sim.url}
    results = BatchAgent.run_sync(inputs=rows, cluster="ray", workers=2, out=out, **options)
    assert [(result.index, result.input["id"]) for result in results] == [(at, at) for at in range(5_000)]
    assert all(result.output == Said(text=result.input["it"]) and result.turns == 1 for result in results)
    assert len(out.read_text().splitlines()) == 5_000
    assert not rows.context.execution_options.preserve_order
    alone = BatchAgent.run_sync(inputs=rows.limit(3), **options)  # in this process
    assert [result.output for result in alone] == [Said(text=f"n{at}") for at in range(3)]
    with pytest.raises(SpecError, match=r"no 'nothing'.*text\.$"):
        BatchAgent.run_sync(inputs=rows, cluster="ray", workers=1, **{**options, "task": "Say {nothing}"})


def test_a_large_file_is_run_by_blocks_with_its_rows_as_they_are(
    sim: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_run, "MAX_ROWS", 3_000)
    source, events = tmp_path / "in.jsonl", Events()
    rows = [
        {"id": f"{number:05}", "it": f"n{number}", **({"mixed": [1, "a"]} if number % 7 else {})}
        for number in range(5_000)
    ]
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    options: dict[str, Any] = {"task": SAY, "output_schema": Said, "backend": sim.url, "cluster": "ray", "workers": 2}
    results = BatchAgent.run_sync(inputs=source, events=events, checkpoint_dir=tmp_path / "blocks", **options)
    assert [result.input for result in results] == rows
    assert all(result.output == Said(text=result.input["it"]) for result in results)
    assert any("more than 3,000 rows" in notice for notice in events.notices)
    assert not (tmp_path / "blocks" / "run.sqlite3").exists()  # a checkpoint for each part
    with source.open("a") as file:
        file.write('{"id"')
    with pytest.raises(SpecError, match=r"in\.jsonl, line 5001: not valid JSON \([^\n]*\)\.$"):
        BatchAgent.run_sync(inputs=source, **options)


@pytest.mark.parametrize(("text", "least", "most"), [("x" * 1_000, 1_000, 6_000), ("", 4_000, 6_000)])
def test_a_large_file_has_many_blocks_so_that_all_actors_work(
    sim: SimServer, tmp_path: Path, text: str, least: int, most: int
) -> None:
    from batch_agent.ray.dataset_run import file_dataset  # needs Ray, which may not be installed

    source = tmp_path / "in.jsonl"
    source.write_text("".join(f'{{"id": {number}, "text": "{text}"}}\n' for number in range(25_000)))
    mapped = file_dataset(local_data_files(source, None, None)).map_batches(lambda table: table, batch_format="pyarrow")
    blocks = [bundle.num_rows() for bundle in mapped.iter_internal_ref_bundles()]
    assert sum(blocks) == 25_000
    assert least < max(blocks) < most


class Events:
    """Sink that keeps notices."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.notices.append(event.text)


def test_the_example_of_the_docs_runs(sim: SimServer, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "distributed-runs.md"
    [block] = [block for block in blocks_of(page.read_text()) if block.title == "reviews.py"]
    (tmp_path / "reviews").mkdir()
    pq.write_table(pa.table({"text": [f"Review {number}" for number in range(40)]}), tmp_path / "reviews" / "a.parquet")
    code = block.text.replace("vllm://localhost:8000", sim.url).replace("workers=4", "workers=1")
    for name in ("reviews/", "rated/", "checkpoints"):  # actors began in the directory of the tests
        code = code.replace(f'"{name}"', repr(str(tmp_path / name)))
    exec(compile(code, "reviews.py", "exec"), {"__name__": "reviews"})
    rated = pq.read_table(tmp_path / "rated").to_pylist()
    assert {row["text"] for row in rated} == {f"Review {number}" for number in range(40)}
    assert all(row["ok"] and isinstance(row["output"]["stars"], int) for row in rated)


@pytest.mark.nightly
def test_a_row_that_fails_is_a_row_with_an_error(sim: SimServer) -> None:
    task = "Say {it}. [[sim: {said}]]"
    wrong, right = '{"fault": "400"}', '{"json": {"text": "fine"}}'
    rows = [{"it": f"n{number}", "said": wrong if number % 5 == 0 else right} for number in range(40)]
    out = mapped(dataset(rows, 2), sim, task=task).take_all()
    assert len(out) == 40
    assert {row["it"] for row in out if not row["ok"]} == {row["it"] for row in rows if row["said"] == wrong}
    failed = [row for row in out if not row["ok"]]
    assert all(row["error_kind"] and row["error_message"] and row["output"] is None for row in failed)


def test_killed_actors_lose_no_row_and_repeat_at_most_what_was_in_flight(tmp_path: Path) -> None:
    rows, kills, inflight = 4_000, 3, 16
    with SimServer(SimConfig(step_base_ms=15.0)) as sim:
        killer = Killer(sim, [rows * (at + 1) // (kills + 1) for at in range(kills)])
        with killer:
            out = mapped(dataset(words(rows), 4), sim, max_inflight=inflight, checkpoint_dir=tmp_path).take_all()
        assert killer.killed == kills
        assert Counter(row["id"] for row in out) == Counter(range(rows))
        assert all(row["output"]["text"] == row["it"] for row in out)
        assert rows <= requests_of(sim) <= rows + kills * UNWRITTEN * inflight
        before = requests_of(sim)
        again = mapped(dataset(words(rows), 4), sim, checkpoint_dir=tmp_path).take_all()
        assert Counter(row["id"] for row in again) == Counter(range(rows))
        assert requests_of(sim) == before  # every answer is in a checkpoint


@pytest.mark.nightly
def test_without_a_checkpoint_dir_a_killed_actor_is_adopted_too_and_nothing_stays(sim: SimServer) -> None:
    rows, inflight = 3_000, 16
    with Killer(sim, [rows // 2]) as killer:
        out = mapped(dataset(words(rows), 2), sim, workers=1, max_inflight=inflight).take_all()
    assert killer.killed == 1
    assert Counter(row["id"] for row in out) == Counter(range(rows))
    assert requests_of(sim) <= rows + UNWRITTEN * inflight


@pytest.mark.nightly
def test_actors_share_the_budget_and_rows_beyond_it_are_errors(sim: SimServer) -> None:
    limit = 6_000
    out = mapped(dataset(words(600), 6), sim, max_total_tokens=limit, max_tokens=20).take_all()
    metrics = sim.metrics()
    assert metrics["vllm:prompt_tokens_total"] + metrics["vllm:generation_tokens_total"] <= limit
    kinds = Counter(row["error_kind"] for row in out)
    assert len(out) == 600
    assert kinds.keys() == {None, "budget"}
    assert sum(row["input_tokens"] + row["output_tokens"] for row in out) <= limit


@pytest.mark.nightly
def test_actors_share_the_limit_of_requests_in_flight() -> None:
    with SimServer(SimConfig(step_base_ms=30.0)) as sim, Peak(sim) as peak:
        out = mapped(dataset(words(300), 4), sim, max_inflight=6).take_all()
    assert len(out) == 300
    assert 0 < peak.seen <= 6


@pytest.mark.nightly
def test_actors_share_tool_calls_and_the_rate_limit_of_a_tool(sim: SimServer, tmp_path: Path) -> None:
    noted = tmp_path / "calls"
    look_up = lookup_tool(str(noted))
    call = '{{"calls": [{{"name": "look_up", "arguments": {{"name": "{topic}"}}}}]}}'
    task = f'Look {{it}} up. [[sim: [{call}, {{{{"json": {{{{"text": "{{it}}"}}}}}}}}]]]'
    rows = [{"id": number, "it": f"n{number}", "topic": f"t{number % 12}"} for number in range(120)]
    out = mapped(dataset(rows, 4), sim, task=task, tools=[look_up]).take_all()
    assert len(out) == 120
    assert all(row["ok"] and row["turns"] == 2 for row in out)
    lines = [line.split() for line in noted.read_text().splitlines()]
    assert Counter(topic for topic, _, _ in lines) == Counter(f"t{number}" for number in range(12))
    times = sorted(float(at) for _, _, at in lines)
    assert times[-1] - times[0] >= 10 / 10  # one a tenth of a second; one may be late at first, and none is early


def test_an_error_of_an_actor_ends_the_execution_and_says_what_to_do(sim: SimServer) -> None:
    with pytest.raises(Exception, match="nothing"):
        mapped(dataset(words(5), 1), sim, workers=1, task="Say {nothing}").take_all()


def test_options_that_a_dataset_has_itself_are_refused(sim: SimServer) -> None:
    rows = dataset(words(5), 1)
    refused: list[dict[str, Any]] = [
        {"limit": 3},
        {"out": "a.jsonl"},
        {"samples": 2},
        {"store": "redis://127.0.0.1"},
        {"inputs": []},
    ]
    for option in refused:
        with pytest.raises(SpecError):
            mapped(rows, sim, **option)
    with pytest.raises(SpecError, match="Ray Dataset"):
        mapped([{"it": "a"}], sim)


def lookup_tool(path: str) -> Tool:
    """A tool that is in no module, as people define them in a notebook."""

    @Tool.define(effect="read", rate_limit=10.0, burst=1)
    def look_up(name: str) -> str:
        """Look a name up."""
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(opened, f"{name} {os.getpid()} {time.time()}\n".encode())
        os.close(opened)
        return f"found {name}"

    return look_up


class Watch:
    """Thread that looks at a server again and again until the block ends."""

    def __init__(self, sim: SimServer) -> None:
        self._sim = sim
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def look(self, metrics: dict[str, float]) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        while not self._is_over.wait(0.02):
            with suppress(OSError):
                self.look(self._sim.metrics())

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


class Peak(Watch):
    """The most requests in flight that were seen."""

    seen = 0.0

    def look(self, metrics: dict[str, float]) -> None:
        now = metrics["vllm:num_requests_running"] + metrics["vllm:num_requests_waiting"]
        self.seen = max(self.seen, now)


class Killer(Watch):
    """Kills an actor whenever the server has finished so many requests."""

    def __init__(self, sim: SimServer, at: list[int]) -> None:
        super().__init__(sim)
        self._at = at
        self.killed = 0

    def look(self, metrics: dict[str, float]) -> None:
        if self.killed < len(self._at) and metrics["vllm:request_success_total"] >= self._at[self.killed]:
            actors = map_actors()
            if actors:
                os.kill(actors[self.killed % len(actors)], signal.SIGKILL)
                self.killed += 1
