"""How a simulated model behaves, as data."""

from ..core.quick import dataclass


@dataclass(frozen=True, slots=True)
class Script:
    """How the simulated model behaves where a prompt gives no `[[sim: ...]]` directive.

    It calls tools for `tool_turns` turns, `parallel_calls` at a time, with string arguments out of `keys` values; then
    it answers: an instance of the response schema, or `answer_tokens` tokens of text. Free strings inside an instance
    are `string_tokens` long. The seed changes all of them.
    """

    tool_turns: int = 1
    parallel_calls: int = 1
    keys: int = 8
    answer_tokens: int = 64
    string_tokens: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("parallel_calls", "keys", "answer_tokens", "string_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}")
