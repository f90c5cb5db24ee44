"""`batch-agent run` with inputs from wherever they are, and results to a table."""

import csv
import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from tests.support.forked_programs import Call, Programs
from tests.support.waits import wait_until

from batch_agent.cli.checkpoint import delete_checkpoint
from batch_agent.cli.saved_command import read_command, without_secrets
from batch_agent.core.errors import StoreError
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.store.lock import DirectoryLock


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=6)) as sim:
        yield sim.url


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "in.jsonl").write_text('{"name": "Ada"}\n')
    (folder / "in.tsv").write_text("name\tage\nZoë\t36\nAda\t\n")
    duckdb.sql("SELECT 'Zoë' AS name UNION ALL SELECT 'Ada'").write_parquet(str(folder / "in.parquet"))
    with closing(sqlite3.connect(folder / "in.db")) as database, database:
        database.execute("CREATE TABLE people AS SELECT 'Zoë' AS name UNION ALL SELECT 'Ada'")
    return folder


def words(url: str, inputs: str, *more: str) -> list[str]:
    return ["run", "--task", "Who is {name}?", "--inputs", inputs, "--backend", url, *more]


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--reduce", "Sum up {n} people.")])
def test_run_reads_and_writes_parquet(place: Path, sim_url: str, call: Call, more: tuple[str, ...]) -> None:
    done = call(*words(sim_url, "in.parquet", "--out", "out.parquet", *more), cwd=place)
    assert done.returncode == 0, done.stderr
    found = duckdb.read_parquet(str(place / "out.parquet"))
    assert found.select('index, "input.name", ok').fetchall() == [(0, "Zoë", True), (1, "Ada", True)]
    assert not list(place.glob("*.rows.jsonl"))


def test_run_reads_tsv_and_writes_csv(place: Path, sim_url: str, call: Call) -> None:
    done = call(*words(sim_url, "in.tsv", "--out", "out.csv"), cwd=place)
    assert done.returncode == 0, done.stderr
    with (place / "out.csv").open(newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["index"])
    assert [(row["input.name"], row["input.age"]) for row in rows] == [("Zoë", "36"), ("Ada", "")]


@pytest.mark.slow
def test_resume_queries_the_database_again_from_any_folder(place: Path, sim_url: str, call: Call) -> None:
    done = call(*words(sim_url, "sqlite:///in.db", "--query", "SELECT name FROM people"), cwd=place)
    assert done.returncode == 0, done.stderr
    again = call("resume", "here/results.jsonl.checkpoint", cwd=place.parent)
    assert again.returncode == 0, again.stderr
    assert "2 answers restored from the checkpoint" in again.stderr
    rows = [json.loads(line) for line in (place / "results.jsonl").read_text().splitlines()]
    assert [row["input"] for row in rows] == [{"name": "Zoë"}, {"name": "Ada"}]


@pytest.mark.slow
def test_resume_finds_the_input_file_from_any_folder(place: Path, sim_url: str, call: Call) -> None:
    assert call(*words(sim_url, "in.parquet", "--out", "out.parquet"), cwd=place).returncode == 0
    checkpoint = place / "out.parquet.checkpoint"
    assert read_command(checkpoint)[1]["inputs"] == place / "in.parquet"
    again = call("resume", str(checkpoint), cwd=place.parent)
    assert again.returncode == 0, again.stderr
    assert "2 answers restored from the checkpoint" in again.stderr
    assert duckdb.read_parquet(str(place / "out.parquet")).shape[0] == 2


@pytest.mark.parametrize(
    ("url", "is_kept"),
    [
        ("postgresql://me@host/db", True),
        ("sqlite:///in.db", True),
        ("postgresql://me:s3cret@host/db", False),
        ("postgresql://me:s3/cret@host/db", False),
        ("snowflake://me@host/db?private_key=s3cret", False),
    ],
)
def test_database_urls_with_a_password_are_recognized(url: str, is_kept: bool) -> None:
    assert ("inputs" in without_secrets({"inputs": url, "task": "//me:s3cret@host"})) is is_kept


