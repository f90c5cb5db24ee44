"""What single pages take for granted."""

import json

from tests.docs.page_runner import Needs

NOTHING = Needs()
_PAPERS = "".join(json.dumps({"text": f"Paper {number}"}) + "\n" for number in range(10))

_PEOPLE = "".join(json.dumps({"name": f"Ada {number}"}) + "\n" for number in range(12))
_PEOPLE_PY = '''
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def look_up(name: str) -> str:
    """Look a person up."""
    return f"{name} was born in London and is 36 years old."
'''
_TICKETS = "".join(
    json.dumps(
        {
            "id": f"T-{4711 + number}",
            "question": ["Where is my refund?", "How do I return it?"][number % 2],
            "handbook": "Refunds are paid within 14 days. Keep the receipt. " * 95,
        }
    )
    + "\n"
    for number in range(32)
)
_ROWS = "".join(
    json.dumps({"doc": "A long document. " * 100 + str(number % 5), "q": f"Question {number}?"}) + "\n"
    for number in range(40)
)

NEEDS: dict[str, Needs] = {
    "docs/rollouts.md": Needs(
        {"rollouts.jsonl": '{"completion_ids": [5, 6, 7], "env_mask": [1, 0, 1]}\n'}, check="assert trained == [5, 7]"
    ),
    "docs/quickstart.md": Needs(files={"src/cart.py": "total = sum(prices)"}),
    "docs/distributed-runs.md": Needs(files={"texts.jsonl": _PAPERS}),
    "docs/checkpoints.md": Needs(files={"people.jsonl": _PEOPLE, "people.py": _PEOPLE_PY}),
    "docs/cli.md": Needs(
        files={
            "texts.jsonl": _PAPERS,
            "batch.toml": 'task = "Rate: {text}"\ninputs = "texts.jsonl"\nout = "rated.jsonl"\n',
            "other.toml": 'task = "Sort: {text}"\ninputs = "texts.jsonl"\nout = "sorted.jsonl"\n',
        },
        backend="http://localhost:8000",
    ),
    "docs/guides/cost.md": Needs(files={"rows.jsonl": _ROWS}),
    "docs/guides/tuning.md": Needs(files={"a.txt": "One.", "b.txt": "Two."}),
    "docs/prompts.md": Needs(files={"tickets.jsonl": _TICKETS}),
    "docs/tools.md": Needs(
        python="""
class bank:
    async def pay(invoice, cents, idempotency_key):
        return f"paid {cents}"


class db:
    async def fetch(query, ids):
        return [{"id": number, "name": "Ada"} for number in ids]
""",
        check="""
results = await BatchAgent.run(
    task="Pay {n}", inputs=[{"n": 1}, {"n": 2}], tools=[pay, get_user], backend="http://localhost:8000", max_turns=3
)
assert all(call.ok for result in results for call in result.tool_calls), results
""",
    ),
}
