"""What the prompts of a run share, as expected before it and as seen after it."""

from .quick import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that keeps prompts from being shared, and what to do about it."""

    kind: str
    """A stable word, safe to group by: timestamp, uuid, unordered, system_prompt, session_header, tool_order ..."""
    message: str
    advice: str

    def __str__(self) -> str:
        return f"{self.message} {self.advice}"


@dataclass(frozen=True, slots=True)
class PrefixReport:
    """Of the first prompts of all agents; what an agent says to itself in later turns is not in here."""

    agents: int | None
    """None when the inputs are read lazily: then nothing is known of them but the first."""
    shared_tokens: int
    """At the beginning of every prompt."""
    prompt_tokens: int
    """Of a prompt, on average."""
    diverges_at: str | None
    """Where the prompts of two agents first differ, in words; None: nowhere."""
    groups: int = 0
    """Sets of agents whose prompts share more than all do."""
    predicted: float | None = None
    """Share of all first prompts that is expected from the prefix cache, if that is large enough."""
    measured: float | None = None
    """The same as the server counted it; None before the run, and where the server does not say."""
    is_calibrated: bool = False
    """The server said how many tokens the first prompt has; else four characters are taken for one."""
    findings: tuple[Finding, ...] = ()

    @property
    def sharing(self) -> float | None:
        """Tokens that are sent for each one that has to be computed: N(S+U)/(S+NU), what sharing without loss can
        give at most."""
        return None if self.predicted is None else 1 / (1 - self.predicted) if self.predicted < 1 else None
