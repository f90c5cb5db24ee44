"""Review the source files of a folder: an agent for each file, a judge for each finding, a report for each subfolder.

    python examples/code_review.py FOLDER [--backend vllm://localhost:8000] [--model NAME]

A finding counts if its line exists and a judge that reads the file agrees. A second run reuses all answers.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from pydantic import BaseModel, Field, create_model

from batch_agent import Flow, Item, StageOptions
from batch_agent.tools import read_file_tool

SUFFIXES = {".c", ".cc", ".cpp", ".cs", ".go", ".h", ".java", ".js", ".kt", ".php", ".py", ".rb", ".rs", ".sh", ".ts"}
REVIEW = "Review {path} and report its problems.\n\n{text}"
JUDGE = 'Call read_file with path "{path}". Is it true of {finding.code!r}: {finding.problem}'
REPORT = "{results}\n\nSum up these {n} findings in one sentence."
Verdict = create_model("Verdict", is_true=(bool, ...))


class Finding(BaseModel):
    kind: Literal["bug", "security", "style"]
    line: Annotated[int, Field(ge=1)]
    problem: Annotated[str, Field(min_length=10, max_length=120)]


def number_lines(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()
    return "\n".join(f"{line}  # line {number}" for number, line in enumerate(lines, 1))


def add_code(item: Item) -> list[dict[str, Any]]:
    lines = ["", *item["text"].splitlines()]
    return [{**dict(each), "code": lines[each.line].strip()} for each in item["review"] if each.line < len(lines)]


def main(folder: Path, backend: str = "local://", model: str = "") -> None:
    paths = [path.relative_to(folder) for path in sorted(folder.rglob("*.*")) if path.suffix in SUFFIXES]
    paths = [path for path in paths if not any(part.startswith(".") for part in path.parts)]
    files = [{"folder": str(path.parent), "path": str(path), "text": number_lines(folder / path)} for path in paths]
    small: StageOptions = {"max_turns": 2, "max_tokens": 160, "temperature": 0.0} if backend == "local://" else {}
    options: StageOptions = {"checkpoint_dir": folder / ".checkpoint", "plan_changed": "rerun", "oversized": "chunk"}
    options |= {"backend": backend, "model": model or None, "system_prompt": "You are a code reviewer."}
    flow = Flow(files, **options | small)
    flow = flow.map("review", REVIEW, output_schema=Annotated[list[Finding], Field(min_length=1, max_length=2)])
    flow = flow.expand("finding", add_code).map("judge", JUDGE, output_schema=Verdict, tools=[read_file_tool(folder)])
    outcome = flow.filter(lambda item: item["judge"].is_true).reduce("report", REPORT, group_by="folder").run_sync()
    for result in outcome.stages["judge"].results:
        print("{path}:{finding[line]}: {finding[problem]}".format(**result.input), result.output or result.error)
    for item in outcome.items:
        print(f"{item['folder']}/: {item['report'].strip() if item.ok else item.error}")
    for name, stage in outcome.stages.items():
        print(f"{name}: {len(stage.results)} agents, {stage.failed} failed, {stage.seconds:.1f} s, {stage.usage}")


if __name__ == "__main__":
    cyclopts.run(main)