@pytest.mark.slow
def test_the_password_of_a_database_is_not_stored(place: Path, sim_url: str, call: Call) -> None:
    url = "sqlite:///in.db?password=s3cret"
    asked = words(sim_url, url, "--query", "SELECT name FROM people")
    done = call(*asked, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "s3cret" not in (place / "results.jsonl.checkpoint" / "command.json").read_text()
    refused = call("resume", "results.jsonl.checkpoint", cwd=place)
    assert refused.returncode == 2
    assert "Run the whole original command again" in refused.stderr
    assert "2 answers restored from the checkpoint" in call(*asked, cwd=place).stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("sqlite:///in.db",), '--inputs is a database, which needs a query: --query "SELECT ...".'),
        (("in.tsv", "--query", "SELECT 1"), "--query needs a database"),
        (("sqlite:///in.db", "--query", "SELECT * FROM gone"), "no such table: gone"),
        (("sqlite:///gone.db", "--query", "SELECT 1"), "The database 'gone.db' does not exist"),
        (("in.txt",), "'in.txt' does not exist"),
        (("in.tsv", "--out", "out.xlsx"), "--out 'out.xlsx': results must be a .jsonl, .csv or .parquet file"),
        (("in.jsonl", "--out", "in.jsonl"), "--out 'in.jsonl' would overwrite the inputs: use another file."),
        ((".",), "--out 'results.jsonl' is in the folder of the inputs"),
        ((".", "--out", "../out.csv", "--checkpoint", "kept"), "--checkpoint 'kept' is in the folder of the inputs"),
    ],
)
def test_unreadable_inputs_and_unwritable_results_are_one_line_errors(
    place: Path, sim_url: str, call: Call, more: tuple[str, ...], problem: str
) -> None:
    done = call(*words(sim_url, *more), cwd=place)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_fresh_removes_only_the_files_of_the_run(place: Path, sim_url: str, call: Call) -> None:
    (place / "run.sqlite3.backup").write_text("mine")
    for checkpoint in (".", "kept"):
        asked = words(sim_url, "in.jsonl", "--checkpoint", checkpoint)
        assert call(*asked, cwd=place).returncode == 0
        own = {path.name for path in place.iterdir()}
        again = call(*asked, "--fresh", cwd=place)
        assert again.returncode == 0, again.stderr
        assert "restored from the checkpoint" not in again.stderr
        assert {path.name for path in place.iterdir()} >= own


KEEPER = """
from batch_agent import ToolContext

def keep(context: ToolContext, name: str = "") -> str:
    '''Keep it.'''
    number = len(list(context.artifacts.iterdir()))
    (context.artifacts / f"{number}.txt").write_text(str(context.input))
    return "kept"
"""


@pytest.mark.slow
def test_files_that_tools_made_in_an_earlier_run_are_gone_after_fresh(place: Path, sim_url: str, call: Call) -> None:
    (place / "keeper.py").write_text(KEEPER)
    asked = [*words(sim_url, "in.jsonl", "--tools", "keeper:keep", "--checkpoint", "kept")]

    def made(*more: str) -> list[str]:
        done = call(*asked, *more, cwd=place)
        assert done.returncode == 0, done.stderr
        [row] = map(json.loads, (place / "results.jsonl").read_text().splitlines())
        return [Path(each).name for each in row["artifacts"]]

    assert made() == ["0.txt"]
    assert made() == ["0.txt"]  # restored
    assert made("--fresh") == ["0.txt"]
    mine = place / "kept" / "mine.txt"
    mine.write_text("mine")
    asked[asked.index("keeper:keep") - 1 : asked.index("keeper:keep") + 1] = []
    done = call(*asked, "--fresh", cwd=place)
    assert done.returncode == 0, done.stderr
    assert not (place / "kept" / "artifacts").exists()
    assert mine.exists()


def test_fresh_removes_the_artifacts_of_every_stage_and_nothing_behind_a_link(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir()
    (elsewhere / "mine.txt").write_text("mine")
    for stage in (folder, folder / "map", folder / "reduce"):
        (stage / "artifacts" / "key").mkdir(parents=True)
        (stage / "artifacts" / "key" / "made.txt").write_text("made")
        (stage / "artifacts" / "key" / "link").symlink_to(elsewhere)
        (stage / "run.syncs").write_text("3")
    delete_checkpoint(folder)
    assert not folder.exists()
    folder.mkdir()
    (folder / "artifacts").symlink_to(elsewhere)
    with pytest.raises(StoreError, match=r"artifacts.* cannot be deleted"):
        delete_checkpoint(folder)
    assert (elsewhere / "mine.txt").exists()


def test_fresh_does_not_remove_an_active_run(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.take()
    (tmp_path / "run.sqlite3").write_text("facts")
    with pytest.raises(StoreError, match="Another run is using the checkpoint"):
        delete_checkpoint(tmp_path)
    assert (tmp_path / "run.sqlite3").exists()
    lock.release()
    delete_checkpoint(tmp_path)
    assert not tmp_path.exists()
    delete_checkpoint(tmp_path)


@pytest.mark.slow
def test_a_run_stopped_before_its_first_result_keeps_the_old_results_file(
    place: Path, sim_url: str, programs: Programs, call: Call
) -> None:
    assert call(*words(sim_url, "in.jsonl"), cwd=place).returncode == 0
    before = (place / "results.jsonl").read_text()
    with SimServer(SimConfig(step_base_ms=60_000), Script()) as slow:
        program = programs.start_command(*words(slow.url, "in.jsonl", "--checkpoint", "new"), cwd=place)
        wait_until((place / "new" / "command.json").exists)
        program.send_signal(signal.SIGTERM)
        assert program.wait() == 143
    assert (place / "results.jsonl").read_text() == before
