"""The benchmark of answers with shared results inline and first, on a scripted model."""

import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.quality import Server, compare, corpus, sign_test

from batch_agent.core.messages import ToolResults, User
from batch_agent.core.requests import Request
from batch_agent.testing import Answer, ScriptedBackend, call, say

TEXTS = corpus(1, 12, decoys=0)


def test_a_seed_always_makes_the_same_documents() -> None:
    assert corpus(1, 12, decoys=0) == TEXTS
    assert corpus(2, 12, decoys=0).documents != TEXTS.documents


@pytest.mark.parametrize("decoys", [0, 4])
def test_the_answer_stands_once_in_its_document_and_nowhere_in_the_question(decoys: int) -> None:
    texts = corpus(3, 40, decoys)
    for row, answer in zip(texts.questions, texts.answers, strict=True):
        document = texts.documents[row["document"]]
        assert document.count(f"The {row['kind']} number is {answer}.") == 1
        assert len(re.findall(r"\d{4}", document)) == 1 + decoys
        assert not re.search(r"\d", row["document"] + row["kind"])


def reader(request: Request) -> Answer:
    """Calls the tool, then answers what the result or the reference says."""
    task = request.messages[0]
    assert isinstance(task, User)
    if request.turn == 0:
        return call("read_document", name=re.findall(r'name "(.+?)"', task.text)[-1])
    messages = [message for message in request.messages if isinstance(message, ToolResults)]
    results = [each.content for message in messages for each in message.results]
    found = re.findall(r"number is (\d{4})", task.text + "".join(results))
    return say(f'{{"number": {found[0]}}}')


async def test_a_model_that_reads_is_right_in_both_ways(tmp_path: Path) -> None:
    numbers = await compare(TEXTS, Server(ScriptedBackend(reader)), tmp_path)
    for way in ("inline", "first"):
        expected = {"called_the_tool": 12, "read_the_document": 12, "right": 12, "invalid": 0, "made_up": 0}
        assert {name: numbers[way][name] for name in expected} == expected
    assert (numbers["right_only_inline"], numbers["right_only_first"], numbers["p_value"]) == (0, 0, 1.0)


async def test_a_model_that_looks_only_behind_its_call_is_right_inline(tmp_path: Path) -> None:
    def near(request: Request) -> Answer:
        last: Any = request.messages[-1]
        if request.turn == 0:
            return reader(request)
        found = re.findall(r"number is (\d{4})", last.results[0].content)
        return say(f'{{"number": {found[0] if found else 1000}}}')

    numbers = await compare(TEXTS, Server(ScriptedBackend(near)), tmp_path)
    assert (numbers["inline"]["accuracy"], numbers["first"]["accuracy"]) == (1.0, 0.0)
    assert (numbers["first"]["made_up"], numbers["right_only_inline"]) == (12, 12)
    assert numbers["p_value"] < 0.001


def test_the_sign_test_is_two_sided() -> None:
    assert sign_test(0, 0) == 1.0
    assert sign_test(5, 5) == 1.0
    assert sign_test(0, 6) == sign_test(6, 0) == pytest.approx(2 / 64, abs=1e-4)
