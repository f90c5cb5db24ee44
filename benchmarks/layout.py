"""What the layout of prompts is worth: tables and a code review, as people write them and as the engine lays them out.

    python -m benchmarks.layout                                   # on the simulated engine
    python -m benchmarks.layout --url http://127.0.0.1:8000 --rows 60 --name layout_vllm

Each way asks the same of each input; only the order of the fields and of the inputs differs. Every way begins with a
text of its own, so that none finds what another left in the cache.
"""

import argparse
import asyncio
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batch_agent import BatchAgent, Fields, Results
from batch_agent.sim import Script, SimConfig, SimServer
from benchmarks import report

WORDS = "the of and to in is that for it as was with be by on not he his but at are this have from or had"
SIM = SimConfig(num_blocks=2_500, max_model_len=16_384)
"""Room for 40,000 tokens: a small part of what each workload has."""
SOURCES = Path(__file__).parents[1] / "src"
ASPECTS = ("error handling", "naming", "concurrency", "types", "dead code")
CANARY = 8
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    rows: Sequence[Row]
    as_written: str
    """A task as people write it: what it is about first."""
    well_written: str
    """What is shared first, by hand."""
    fields: Fields


def reviews(count: int) -> Workload:
    """Reviews joined with their products, and these with what their category demands."""
    chance = random.Random(7)
    categories = [(f"category {number}", _text(chance, 200)) for number in range(6)]
    products = [
        (f"product {number}", _text(chance, 300), chance.choice(categories)) for number in range(max(1, count // 10))
    ]
    rows = []
    for number in range(count):
        product, description, (category, policy) = chance.choice(products)
        review = _text(chance, 60)
        rows.append(
            {
                "id": number,
                "review": review,
                "product": product,
                "description": description,
                "category": category,
                "policy": policy,
            }
        )
    return Workload(
        "reviews",
        rows,
        "Review {id}: {review}\n\nProduct: {product}\n{description}\n\n{category}: {policy}\n\nDoes it fit?",
        "{category}: {policy}\n\nProduct: {product}\n{description}\n\nReview {id}: {review}\n\nDoes it fit?",
        Fields("Does the review fit the product and the policy of its category?"),
    )


def code_review(count: int) -> Workload:
    """Each file is reviewed for several aspects, by guidelines that are long, with a style guide for all."""
    chance = random.Random(8)
    guide = _text(chance, 800)
    guidelines = {aspect: _text(chance, 150) for aspect in ASPECTS}
    files = [path for path in sorted(SOURCES.rglob("*.py")) if 1_500 < path.stat().st_size < 8_000]
    pairs = [(path, aspect) for path in files for aspect in ASPECTS][:count]
    chance.shuffle(pairs)
    rows = [
        {
            "path": str(path.relative_to(SOURCES)),
            "code": path.read_text(),
            "aspect": aspect,
            "guideline": guidelines[aspect],
            "guide": guide,
        }
        for path, aspect in pairs
    ]
    return Workload(
        "code_review",
        rows,
        "Review for {aspect}: {guideline}\n\nFile {path}:\n{code}\n\nThe style guide:\n{guide}",
        "The style guide:\n{guide}\n\nFile {path}:\n{code}\n\nReview it for {aspect}: {guideline}",
        Fields("Review the code for this aspect, by the guideline and the style guide."),
    )


def _text(chance: random.Random, tokens: int) -> str:
    return " ".join(chance.choices(WORDS.split(), k=tokens))


async def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    results = await BatchAgent.run(progress=False, **_anew(options))
    return {"wall_s": round(time.perf_counter() - started, 2), **_numbers(results)}


async def foresee(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a plan with a canary says of the run, beside the run."""
    plan = await BatchAgent.plan(canary=CANARY, **_anew(options))
    started = time.perf_counter()
    results = await BatchAgent.run(progress=False, **_anew(options))
    compared = plan.compare(results, time.perf_counter() - started)
    return {row.name: [row.forecast, row.fact, row.ratio and round(row.ratio, 3)] for row in compared.rows}


def _anew(options: Mapping[str, Any]) -> dict[str, Any]:
    return {**options, "system_prompt": f"Run {secrets.token_hex(8)}."}


def _numbers(results: Results) -> dict[str, Any]:
    tokens = sum(result.usage.input for result in results)
    prefix = results.prefix
    assert prefix is not None
    return {
        "failed": sum(not result.ok for result in results),
        "prompt_tokens": tokens,
        "cached_share": round(sum(result.usage.cached for result in results) / max(1, tokens), 4),
        "predicted_share": round(prefix.predicted or 0.0, 4),
        "sharing_allows": round(prefix.sharing or 1.0, 2),
        "found": [finding.kind for finding in prefix.findings],
    }


async def compare(work: Workload, url: str, model: str | None) -> dict[str, Any]:
    base = {"inputs": work.rows, "backend": url, "model": model, "max_tokens": 8, "max_retries": 0}
    off = {"hoist": False, "reorder": False}
    ways: dict[str, dict[str, Any]] = {
        "as_written": {"task": work.as_written, **off},
        "as_written_laid_out": {"task": work.as_written},
        "well_written": {"task": work.well_written, **off},
        "well_written_laid_out": {"task": work.well_written},
        "fields": {"task": work.fields},
    }
    numbers: dict[str, Any] = {"rows": len(work.rows)}
    for name, options in ways.items():
        numbers[name] = await measure({**base, **options})
        print(work.name, name, numbers[name], flush=True)
    best, worst = numbers["fields"], numbers["as_written"]
    numbers["fields_against_as_written"] = {"wall": round(best["wall_s"] / worst["wall_s"], 3)}
    numbers["forecast"] = await foresee({**base, "task": work.fields})
    print(work.name, "forecast", numbers["forecast"], flush=True)
    return numbers


async def run(url: str, model: str | None, rows: int) -> dict[str, Any]:
    return {work.name: await compare(work, url, model) for work in (reviews(rows), code_review(rows))}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layout", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", help="a server; default: the simulated engine")
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--name", default="layout", help="of the file of results")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    simulated = options.url is None
    with SimServer(SIM, Script(tool_turns=0, answer_tokens=8)) if simulated else nullcontext() as sim:
        url = sim.url if sim is not None else options.url
        numbers = asyncio.run(run(url, "sim" if simulated else None, options.rows))
    print(report.write(options.name, {"engine": "simulated" if simulated else "vllm", **numbers}, options.out))


if __name__ == "__main__":
    main()
