"""Whatever inputs and answers hold, a reduce is told of it."""

import datetime
import decimal
import json
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from tests.support.flow_harness import entries, prompts, saying

from batch_agent import BatchAgent, Flow
from batch_agent.testing import ScriptedBackend


class Found(BaseModel):
    tags: set[str]
    price: decimal.Decimal
    on: datetime.date
    more: dict[str, float | None] = {}


@dataclass
class Place:
    name: str


class Sealed:
    def __str__(self) -> str:
        raise RuntimeError("sealed")


async def reduced(inputs: list[Any], **options: Any) -> list[Any]:
    backend = ScriptedBackend(saying({"Sum": "all"}))
    results, summary = await BatchAgent.run_with_reduce(
        task="Look at {it}", inputs=inputs, reduce="Sum", backend=backend, **options
    )
    assert summary == "all"
    assert len(results) == len(inputs)
    [prompt] = prompts(backend, beginning="Sum")
    return entries(prompt)


async def test_answers_of_any_type_are_shown_as_json() -> None:
    answer = {"tags": ["b", "ü", "a"], "price": "1.10", "on": "2024-02-29", "more": {"x": None}}
    backend = ScriptedBackend(saying({"Look": answer, "Sum": "all"}))
    results, _ = await BatchAgent.run_with_reduce(
        task="Look at {it}", inputs=["here"], output_schema=Found, reduce="Sum", backend=backend
    )
    assert results[0].output == Found.model_validate(answer)
    [prompt] = prompts(backend, beginning="Sum")
    assert entries(prompt)[0]["output"] == {**answer, "tags": ["a", "b", "ü"]}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("half \ud800", "half �"),
        (10**30, 10**30),
        (float("nan"), None),
        ({"b", "a"}, ["a", "b"]),
        (Place("Rome"), {"name": "Rome"}),
        (datetime.datetime(2024, 1, 1), "2024-01-01T00:00:00"),
        (decimal.Decimal("0.30"), "0.30"),
        ([1, 2], [1, 2]),
        ({"a": {"b": 1}}, {"a": {"b": 1}}),
        ("{n} and {results}", "{n} and {results}"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_inputs_of_any_type_are_shown(value: Any, shown: Any) -> None:
    assert await reduced([{"it": value}]) == [
        {"status": "ok", "index": 0, "input": {"it": shown}, "output": "ok"},
    ]


async def test_an_input_that_cannot_be_serialized_is_only_an_error_entry() -> None:
    first, second = await reduced([{"it": "fine", "thing": 1}, {"it": "fine", "thing": Sealed()}])
    assert first["status"] == "ok"
    assert (second["status"], second["index"], second["error"]["kind"]) == ("error", 1, "callback")
    assert "RuntimeError: sealed" in second["error"]["message"]


@pytest.mark.parametrize(
    ("shown", "entry"),
    [
        (lambda item: item["it"].upper(), "A"),
        (lambda item: {"who": item["it"], "said": item["do"]}, {"who": "a", "said": "ok"}),
        (lambda item: None, None),
        (lambda item: item, {"it": "a", "do": "ok"}),
        (lambda item: {1, 2}, [1, 2]),
    ],
)
async def test_a_flow_may_choose_the_shown_fields(shown: Any, entry: Any) -> None:
    backend = ScriptedBackend(saying({}))
    flow = Flow([{"it": "a"}], backend=backend).map("do", "Do {it}").reduce("all", "Sum <{results}>", shown=shown)
    await flow.run()
    [prompt] = prompts(backend, beginning="Sum")
    assert json.loads(prompt.removeprefix("Sum <").removesuffix(">")) == [entry]


async def test_values_that_cannot_be_shown_and_failures_are_error_entries() -> None:
    def shown(item: Any) -> Any:
        return 1 // (item["it"] - 1)

    backend = ScriptedBackend(saying({"Do 2": "nonsense", "Do": {"answer": True}}))
    inputs = [{"it": number} for number in range(3)]
    flow = Flow(inputs, backend=backend, max_retries=0).map("do", "Do {it}", output_schema=bool)
    await flow.reduce("all", "Sum", shown=shown).run()
    [prompt] = prompts(backend, beginning="Sum")
    assert "-1,\n" in prompt
    _, broken, failed = entries(prompt.replace("-1,\n", '{"status":"ok"},\n'))
    assert (broken["index"], broken["error"]["kind"], broken["input"]) == (1, "callback", {"it": 1})
    assert "ZeroDivisionError" in broken["error"]["message"]
    assert (failed["index"], failed["error"]["kind"]) == (2, "invalid_output")
