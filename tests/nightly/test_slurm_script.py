"""The Slurm script that `batch-agent template` prints, read by the real ShellCheck."""

import json
import subprocess
import sys
from typing import Any

import pytest
from scripts.engines.layout import SHELLCHECK, engines_root
from scripts.engines.shellcheck_env import PROGRAM
from tests.live.engines import EngineFailedError
from tests.support.cluster_templates import job_of

from batch_agent.cli.cluster_templates.renderer import render_template

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "store": {"store": "redis://valkey:6379/0"},
    "words to quote": {"trust": ["it's", "a b", "a*"], "backend": "vllm://gpu:8000"},
}


def findings(script: str) -> list[Any]:
    if not SHELLCHECK.is_ready():
        raise EngineFailedError(
            f"shellcheck is not installed in {engines_root()}, or installed by an older recipe. "
            f"Run `{sys.executable} -m scripts.engines.install shellcheck` in the repository root."
        )
    done = subprocess.run(
        ["node", PROGRAM], cwd=SHELLCHECK.folder, input=script, capture_output=True, text=True, check=True
    )
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("options", OPTIONS)
def test_shellcheck_finds_nothing_in_the_slurm_script(options: str) -> None:
    assert findings(render_template(job_of("slurm", **OPTIONS[options]))) == []


def test_shellcheck_finds_what_is_not_quoted() -> None:
    script = render_template(job_of("slurm")).replace(': "${', ": ${").replace('sbatch}"', "sbatch}")
    assert findings(script) != []
