"""A checkpoint as a table: the rows of the run that made it."""

import csv
import io
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import orjson
import pytest
from pydantic import BaseModel, ConfigDict, field_validator
from tests.support.forked_programs import PROGRAM, Programs

from batch_agent import BatchAgent, SpecError, Tool
from batch_agent.cli.commands.export import export
from batch_agent.core.errors import StoreError
from batch_agent.core.requests import Request
from batch_agent.core.results import AgentResult
from batch_agent.data import as_row, read_inputs
from batch_agent.sim import Script, SimConfig, SimServer
from batch_agent.testing import Answer, ScriptedBackend, by_turn, call, say


class City(BaseModel):
    name: str
    near: "list[City]" = []


class Shut(BaseModel):
    model_config = ConfigDict(extra="forbid")
    answer: City


@Tool.define(effect="read")
async def look(name: str) -> str:
    """Look up."""
    return f"about {name}"


def rows(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_text().splitlines()]


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "seconds"}


async def run(folder: Path, backend: Any, inputs: Any = ("ä", "字"), **options: Any) -> list[AgentResult]:
    results: list[AgentResult] = await BatchAgent.run(
        task="{it}", inputs=inputs, backend=backend, checkpoint_dir=folder, **options
    )
    return results


async def test_exported_rows_equal_those_of_the_run(tmp_path: Path) -> None:
    with SimServer(SimConfig(zero_latency=True), Script(answer_tokens=8)) as sim:
        results = await run(tmp_path / "c", sim.url, [f"{n} ✓" for n in range(30)], tools=[look], output_schema=City)
    assert export(tmp_path / "c", out=tmp_path / "out.jsonl") == 0
    found = rows(tmp_path / "out.jsonl")
    assert list(map(timeless, found)) == [timeless(as_row(result)) for result in results]
    assert list(found[0]) == list(as_row(results[0]))


NUMBER = {"type": "integer"}
NATIVE, ACTION = {"native_tools": True}, {"native_tools": False}
KEPT, ASKED = {"json_schema": True}, {"json_schema": False}


@pytest.mark.slow
@pytest.mark.parametrize("schemas", [KEPT, ASKED, {"json_schema_with_tools": False}])
@pytest.mark.parametrize("mode", [NATIVE, ACTION])
@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        (None, "just a text"),
        (City, {"name": "Köln", "near": [{"name": "Bonn", "near": []}]}),
        (Shut, {"answer": {"name": "Köln", "near": []}}),
        (int, 7),
        (list[City], [{"name": "Köln", "near": []}]),
        (Literal["yes", "no"], "yes"),
        ({"type": "object", "properties": {"n": {"$ref": "#"}}, "additionalProperties": False}, {"n": {"n": {}}}),
    ],
)
async def test_an_export_restores_any_output_schema_from_the_checkpoint(
    tmp_path: Path, schemas: dict[str, Any], mode: dict[str, Any], schema: Any, answer: Any
) -> None:
    final = answer if isinstance(answer, str) else orjson.dumps(answer).decode()
    action = orjson.dumps({"final": answer}).decode()
    first = call("look", name="x") if mode is NATIVE else say('{"tool": "look", "arguments": {"name": "x"}}')
    backend = ScriptedBackend(by_turn(first, say(final if mode is NATIVE else action)), **mode, **schemas)
    results = await run(tmp_path / "c", backend, tools=[look], output_schema=schema)
    assert all(result.ok for result in results)
    export(tmp_path / "c", out=tmp_path / "out.jsonl")
    assert list(map(timeless, rows(tmp_path / "out.jsonl"))) == [timeless(as_row(result)) for result in results]
    assert rows(tmp_path / "out.jsonl")[0]["output"] == answer


async def test_failed_agents_are_exported_whatever_max_retries_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(request: Request) -> Answer:
        return say("7" if request.messages[0].text == "a" else "no number")  # type: ignore[union-attr]

    results = await run(tmp_path / "c", ScriptedBackend(answer), list("ab"), output_schema=NUMBER, max_retries=0)
    export(tmp_path / "c", out=tmp_path / "out.jsonl", max_retries=0)
    assert list(map(timeless, rows(tmp_path / "out.jsonl"))) == [timeless(as_row(result)) for result in results]
    assert rows(tmp_path / "out.jsonl")[1]["error"]["kind"] == "invalid_output"
    export(tmp_path / "c", out=tmp_path / "again.jsonl")
    assert rows(tmp_path / "again.jsonl") == rows(tmp_path / "out.jsonl")
    assert "again.jsonl: 1 answered, 1 failed." in capsys.readouterr().err


