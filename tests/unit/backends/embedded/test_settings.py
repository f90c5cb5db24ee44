import pytest

from batch_agent.backends.embedded import EmbeddedModelError
from batch_agent.backends.embedded.local_server import LocalSettings, default_threads


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("THREADS", "CONTEXT", "LOG"):
        monkeypatch.delenv(f"BATCH_AGENT_LOCAL_{name}", raising=False)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 3), (64, 8)])
def test_one_core_is_left_to_the_agents(cores: int, threads: int) -> None:
    assert default_threads(cores) == threads


def test_the_environment_wins_over_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_AGENT_LOCAL_THREADS", "6")
    monkeypatch.setenv("BATCH_AGENT_LOCAL_CONTEXT", "8192")
    settings = LocalSettings.from_environment(3)
    assert (settings.slots, settings.threads, settings.context_tokens) == (3, 6, 8192)


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_an_invalid_number_is_rejected_with_the_variable_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_AGENT_LOCAL_THREADS", text)
    with pytest.raises(EmbeddedModelError, match=f"BATCH_AGENT_LOCAL_THREADS is '{text}'"):
        LocalSettings.from_environment(None)
