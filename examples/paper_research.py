"""Answer questions about a folder of Markdown notes: agents search and read the notes, and one sums up the answers.

    python examples/paper_research.py [FOLDER] [--ask "What is a KV cache?"] [--ask ...] [--backend vllm://localhost:8000]

Each answer cites a source, and the program checks that the agent has seen it. A second run reuses all answers.
"""

import asyncio
from pathlib import Path
from typing import Annotated

import cyclopts
from pydantic import BaseModel, Field

from batch_agent import BatchAgent, StageOptions
from batch_agent.tools import read_file_tool, web_search_tool

CORPUS, CHECKPOINT = Path(__file__).parent / "corpus", Path("paper-research.checkpoint")
QUESTIONS = ("What is a block table?", "What is continuous batching?", "Who quantized models in four GPU hours?")
TASK = 'Call web_search with query "{question}" and num_results 1, then answer from what it finds: {question}'


def main(
    corpus: Path = CORPUS,
    ask: tuple[str, ...] = QUESTIONS,
    checkpoint: Path = CHECKPOINT,
    backend: str = "local://",
    model: str = "",
) -> None:
    names = [path.relative_to(corpus).as_posix() for path in sorted(corpus.rglob("*.md"))]

    class Answer(BaseModel):
        answer: Annotated[str, Field(max_length=160)]
        source: Annotated[str, Field(json_schema_extra={"enum": names})]

    options: StageOptions = {"backend": backend, "model": model or None, "plan_changed": "rerun"}
    options["checkpoint_dir"] = checkpoint
    small: StageOptions = {"max_turns": 2, "max_tokens": 160, "temperature": 0.0} if backend == "local://" else {}
    run = BatchAgent.run_with_reduce(
        task=TASK,
        inputs=[{"question": question} for question in ask],
        tools=[web_search_tool(corpus=corpus.resolve()), read_file_tool(corpus)],
        output_schema=Answer,
        reduce="{results}\n\nSum up these {n} answers in two sentences.",
        **options | small,
    )
    results, summary = asyncio.run(run)
    for result in results:
        print(f"{result.input['question']}\n  {result.output.answer.strip() if result.ok else result.error}")
        if result.ok:
            was_seen = result.output.source in str(result.transcript[1:-1])  # without the task and the answer
            verdict = "shown to the agent" if was_seen else "which the agent has not seen"
            print(f"  Source: {result.output.source}, {verdict}")
    print(f"\n{(summary or '').strip()}\n")
    for name, stage in results.stages.items():
        print(f"{name}: {len(stage.results)} agents, {stage.failed} failed, {stage.seconds:.1f} s, {stage.usage}")


if __name__ == "__main__":
    cyclopts.run(main)
