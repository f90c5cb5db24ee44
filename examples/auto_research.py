"""Survey a folder of Markdown notes: plan questions about the notes, run an agent for each, and write one survey.

    python examples/auto_research.py "LLM servers" [--corpus FOLDER] [--out survey.md] [--backend vllm://localhost:8000]

A source is listed only if the agent that cites it has opened it. A second run reuses all answers.
"""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import cyclopts
from pydantic import BaseModel, Field

from batch_agent import BatchAgent, StageOptions
from batch_agent.tools import read_file_tool, web_search_tool

CORPUS, OUT = Path(__file__).parent / "corpus", Path("survey.md")


def main(topic: str, corpus: Path = CORPUS, out: Path = OUT, backend: str = "local://", model: str = "") -> None:
    notes = {path.relative_to(corpus).as_posix(): path.resolve() for path in sorted(corpus.rglob("*.md"))}
    Note = Annotated[str, Field(json_schema_extra={"enum": [*notes]})]

    class Step(BaseModel):
        note: Note
        question: Annotated[str, Field(min_length=10, max_length=80)]

    class Finding(BaseModel):
        answer: Annotated[str, Field(max_length=160)]
        sources: Annotated[list[Note], Field(min_length=1, max_length=2)]

    options: StageOptions = {"backend": backend, "model": model or None, "plan_changed": "rerun"}
    options["checkpoint_dir"] = out.with_suffix(".checkpoint")
    small: StageOptions = {"max_turns": 2, "max_tokens": 160, "temperature": 0.0} if backend == "local://" else {}
    run = BatchAgent.run_with_map_reduce(
        plan_prompt="We have notes: {notes}. Write 3 questions about {topic}, each with the note that answers it.",
        plan_inputs={"notes": ", ".join(notes), "topic": topic},
        plan_output_schema=Annotated[list[Step], Field(min_length=1, max_length=min(3, len(notes)))],
        task='Call read_file with path "{item.note}", then answer from it: {item.question}',
        tools=[read_file_tool(corpus), web_search_tool(corpus=corpus.resolve())],
        output_schema=Finding,
        reduce="{results}\n\nSum up these {n} findings in two sentences.",
        **options | small,
    )
    results, summary = asyncio.run(run)
    text = f"# {topic}\n\n{(summary or '').strip()}\n"
    for result in results:
        reads = [json.loads(call.arguments) for call in result.tool_calls if call.ok and call.name == "read_file"]
        opened = {(corpus / arguments["path"]).resolve() for arguments in reads}
        text += f"\n## {result.input['item'].question}\n\n{result.output.answer if result.ok else result.error}\n\n"
        for name in sorted(set(result.output.sources if result.ok else [])):
            lines = notes[name].read_text().splitlines() if notes.get(name) in opened else ["not opened: no source"]
            text += f"- {name}: {'. '.join(lines[:3:2]).lstrip('# ')}\n"
    print(f"{out}: {out.write_text(text)} characters from {len(results)} agents")


if __name__ == "__main__":
    cyclopts.run(main)