async def test_an_export_uses_defaults_and_conversions_of_the_output_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_model.py").write_text(
        "from pydantic import BaseModel\nclass Own(BaseModel):\n    n: int\n    unit: str = 'cm'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_model  # type: ignore[import-not-found]

    await run(tmp_path / "c", ScriptedBackend(lambda request: say('{"n": "7"}')), ["a"], output_schema=own_model.Own)
    export(tmp_path / "c", out=tmp_path / "out.jsonl")
    [row] = rows(tmp_path / "out.jsonl")
    assert (row["status"], row["output"]) == ("answered", {"n": "7"})
    export(tmp_path / "c", out=tmp_path / "out.jsonl", schema="own_model:Own")
    assert rows(tmp_path / "out.jsonl")[0]["output"] == {"n": 7, "unit": "cm"}


async def test_a_csv_has_the_same_columns_in_every_row(tmp_path: Path) -> None:
    await run(tmp_path / "c", ScriptedBackend(lambda request: say('a "quoted"\ntext, ünd')), [{"it": 1}, {"it": 2}])
    export(tmp_path / "c", out=tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert first["output"] == second["output"] == 'a "quoted"\ntext, ünd'
    assert (first["index"], first["ok"], first["error_message"], first["input.it"]) == ("0", "true", "", "1")
    assert (first["turns"], first["input_tokens"], first["error_kind"]) == ("1", "0", "")


async def test_parquet_has_a_column_for_each_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backend = ScriptedBackend(lambda request: say('{"name": "Köln"}'))
    results = await run(tmp_path / "c", backend, [{"it": 1}, {"it": 2}], output_schema=City)
    assert export(tmp_path / "c", out=tmp_path / "out.parquet") == 0
    assert "Wrote 2 rows" in capsys.readouterr().err
    found: Any = read_inputs(tmp_path / "out.parquet")
    assert [(row["index"], row["key"], row["input.it"]) for row in found] == [
        (result.index, result.key, result.input["it"]) for result in results
    ]
    assert [row["output.name"] for row in found] == ["Köln", "Köln"]
    with pytest.raises(SpecError, match="Choose a file with --out"):
        export(tmp_path / "c", format="parquet")


async def test_an_older_file_stays_when_the_export_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await run(tmp_path / "c", ScriptedBackend(lambda request: say("done")))
    (tmp_path / "out.jsonl").write_text("old\n")

    def break_down(*_: Any, **__: Any) -> Iterator[Any]:
        raise RuntimeError("in the middle")

    monkeypatch.setattr("batch_agent.run.checkpoint_table.recorded_result", break_down)
    with pytest.raises(RuntimeError):
        export(tmp_path / "c", out=tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == "old\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "out.jsonl"]


def test_an_unknown_suffix_needs_a_format_option(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--out '.*out\.xlsx'.* Choose jsonl, csv or parquet with --format"):
        export(tmp_path, out=tmp_path / "out.xlsx")
    with pytest.raises(StoreError, match="There is no checkpoint"):
        export(tmp_path, out=tmp_path / "out.txt", format="csv")


def test_a_checkpoint_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read: File name too long"):
        export(tmp_path / ("x" * 300))


async def test_an_unwritable_export_path_is_a_clear_error(tmp_path: Path) -> None:
    await run(tmp_path / "c", ScriptedBackend(lambda request: say("done")))
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "out.jsonl", tmp_path / "c"):
        with pytest.raises(SpecError, match="cannot be written"):
            export(tmp_path / "c", out=place)


@pytest.mark.slow
async def test_an_export_to_a_pipe_ends_when_the_reader_closes_it(tmp_path: Path, programs: Programs) -> None:
    huge = "ü" * 2_000
    await run(tmp_path / "c", ScriptedBackend(lambda request: say(huge)), map(str, range(200)))
    whole = programs.call("export", str(tmp_path / "c"), "--format", "csv", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    written = list(csv.DictReader(io.StringIO(whole.stdout)))
    assert [int(row["index"]) for row in written] == list(range(200))
    assert "Wrote 200 rows: 200 answered, 0 failed." in whole.stderr
    process = subprocess.Popen(
        [*PROGRAM, "export", str(tmp_path / "c")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=30) == 0


class Priced(BaseModel):
    price: Decimal
    parts: list[float]

    @field_validator("parts")
    @classmethod
    def doubled(cls, parts: list[float]) -> list[float]:
        return parts * 2


async def test_an_answer_that_only_the_type_of_the_run_accepts_is_exported_as_data(tmp_path: Path) -> None:
    answer = '```json\n{"price": 1.50, "parts": [NaN, 1.0]}\n```'
    [result] = await run(tmp_path / "c", ScriptedBackend(by_turn(say(answer))), ["x"], output_schema=Priced)
    assert result.ok
    export(tmp_path / "c", out=tmp_path / "out.jsonl")
    export(tmp_path / "c", out=tmp_path / "out.csv")
    [line] = rows(tmp_path / "out.jsonl")
    assert line["output"] == {"price": 1.5, "parts": [None, 1.0]}
    [row] = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    assert (row["output.price"], row["output.parts"]) == ("1.5", "[null,1.0]")
