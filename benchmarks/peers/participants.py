"""Who takes part, and in what."""

from dataclasses import dataclass

TOOLS, STREAMS, FAULTS, CHECKPOINTS, ENDPOINTS, SINGLE = (
    "tools",
    "streams",
    "faults",
    "checkpoints",
    "endpoints",
    "single",
)
_ALL = frozenset((SINGLE, TOOLS, STREAMS, FAULTS, CHECKPOINTS, ENDPOINTS))
_AGENTS = frozenset((SINGLE, TOOLS, STREAMS, FAULTS))


@dataclass(frozen=True, slots=True)
class Peer:
    """`does` is what it has been built for; other work it is not given."""

    name: str
    title: str
    does: frozenset[str] = _AGENTS
    is_framework: bool = True
    """One whose agents somebody else wrote; the others are loops of a page, or ours."""


_CAST = (
    Peer("batch_agent", "BatchAgent", _ALL, is_framework=False),
    Peer("expert", "aiohttp, hand-optimized", _ALL, is_framework=False),
    Peer("gather", "aiohttp, gather", _AGENTS | {ENDPOINTS}, is_framework=False),
    Peer("gather_httpx", "httpx, gather", _AGENTS | {ENDPOINTS}, is_framework=False),
    Peer("batch_agent_lists", "BatchAgent, lists", frozenset((ENDPOINTS,)), is_framework=False),
    Peer("batch_agent_02", "batch-agent 0.2.0", (_AGENTS | {CHECKPOINTS}) - {STREAMS}),
    Peer("pydantic_ai", "Pydantic AI"),
    Peer("openai_agents", "OpenAI Agents SDK"),
    Peer("langgraph", "LangGraph", _AGENTS | {CHECKPOINTS}),
    Peer("inspect_ai", "Inspect", _AGENTS - {STREAMS}),
    Peer("ray_data", "Ray Data LLM", frozenset((SINGLE, FAULTS))),
    Peer("aurora_swarm", "Aurora Swarm, lists", frozenset((ENDPOINTS,))),
)
PEERS = {peer.name: peer for peer in _CAST}
OURS = ("batch_agent", "batch_agent_lists")
