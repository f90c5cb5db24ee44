"""Rendered templates, and the public schemas that they are checked against."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml

from batch_agent.cli.cluster_templates.renderer import ClusterJob, Platform, render_template

SCHEMAS = Path(__file__).parents[1] / "schemas"
PLATFORMS: tuple[Platform, ...] = ("kubernetes", "kuberay", "slurm", "skypilot")
IMAGE = "registry.example/agents:1"
STORE = "BATCH_AGENT_STORE"


def job_of(platform: Platform, run: str = "reviews", **options: Any) -> ClusterJob:
    """With an image where one is needed."""
    needed = {"image": IMAGE} if platform in ("kubernetes", "kuberay") else {}
    return ClusterJob(platform=platform, run=run, **(needed | options))


def problems(platform: Platform, document: Any) -> list[str]:
    """What the scheduler's schema rejects."""
    return [
        f"{'.'.join(map(str, each.instance_path))}: {each.message}" for each in _schema(platform).iter_errors(document)
    ]


def parsed(job: ClusterJob) -> Any:
    return yaml.load(render_template(job), Loader=yaml.CSafeLoader)  # as safe_load, ten times as fast


def container_of(document: Any) -> Any:
    [container] = document["spec"]["template"]["spec"]["containers"]
    return container


@cache
def _schema(platform: Platform) -> jsonschema_rs.Validator:
    schema = json.loads((SCHEMAS / f"{platform}.json").read_text())
    definitions = json.loads((SCHEMAS / "kubernetes.json").read_text())["$defs"]
    match platform:
        case "kubernetes":
            schema["$ref"] = "#/$defs/io.k8s.api.batch.v1.Job"
        case "kuberay":
            schema["$defs"] = definitions
    return jsonschema_rs.validator_for(schema)
