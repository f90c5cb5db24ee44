"""The default backend for real: the embedded model, a tool, a schema."""

from typing import Literal

from pydantic import BaseModel

from batch_agent import BatchAgent, Tool


class Note(BaseModel):
    product: Literal["lamp", "phone"]
    sentiment: Literal["positive", "negative"]


async def test_agents_on_the_embedded_model_call_a_tool_and_answer_with_an_instance() -> None:
    notes = {"notes/1.txt": "I love the lamp, it works perfectly.", "notes/2.txt": "The phone arrived broken."}

    @Tool.define
    def read_note(path: str) -> str:
        """Read a customer note."""
        return notes[path]

    results = await BatchAgent.run(
        task="Read the note at {path} and report the product and the sentiment.",
        inputs=[{"path": path} for path in notes],
        tools=[read_note],
        output_schema=Note,
        max_turns=2,
        max_tokens=80,
        temperature=0.0,
    )
    assert [type(result.output) for result in results] == [Note, Note], results
    assert [len(result.tool_calls) for result in results] == [1, 1], results
    assert all(result.usage.input > 0 and result.turns == 2 for result in results)
    assert any(result.usage.cached > 0 for result in results)
