"""Whether answers are as good if tool results stand before the agents' own text: questions about documents that agents
read with a tool, each asked with the result behind the call ("inline") and before the task ("first").

    python -m benchmarks.quality                                            # embedded model, and vLLM on CPU
    python -m benchmarks.quality --engines embedded
    python -m benchmarks.quality --url http://127.0.0.1:8000 --model NAME --name quality_own

Documents and questions are made from a seed. The first request of an agent is the same in both ways, so the model has
the same chance to call the tool; only the second differs. Answers count if they are exactly the known one.
"""

import argparse
import asyncio
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from pydantic import BaseModel, Field

from batch_agent import AgentResult, BatchAgent, Results, Tool
from batch_agent.core.protocols.backend import Backend
from benchmarks import report

SEED = 28
DOCUMENTS = 200
"""One question about each."""
SIZES = (110, 130, 150, 190, 240, 400)
"""Words of the documents, in turn."""
TASK = 'Call read_document with name "{document}", then report the {kind} number.'
Placement = Literal["inline", "first"]
PLACEMENTS: tuple[Placement, ...] = ("inline", "first")
_KINDS = ["order", "invoice", "phone", "room", "ticket", "locker", "licence", "badge", "contract", "vehicle"]
_PLACES = ["bergen", "lyon", "turin", "ghent", "porto", "graz", "malmo", "leeds", "basel", "cork", "tartu", "split"]
_FIRST_NAMES = ["Dana", "Felix", "Greta", "Hugo", "Ines", "Jonas", "Karin", "Lars", "Mona", "Nils", "Olga", "Pavel"]
_LAST_NAMES = [
    "Whitfield",
    "Brandt",
    "Castell",
    "Dorn",
    "Ekman",
    "Farrow",
    "Grieg",
    "Holt",
    "Ibsen",
    "Jarvis",
    "Keller",
    "Lund",
]
_SUBJECTS = "The committee,A visiting engineer,The harbour office,One of the suppliers,The archive,A local newspaper"
_VERBS = "discussed,postponed,welcomed,described,repeated,questioned"
_OBJECTS = "the plans for the new warehouse,a change of the heating,the annual survey,the repair of the old bridge"
_ENDS = "in the spring,without further comment,for the second time,after a long meeting,as expected,with some delay"


@dataclass(frozen=True, slots=True)
class Server:
    """What answers the questions, and how it is asked."""

    backend: str | Backend
    model: str | None = None
    tool_mode: Literal["auto", "native", "action"] = "auto"
    max_inflight: int = 16
    has_cache_salt: bool = False


