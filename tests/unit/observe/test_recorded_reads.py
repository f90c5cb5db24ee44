"""What agents of a checkpoint read, from their facts."""

from batch_agent.core.facts import Fact, Replied, Returned, Started
from batch_agent.core.messages import Placement, Reference, ToolCall, ToolResult
from batch_agent.core.requests import Reply, Usage
from batch_agent.observe.checkpoint_results import RecordedReads
from batch_agent.schedule.reference_model import MAX_READERS

AGENTS = MAX_READERS + 50
DOCUMENT = "A document that everyone reads. " * 300


def facts(agent: int, placement: Placement | None) -> list[Fact]:
    wanted = ToolCall("c1", "read", "{}")
    reference = None if placement is None else Reference("read()", 0, 2, placement)
    result = ToolResult(wanted, DOCUMENT, source="shared", reference=reference)
    return [
        Started(agent, None, "Why?"),
        Replied(Reply("", "calls", Usage(), (wanted,))),
        Returned((result,)),
        Replied(Reply("so", "stop", Usage())),
    ]


def test_every_agent_counts_whose_results_were_placed_first() -> None:
    reads = RecordedReads()
    for agent in range(AGENTS):
        reads.add(facts(agent, "first"))
    found = reads.report()
    assert found is not None
    assert (found.references, found.agents, found.placed) == (1, AGENTS, AGENTS)


def test_every_agent_counts_that_would_gain() -> None:
    reads = RecordedReads()
    for agent in range(AGENTS):
        reads.add(facts(agent, None))
    found = reads.report()
    assert found is not None
    assert (found.references, found.agents, found.placed) == (1, AGENTS, 0)


def test_agents_without_facts_are_not_counted() -> None:
    reads = RecordedReads()
    reads.add([])
    assert reads.report() is None
