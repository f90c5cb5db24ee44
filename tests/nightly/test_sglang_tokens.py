"""Token ids of agents on a real SGLang."""

from pathlib import Path

from tests.live.token_checks import check_agents


async def test_agents_that_call_tools_continue_the_ids_that_were_sampled(sglang_url: str, tmp_path: Path) -> None:
    await check_agents(sglang_url, "sglang", tmp_path, ["Ariel", "Dido"])