class Answer(BaseModel):
    """Answer of an agent about its document."""

    number: int = Field(ge=1_000, le=9_999)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents by name, questions about them, and the answers."""

    documents: Mapping[str, str]
    questions: Sequence[Mapping[str, str]]
    answers: Sequence[int]


def corpus(seed: int, documents: int, decoys: int, sizes: Sequence[int] = SIZES) -> Corpus:
    """Documents with a number that is asked for, and other facts. `decoys`: how many more numbers of four digits each
    document has, of other kinds; small models cannot tell them apart wherever the document stands."""
    chance = Random(seed)
    texts: dict[str, str] = {}
    questions: list[Mapping[str, str]] = []
    answers: list[int] = []
    for at in range(documents):
        name = f"{chance.choice(_PLACES)}/{_letters(at)}.txt"  # no digits: nothing of it can be the answer
        kinds, numbers = chance.sample(_KINDS, 1 + decoys), chance.sample(range(1_000, 10_000), 1 + decoys)
        sentences = [f"The {kind} number is {number}." for kind, number in zip(kinds, numbers, strict=True)]
        texts[name] = _text([*sentences, *_other_facts(chance)], sizes[at % len(sizes)], chance)
        questions.append({"document": name, "kind": kinds[0]})
        answers.append(numbers[0])
    return Corpus(texts, questions, answers)


def _letters(number: int) -> str:
    return chr(ord("a") + number // 26) + chr(ord("a") + number % 26)


def _other_facts(chance: Random) -> list[str]:
    return [
        f"The project is led by {chance.choice(_FIRST_NAMES)} {chance.choice(_LAST_NAMES)}.",
        f"The budget is {chance.randrange(100, 1_000)} thousand euros.",
        f"The work takes {chance.randrange(4, 40)} months.",
    ]


def _text(sentences: Sequence[str], words: int, chance: Random) -> str:
    """The sentences and filler, shuffled."""
    written = list(sentences)
    choices = [part.split(",") for part in (_SUBJECTS, _VERBS, _OBJECTS, _ENDS)]
    count = len(" ".join(written).split())
    while count < words:
        written.append(" ".join(map(chance.choice, choices)) + ".")
        count += len(written[-1].split())
    chance.shuffle(written)
    return " ".join(written)


async def ask(texts: Corpus, placement: Placement, server: Server, folder: Path) -> Results[Answer]:
    @Tool.define(effect="read", placement=placement)
    def read_document(name: str) -> str:
        """Read a document."""
        if name not in texts.documents:
            raise FileNotFoundError(f"There is no document {name!r}.")
        return texts.documents[name]

    return await BatchAgent.run(
        task=TASK,
        inputs=texts.questions,
        tools=[read_document],
        tool_mode=server.tool_mode,
        output_schema=Answer,
        backend=server.backend,
        model=server.model,
        max_turns=2,
        max_inflight=server.max_inflight,
        reorder=False,
        cache_salt=f"{placement} {folder.name}" if server.has_cache_salt else None,  # neither finds what the other left
        checkpoint_dir=folder / placement,
        temperature=0.0,
        max_tokens=80,
        progress=False,
    )


def score(results: Results[Answer], texts: Corpus) -> dict[str, Any]:
    asked = list(zip(results, texts.questions, texts.answers, strict=True))
    readers = [each for each in asked if _has_read(each[0], each[1]["document"])]
    right = sum(_is_right(result, answer) for result, _, answer in asked)
    right_readers = sum(_is_right(result, answer) for result, _, answer in readers)
    return {
        "questions": len(asked),
        "called_the_tool": sum(bool(result.tool_calls) for result in results),
        "read_the_document": len(readers),
        "right": right,
        "accuracy": round(right / len(asked), 3),
        "margin": _margin(right, len(asked)),
        "accuracy_of_readers": round(right_readers / len(readers), 3) if readers else None,
        "made_up": sum(
            result.ok and str(result.output.number) not in texts.documents[row["document"]] for result, row, _ in asked
        ),
        "invalid": len(results.failed),
        "prompt_tokens": results.usage.input,
        "cached_tokens": results.usage.cached,
        "generated_tokens": results.usage.output,
    }


def _has_read(result: AgentResult[Answer], document: str) -> bool:
    return any(call.ok and document in call.arguments for call in result.tool_calls)


def _is_right(result: AgentResult[Answer], answer: int) -> bool:
    return result.ok and result.output.number == answer


def _margin(right: int, count: int) -> float:
    """Half of the 95 % interval of a share."""
    return round(1.96 * math.sqrt(right * (count - right) / count**3), 3)


def paired(ways: Mapping[str, Results[Answer]], texts: Corpus) -> dict[str, Any]:
    """The same questions in both ways, and the probability of such a difference by chance (sign test)."""
    pairs = list(zip(ways["inline"], ways["first"], texts.answers, strict=True))
    gained = sum(_is_right(first, answer) and not _is_right(inline, answer) for inline, first, answer in pairs)
    lost = sum(_is_right(inline, answer) and not _is_right(first, answer) for inline, first, answer in pairs)
    return {"right_only_inline": lost, "right_only_first": gained, "p_value": sign_test(gained, lost)}


def sign_test(gained: int, lost: int) -> float:
    count = gained + lost
    tail: float = sum(math.comb(count, each) for each in range(min(gained, lost) + 1)) / 2**count
    return round(min(1.0, 2 * tail), 4)


async def compare(texts: Corpus, server: Server, folder: Path) -> dict[str, Any]:
    """Both ways at once. `folder`: of the checkpoints, with which a comparison that was interrupted is continued."""
    async with asyncio.TaskGroup() as group:
        runs = {way: group.create_task(ask(texts, way, server, folder)) for way in PLACEMENTS}
    ways: dict[str, Results[Answer]] = {way: run.result() for way, run in runs.items()}
    for way, results in ways.items():
        for result in results.failed[:3]:
            print(f"{way} failed:", str(result.error)[:200], flush=True)
    numbers = {way: score(results, texts) for way, results in ways.items()}
    return {"tool_mode": server.tool_mode, **numbers, **paired(ways, texts)}


@contextmanager
def _server(engine: str) -> Iterator[Server]:
    """An engine that runs meanwhile."""
    if engine == "embedded":
        yield Server("local://", max_inflight=4)
        return
    from tests.live.engines import vllm_server

    with tempfile.TemporaryDirectory() as scratch, vllm_server(Path(scratch)) as url:
        yield Server(url, tool_mode="action", has_cache_salt=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--engines", default="embedded,vllm", help="embedded, vllm (as scripts/engines installs it)")
    parser.add_argument("--url", help="a running server, instead of --engines")
    parser.add_argument("--model")
    parser.add_argument("--tool-mode", default="auto", choices=("auto", "native", "action"))
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--decoys", type=int, default=0, help="further numbers in each document, for larger models")
    parser.add_argument("--checkpoint", type=Path, help="folder with which a comparison that was stopped is continued")
    parser.add_argument("--name", default="quality", help="of the file of results")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    numbers: dict[str, Any] = {"seed": options.seed, "decoys": options.decoys}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.checkpoint or Path(temporary)
        if options.url is not None:
            server = Server(options.url, options.model, options.tool_mode)
            numbers["server"] = _compare(options, server, folder / "server")
        for engine in () if options.url is not None else options.engines.split(","):
            with _server(engine) as server:
                numbers[engine] = _compare(options, server, folder / engine)
    print(report.write(options.name, numbers, options.out))


def _compare(options: argparse.Namespace, server: Server, folder: Path) -> dict[str, Any]:
    texts = corpus(options.seed, options.documents, options.decoys)
    numbers = asyncio.run(compare(texts, server, folder))
    print(numbers, flush=True)
    return numbers


if __name__ == "__main__":
    main()
