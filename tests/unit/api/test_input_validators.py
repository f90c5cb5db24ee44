"""Validators of answers that see the input of their agent."""

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, ValidationInfo, field_validator

from batch_agent import BatchAgent
from batch_agent.core.requests import Request
from batch_agent.testing import Answer, ScriptedBackend, say


class Quote(BaseModel):
    text: str

    @field_validator("text")
    @classmethod
    def is_in_the_document(cls, text: str, info: ValidationInfo) -> str:
        assert info.context is not None
        if text not in info.context["input"]["document"]:
            raise ValueError(f"{text!r} is not in the document")
        return text


def check_word(word: str, info: ValidationInfo) -> str:
    assert info.context is not None
    if word not in info.context["input"]["document"]:
        raise ValueError("not there")
    return word


Word = Annotated[str, AfterValidator(check_word)]


def twice(request: Request) -> Answer:
    """A wrong answer first, and a right one when it is asked again."""
    return say('{"text": "xyz"}' if len(request.messages) == 1 else '{"text": "bc"}')


@pytest.mark.parametrize("mode", ["native", "action"])
async def test_an_answer_is_checked_against_its_input(tmp_path: Path, mode: str) -> None:
    def script(request: Request) -> Answer:
        answer = twice(request)
        return say(f'{{"final": {answer.text}}}') if mode == "action" else answer  # type: ignore[union-attr]

    async def look(it: str) -> str:
        """Look."""
        return it

    options: dict[str, Any] = {
        "task": "Quote: {document}", "inputs": [{"document": "abc"}], "output_schema": Quote, "progress": False,
        "checkpoint_dir": tmp_path / "c", "tools": [look] if mode == "action" else [], "tool_mode": mode,
    }  # fmt: skip
    backend = ScriptedBackend(script)
    [result] = await BatchAgent.run(**options, backend=backend)
    assert result.output == Quote.model_construct(text="bc")
    assert "'xyz' is not in the document" in str(backend.requests[1].messages[-1])
    [restored] = await BatchAgent.run(**options, backend=ScriptedBackend(script))
    assert restored.output == result.output


async def test_an_answer_that_never_fits_its_input_fails() -> None:
    results = await BatchAgent.run(
        task="Quote: {document}", inputs=[{"document": "abc"}, {"document": "zzz"}], output_schema=Quote,
        backend=ScriptedBackend(twice), max_retries=1, progress=False,
    )  # fmt: skip
    assert [result.ok for result in results] == [True, False]
    assert "'bc' is not in the document" in str(results[1].error)


async def test_any_type_may_have_such_a_validator() -> None:
    [result] = await BatchAgent.run(
        task="Quote: {document}", inputs=[{"document": "abc"}], output_schema=Word, progress=False,
        backend=ScriptedBackend(lambda _: say('{"answer": "ab"}')),
    )  # fmt: skip
    assert result.output == "ab"
