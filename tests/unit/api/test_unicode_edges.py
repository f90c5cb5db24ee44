"""Odd texts everywhere: names of fields, inputs, answers, tools, their results, folders."""

import warnings
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.engine_harness import asked

from batch_agent import BatchAgent, SpecError, Tool
from batch_agent.core.messages import ToolResults
from batch_agent.observe.report.html import REPORT, write_report
from batch_agent.testing import ScriptedBackend, by_turn, call, say

TEXTS = {
    "letters": "ü漢",
    "emoji": "🙂👨‍👩‍👧",
    "right to left": "\u202eاسم",
    "combined": "e\u0301",
    "nul": "a\0b",
    "half": "a\ud800b",
    "line ends": "a\r\n\u2028b",
    "terminal": "\x1b[31mred",
    "long": "漢" * 5_000,
}
NAMES = ["größe", "Größe (cm)", "😀", "👨‍👩‍👧", "اسم", "e\u0301", "x\u200dy", "#", "1", "naïve café", "a\0b"]


def whole(text: str) -> str:
    return text.replace("\ud800", "\ufffd")


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_any_text_survives_as_input_and_answer(tmp_path: Path, text: str) -> None:
    backend = ScriptedBackend(lambda request: say(f"heard {text}"))
    for _ in range(2):
        [result] = await BatchAgent.run(
            task="Do {it}", inputs=[text], backend=backend, checkpoint_dir=tmp_path, out=tmp_path / "out.jsonl"
        )
        assert (
            whole(result.output.replace("?", "\ud800") if "\ud800" in text else result.output) == f"heard {whole(text)}"
        )
    [request] = backend.requests
    assert asked(request) == f"Do {whole(text)}"
    assert orjson.loads((tmp_path / "out.jsonl").read_bytes())["index"] == 0
    assert (tmp_path / REPORT).exists()
    assert write_report(tmp_path, tmp_path / "again.html").stat().st_size > 1_000
    assert len(await BatchAgent.replay(tmp_path)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_a_row_with_any_field_name_is_written(tmp_path: Path, text: str, suffix: str) -> None:
    backend = ScriptedBackend(lambda request: say("done"))
    out = tmp_path / f"out.{suffix}"
    rows: list[Any] = [{"it": "x", text: [{text: 1}]}]
    [result] = await BatchAgent.run(
        task="Do {it}", inputs=rows, backend=backend, checkpoint_dir=tmp_path / "kept", out=out
    )
    assert result.ok
    assert out.stat().st_size > 0


@pytest.mark.parametrize("name", NAMES)
async def test_a_field_may_have_any_name_and_is_not_warned_about(name: str) -> None:
    backend = ScriptedBackend(lambda request: say("done"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await BatchAgent.run(task=f"Do {{{name}}}", inputs=[{name: "the value"}], backend=backend, progress=False)
    assert asked(backend.requests[0]) == "Do the value"


async def test_braces_that_no_input_fills_are_warned_about() -> None:
    backend = ScriptedBackend(lambda request: say("done"))
    with pytest.warns(UserWarning, match="names no {field}"):
        await BatchAgent.run(task="Do {#!}", inputs=[{"it": "a"}], backend=backend, progress=False)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_any_tool_result_and_any_tool_name_are_accepted(tmp_path: Path, text: str) -> None:
    @Tool.define
    async def look() -> str:
        return text

    backend = ScriptedBackend(by_turn(call("look"), call(whole(text)), say("done")))
    [result] = await BatchAgent.run(
        task="Do {it}", inputs=["a"], tools=[look], backend=backend, checkpoint_dir=tmp_path, progress=False
    )
    assert result.output == "done"
    first = next(each for each in backend.requests[1].messages if isinstance(each, ToolResults))
    assert first.results[0].content.encode()
    assert len(result.tool_calls) == 2


@pytest.mark.parametrize("option", ["checkpoint_dir", "tool_cache_dir", "out"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_path_options_may_have_any_valid_file_name(tmp_path: Path, text: str, option: str) -> None:
    backend = ScriptedBackend(lambda request: say("done"))
    place = f"{tmp_path}/{text[:20]}"
    named: dict[str, Any] = {option: place + ".jsonl" * (option == "out")}
    run = BatchAgent.run(task="Do {it}", inputs=["a"], backend=backend, progress=False, **named)
    if "\0" in text or "\ud800" in text:
        with pytest.raises(SpecError, match=f"^{option} must be a path"):
            await run
        assert backend.requests == []
    else:
        assert len(await run) == 1


@pytest.mark.parametrize(
    "text", ["🙂", "\u202eاسم", "a\0b", "\ud800", "\r\n", "\x1b[31m", "", "a b", "a/b", "x" * 1_000], ids=ascii
)
async def test_a_run_name_is_one_word_or_is_rejected(text: str) -> None:
    backend = ScriptedBackend(lambda request: say("done"))
    with pytest.raises(SpecError, match=r"^run_id must (consist of|be valid)"):
        await BatchAgent.run(
            task="Do {it}", inputs=["a"], backend=backend, store="redis://127.0.0.1:1", run_id=text, progress=False
        )
