"""The options of a run have the same names and types in the dataclasses, the TypedDicts, help() and the docs."""

import ast
import inspect
import pickle
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from scripts.option_types import ACCEPTED, FILE, declared, text

from batch_agent import AgentResult, BatchAgent, Flow, Results, RunOptions
from batch_agent.core.options import run_options
from batch_agent.core.options.flat_options import FORMER_SPELLINGS, OPTION_GROUPS, flat_name
from batch_agent.core.options.run_options import ReplayOptions, SpecOptions, StageOptions
from batch_agent.core.spec import OPTION_NAMES, BatchSpec

DOCS = Path(__file__).parents[4] / "docs"
CALLS = ["run", "run_sync", "stream", "run_with_reduce", "run_with_map_reduce", "work", "lint", "plan", "replay"]
OF_A_RUN = {*OPTION_NAMES, "events", "progress"} - set(FORMER_SPELLINGS)


def accepted() -> dict[str, str]:
    """The type of each option of a spec, as its dataclass declares it and a call accepts it."""
    types = {name: type_ for name, type_, _ in declared(BatchSpec) if name not in OPTION_GROUPS}
    for group, kind in OPTION_GROUPS.items():
        types |= {flat_name(group, name): type_ for name, type_, _ in declared(kind)}
    return types


def typed() -> dict[str, str]:
    """The same, as the TypedDicts have it."""
    types: dict[str, str] = {}
    for file in (FILE, Path(inspect.getfile(run_options))):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and node.name in {"AgentOptions", "CommonOptions", "TaskOptions"}:
                types |= {
                    ast.unparse(each.target): _type(each) for each in node.body if isinstance(each, ast.AnnAssign)
                }
    return {name: type_ for name, type_ in types.items() if name not in OPTION_GROUPS}


def _type(declared: ast.AnnAssign) -> str:
    return re.sub(r"^Required\[(.*)\]$", r"\1", ast.unparse(declared.annotation))


def documented() -> dict[str, str]:
    rows = [re.split(r"(?<!\\)\|", line) for line in (DOCS / "options.md").read_text().splitlines()]
    types = [(row[1].strip(" `"), row[2].strip(" `")) for row in rows if len(row) == 6 and row[1].startswith(" `")]
    assert len(dict(types)) == len(types), "an option is in the table twice"
    return {name: type_.replace("\\|", "|").replace('"', "'") for name, type_ in types}


def test_the_generated_option_types_match_the_dataclasses() -> None:
    assert FILE.read_text() == text(), "run `python -m scripts.option_types`"


def test_every_option_has_the_type_of_its_field() -> None:
    assert typed() | {"output_schema": "Any"} == accepted()


def test_the_docs_have_every_option_with_its_type() -> None:
    assert documented() == accepted() | {"events": "EventSinks", "progress": "bool | None"}


def test_every_option_has_a_description() -> None:
    every: list[type[object]] = [BatchSpec, *OPTION_GROUPS.values()]
    assert [
        name for kind in every for name, _, about in declared(kind) if not about and name not in OPTION_GROUPS
    ] == []


@pytest.mark.parametrize(("stored", "given"), ACCEPTED.items())
def test_every_widened_type_belongs_to_an_existing_option(stored: str, given: str) -> None:
    assert given in typed().values()
    assert stored not in typed().values()


def test_every_typed_option_is_an_option() -> None:
    assert {*RunOptions.__annotations__, "output_schema"} == OF_A_RUN | set(OPTION_GROUPS)
    for options in (SpecOptions, StageOptions, ReplayOptions):
        assert set(options.__annotations__) <= set(RunOptions.__annotations__) | {"output_schema"}


@pytest.mark.parametrize("call", CALLS)
def test_the_signature_of_a_call_lists_its_options(call: str) -> None:
    parameters = inspect.signature(getattr(BatchAgent, call)).parameters
    wanted = {"max_turns", "temperature", "tools", "task", "output_schema"}
    assert wanted <= set(parameters)
    assert str(parameters["max_turns"]).startswith("max_turns: int | None = ")
    assert not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())


def test_the_signature_of_a_run_has_every_option_with_its_default() -> None:
    shown = inspect.signature(BatchAgent.run).parameters
    assert set(shown) == {"spec", *OF_A_RUN}
    defaults = {field.name: field.default for field in fields(OPTION_GROUPS["retry"])}
    assert {name: shown[name].default for name in defaults} == defaults
    assert shown["task"].default is shown["inputs"].default is inspect.Parameter.empty
    assert str(shown["backend"]) == (
        "backend: str | BackendSettings | Sequence[str | BackendSettings] | Backend = 'local://'"
    )


def test_the_docstring_of_a_run_names_every_option_once() -> None:
    listed = re.findall(r"^- [\w ]+: ([\w,\s]+)\.$", inspect.getdoc(BatchAgent.run) or "", flags=re.MULTILINE)
    names = re.split(r",\s+", ", ".join(listed))
    assert sorted(names) == sorted(OF_A_RUN)


def test_a_stage_lists_its_options() -> None:
    for call in (Flow, Flow.map, Flow.reduce):
        assert "temperature" in inspect.signature(call).parameters


def test_results_are_generic_and_typed() -> None:
    result = AgentResult[int](0, "a", output=3)
    assert type(result) is AgentResult
    assert isinstance(result, AgentResult)
    assert result == pickle.loads(pickle.dumps(result)) == replace(result)
    assert not hasattr(result, "__dict__")
    results = Results[int]([result])
    assert type(results) is Results
    assert isinstance(results, list)
    assert pickle.loads(pickle.dumps(results)) == results
    assert results.failed == []
