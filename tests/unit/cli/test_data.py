"""`batch-agent run` with inputs from wherever they are, and results to a table."""

import csv
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from tests.unit.programs import Call

from batch_agent.cli.command import read_command
from batch_agent.sim import Script, SimConfig, SimServer


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=6)) as sim:
        yield sim.url


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "in.tsv").write_text("name\tage\nZoë\t36\nAda\t\n")
    duckdb.sql("SELECT 'Zoë' AS name UNION ALL SELECT 'Ada'").write_parquet(str(folder / "in.parquet"))
    with closing(sqlite3.connect(folder / "in.db")) as database, database:
        database.execute("CREATE TABLE people AS SELECT 'Zoë' AS name UNION ALL SELECT 'Ada'")
    return folder


def words(url: str, inputs: str, *more: str) -> list[str]:
    return ["run", "--task", "Who is {name}?", "--inputs", inputs, "--backend", url, *more]


@pytest.mark.parametrize("more", [(), ("--reduce", "Sum up {n} people.")])
def test_parquet_in_and_parquet_out(place: Path, sim_url: str, call: Call, more: tuple[str, ...]) -> None:
    done = call(*words(sim_url, "in.parquet", "--out", "out.parquet", *more), cwd=place)
    assert done.returncode == 0, done.stderr
    found = duckdb.read_parquet(str(place / "out.parquet"))
    assert found.select('index, "input.name", ok').fetchall() == [(0, "Zoë", True), (1, "Ada", True)]
    assert not list(place.glob("*.rows.jsonl"))


def test_tsv_in_and_csv_out(place: Path, sim_url: str, call: Call) -> None:
    done = call(*words(sim_url, "in.tsv", "--out", "out.csv"), cwd=place)
    assert done.returncode == 0, done.stderr
    with (place / "out.csv").open(newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["index"])
    assert [json.loads(row["input"]) for row in rows] == [{"name": "Zoë", "age": "36"}, {"name": "Ada", "age": ""}]


def test_a_database_is_asked_again_by_resume_from_any_folder(place: Path, sim_url: str, call: Call) -> None:
    done = call(*words(sim_url, "sqlite:///in.db", "--query", "SELECT name FROM people"), cwd=place)
    assert done.returncode == 0, done.stderr
    again = call("resume", "here/results.jsonl.checkpoint", cwd=place.parent)
    assert again.returncode == 0, again.stderr
    assert "2 answers came from the checkpoint" in again.stderr
    rows = [json.loads(line) for line in (place / "results.jsonl").read_text().splitlines()]
    assert [row["input"] for row in rows] == [{"name": "Zoë"}, {"name": "Ada"}]


def test_a_file_is_found_again_by_resume_from_any_folder(place: Path, sim_url: str, call: Call) -> None:
    assert call(*words(sim_url, "in.parquet", "--out", "out.parquet"), cwd=place).returncode == 0
    checkpoint = place / "out.parquet.checkpoint"
    assert read_command(checkpoint)[1]["inputs"] == place / "in.parquet"
    again = call("resume", str(checkpoint), cwd=place.parent)
    assert again.returncode == 0, again.stderr
    assert "2 answers came from the checkpoint" in again.stderr
    assert duckdb.read_parquet(str(place / "out.parquet")).shape[0] == 2


def test_the_password_of_a_database_is_not_kept(place: Path, sim_url: str, call: Call) -> None:
    url = "sqlite:///in.db?password=s3cret"
    asked = words(sim_url, url, "--query", "SELECT name FROM people")
    done = call(*asked, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "s3cret" not in (place / "results.jsonl.checkpoint" / "command.json").read_text()
    refused = call("resume", "results.jsonl.checkpoint", cwd=place)
    assert refused.returncode == 2
    assert "Give the whole command again" in refused.stderr
    assert "2 answers came from the checkpoint" in call(*asked, cwd=place).stderr


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("sqlite:///in.db",), '--inputs names a database: say what to read from it, with --query "SELECT ...".'),
        (("in.tsv", "--query", "SELECT 1"), "--query is about a database"),
        (("sqlite:///in.db", "--query", "SELECT * FROM gone"), "no such table: gone"),
        (("sqlite:///gone.db", "--query", "SELECT 1"), "There is no database 'gone.db'"),
        (("in.txt",), "There is no 'in.txt'"),
        (("in.tsv", "--out", "out.xlsx"), "--out 'out.xlsx': results are a .jsonl, .csv or .parquet file"),
    ],
)
def test_what_cannot_be_read_or_written_is_one_clear_line(
    place: Path, sim_url: str, call: Call, more: tuple[str, ...], problem: str
) -> None:
    done = call(*words(sim_url, *more), cwd=place)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
