"""`batch-agent template`: what it prints is what a scheduler accepts, whatever the values are."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster_templates import IMAGE, PLATFORMS, STORE, container_of, job_of, parsed, problems

from batch_agent import SpecError
from batch_agent.cli.cluster_templates.renderer import Platform, render_template
from batch_agent.cli.cluster_templates.template_command import template

YAML: tuple[Platform, ...] = ("kubernetes", "kuberay", "skypilot")
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "store": {"store": "redis://valkey:6379/0"},
    "image": {"image": IMAGE, "run": "A_long.Name-" * 5},
    "size": {"workers": 1000, "cpus": 8, "memory_gb": 64},
}
MISSPELT_IN = {"kubernetes": ["spec"], "kuberay": ["spec", "rayClusterSpec"], "skypilot": ["resources"]}
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12).filter(
    lambda word: "@" not in word and "?" not in word
)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("platform", YAML)
def test_a_rendered_file_is_valid_by_the_schema_of_its_scheduler(platform: Platform, options: str) -> None:
    assert problems(platform, parsed(job_of(platform, **OPTIONS[options]))) == []


@pytest.mark.parametrize("platform", YAML)
def test_the_schema_rejects_a_misspelt_field(platform: Platform) -> None:
    document = part = parsed(job_of(platform))
    for name in MISSPELT_IN[platform]:
        part = part[name]
    part["paralellism"] = 3
    [problem] = problems(platform, document)
    assert "paralellism" in problem


@pytest.mark.parametrize("options", ["none", "store"])
def test_bash_parses_the_slurm_script(tmp_path: Path, options: str) -> None:
    script = tmp_path / "workers.sh"
    script.write_text(render_template(job_of("slurm", **OPTIONS[options], trust=["it's", "$(rm)"])))
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_slurm_reads_its_directives_before_the_first_command() -> None:
    lines = render_template(job_of("slurm", workers=8, cpus=2, memory_gb=3, grace=45)).splitlines()
    first = next(at for at, line in enumerate(lines) if line and not line.startswith("#"))
    assert {line for line in lines if line.startswith("#SBATCH")} == {
        line for line in lines[:first] if "SBATCH" in line
    }
    for directive in ("--array=1-8", "--cpus-per-task=2", "--mem=3G", "--signal=B:TERM@45", "--requeue"):
        assert f"#SBATCH {directive}" in lines


@given(
    backend=WORDS,
    trust=st.lists(WORDS, max_size=3),
    store=WORDS,
    run=st.from_regex(r"[\w.-]{1,70}", fullmatch=True),
)
def test_no_value_changes_the_structure_of_the_file(backend: str, trust: list[str], store: str, run: str) -> None:
    more: dict[str, Any] = {"backend": backend, "trust": trust, "store": f"redis://{store}", "max_inflight": 3}
    command = job_of("slurm", run, **more).worker_command()

    container = container_of(parsed(job_of("kubernetes", run, **more)))
    assert [word.replace("$$", "$") for word in container["command"]] == command
    assert [each["value"].replace("$$", "$") for each in container["env"]] == [more["store"]]

    *_, exported, _, _, last = render_template(job_of("slurm", run, **more)).splitlines()
    assert shlex.split(exported) == ["export", f"{STORE}={more['store']}"]
    assert shlex.split(last) == ["exec", *command]

    task = parsed(job_of("skypilot", run, **more))
    assert shlex.split(task["run"]) == ["exec", *command]
    assert task["envs"] == {STORE: more["store"]}
    for platform in YAML:
        given = {"store": more["store"]} if platform == "kuberay" else more
        assert problems(platform, parsed(job_of(platform, run, **given))) == []


def test_kubernetes_does_not_expand_a_value() -> None:
    container = container_of(parsed(job_of("kubernetes", trust=["$(HOME)"])))
    assert container["command"][-1] == "$$(HOME)"


def test_a_job_counts_failures_but_not_preemptions() -> None:
    spec = parsed(job_of("kubernetes", workers=8, grace=45))["spec"]
    assert "completions" not in spec  # the Job is complete when its workers found no work
    assert spec["parallelism"] == 8
    preempted, stopped = spec["podFailurePolicy"]["rules"]
    assert preempted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    assert stopped == {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [143]}}
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # Kubernetes requires it for the policy
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 45


def test_the_store_comes_from_a_secret_unless_its_url_is_given() -> None:
    container = container_of(parsed(job_of("kubernetes", secret="keys")))
    assert container["envFrom"] == [{"secretRef": {"name": "keys", "optional": False}}]
    assert "env" not in container
    assert parsed(job_of("skypilot"))["secrets"] == {STORE: None}
    done = subprocess.run(["bash", "-c", render_template(job_of("slurm"))], capture_output=True, text=True, env={})
    assert done.returncode != 0
    assert f"{STORE}: set it to the URL" in done.stderr


def test_a_ray_job_resumes_from_its_volume() -> None:
    spec = parsed(job_of("kuberay", workers=3, claim="rows"))["spec"]
    assert spec["entrypoint"].startswith("cd /data && batch-agent run --cluster ray --workers 3")
    assert spec["backoffLimit"] == 3
    cluster = spec["rayClusterSpec"]
    pod = cluster["headGroupSpec"]["template"]["spec"]
    assert pod["containers"][0]["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    assert pod["volumes"] == [{"name": "data", "persistentVolumeClaim": {"claimName": "rows"}}]
    [group] = cluster["workerGroupSpecs"]
    assert group["replicas"] == 3


def test_skypilot_installs_the_version_of_the_run_unless_an_image_has_it() -> None:
    assert re.search(r"batch-agent\[redis\]==\d", parsed(job_of("skypilot"))["setup"])
    with_image = parsed(job_of("skypilot", image=IMAGE))
    assert "setup" not in with_image
    assert with_image["resources"]["image_id"] == f"docker:{IMAGE}"


@pytest.mark.parametrize("platform", PLATFORMS)
def test_names_are_those_that_every_scheduler_accepts(platform: Platform) -> None:
    text = render_template(job_of(platform, "A.B_c-" * 10))
    [name] = set(re.findall(r"(?:name: |job-name=)(batch-agent-[^\s]*)", text))
    assert re.fullmatch(r"[a-z0-9-]{1,52}[a-z0-9]", name)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_command_prints_the_file(platform: Platform, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    job = job_of(platform)
    assert template(platform, run="reviews", image=job.image) == 0
    assert capfdbinary.readouterr().out == render_template(job).encode()


REFUSED: list[tuple[Platform, dict[str, Any], str]] = [
    ("kubernetes", {"image": None}, r"kubernetes needs --image: .*batch-agent\[redis\]"),
    ("kuberay", {"image": None}, r"kuberay needs --image: .*batch-agent\[ray\]"),
    ("kubernetes", {"image": "a b"}, "--image must be the name of a container image"),
    ("kubernetes", {"claim": "data"}, "--claim is not used on kubernetes"),
    ("kuberay", {"trust": ["tools"]}, "--trust is not used on kuberay: set it in the batch.toml"),
    ("slurm", {"image": IMAGE}, "--image is not used on slurm"),
    ("skypilot", {"grace": 5}, "--grace is not used on skypilot"),
    ("slurm", {"run": "a b"}, "run_id must consist of"),
    ("slurm", {"workers": 0}, "--workers must be an integer from 1 to 100000; got 0"),
    ("slurm", {"memory_gb": 10**6}, "--memory-gb must be an integer from 1 to"),
    ("slurm", {"max_inflight": 0}, "max_inflight must be"),
    ("kubernetes", {"secret": "A_b"}, "--secret must consist of lower-case letters"),
    ("slurm", {"store": "http://host"}, "store must be a URL such as 'redis://"),
    ("slurm", {"trust": ["a\nb"]}, "cannot be printed"),
]


@pytest.mark.parametrize(("platform", "options", "problem"), REFUSED)
def test_a_value_that_the_scheduler_does_not_accept_is_refused(
    platform: Platform, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SpecError, match=problem):
        job_of(platform, **options)


@pytest.mark.parametrize("name", ["store", "backend"])
def test_a_password_is_neither_written_nor_shown(name: str) -> None:
    with pytest.raises(SpecError, match="may have a password") as error:
        job_of("slurm", **{name: "redis://:secret@host:6379"})
    assert "secret@" not in str(error.value)
