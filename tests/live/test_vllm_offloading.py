"""The eviction policy of batch-agent-vllm in vLLM's own classes. The native tier does not run on the CPU platform, but
its scheduler side, which is all that a policy meets, needs neither a device nor a model."""

import os
import subprocess
from pathlib import Path

from scripts.engines.layout import VLLM

PACKAGE = Path(__file__).parents[2] / "packages" / "batch-agent-vllm"


def test_the_policy_obeys_vllms_manager_of_the_host_tier() -> None:
    done = subprocess.run(
        [str(VLLM.python), str(PACKAGE / "tests" / "check_in_vllm.py")],
        env=os.environ | {"PYTHONPATH": str(PACKAGE / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert done.stdout.splitlines()[-1].startswith("ok ")
