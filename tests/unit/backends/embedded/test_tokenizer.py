"""The embedded model's own tokenizer."""

from pathlib import Path

import pytest

from batch_agent.backends.connect import connect
from batch_agent.core.protocols.backend import CountsTokens


@pytest.mark.slow
async def test_the_embedded_model_counts_its_own_tokens(monkeypatch: pytest.MonkeyPatch, real_weights: Path) -> None:
    monkeypatch.setenv("BATCH_AGENT_LOCAL_WEIGHTS", "quantized")
    backend = await connect("local://?slots=1", None, uses_tools=False, notify=lambda text: None)
    try:
        assert isinstance(backend, CountsTokens)
        assert await backend.count_tokens("one two three") == 3
        english = await backend.count_tokens("The quick brown fox jumps over the lazy dog. " * 100)
        assert english is not None
        assert 900 <= english <= 1200
        chinese = await backend.count_tokens("敏捷的棕色狐狸跳过懒狗" * 100)
        assert chinese is not None
        assert 1100 < chinese <= 3300  # a byte may be a token, and never less
        assert await backend.count_tokens(" long" * 20_000) == 20_000  # far beyond its window
    finally:
        await backend.aclose()
