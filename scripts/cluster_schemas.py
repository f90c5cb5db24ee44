"""Schemas that rendered cluster templates are tested against, cut out of the public ones: tests/schemas/*.json.

    python -m scripts.cluster_schemas kubernetes kubernetes_validate-1.37.0-py3-none-any.whl
    python -m scripts.cluster_schemas kuberay ray.io_rayjobs.yaml
    python -m scripts.cluster_schemas skypilot                        # in an environment with skypilot

Only what a Job, a pod, a RayJob and a task refer to is kept, without the descriptions. The pods of a RayJob refer to
those of Kubernetes. Objects of a RayJob accept no field that they do not list, as `kubectl apply` reports it.
"""

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).parents[1] / "tests" / "schemas"
JOB = "io.k8s.api.batch.v1.Job"
POD = "io.k8s.api.core.v1.PodTemplateSpec"
_HERE = "#/$defs/"
_OPEN = ("additionalProperties", "x-kubernetes-preserve-unknown-fields")


def kubernetes(wheel: str) -> dict[str, Any]:
    """The definitions that a Job needs, of the newest version in a wheel of kubernetes-validate."""
    with zipfile.ZipFile(wheel) as files:
        version = max(name.split("/")[2] for name in files.namelist() if name.endswith("-local-strict/all.json"))
        text = files.read(f"kubernetes_validate/kubernetes-json-schema/{version}/_definitions.json")
    definitions = json.loads(text)["$defs"]
    kept: dict[str, Any] = {}
    missing = [JOB]
    while missing:
        name = missing.pop()
        kept[name] = _short(definitions[name])
        missing += [found for found in _references(kept[name]) if found not in kept and found not in missing]
    return {"$comment": f"Kubernetes {version}", "$defs": dict(sorted(kept.items()))}


def kuberay(definition: str) -> dict[str, Any]:
    """The spec of a RayJob, of KubeRay's custom resource definition."""
    import yaml

    versions = yaml.safe_load(Path(definition).read_text())["spec"]["versions"]
    [found] = [each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == "v1"]
    found["properties"]["metadata"] = {"type": "object"}
    del found["properties"]["status"]
    return {"$comment": "KubeRay ray.io/v1 RayJob", **_closed(_short(found))}


def skypilot() -> dict[str, Any]:
    """A task, with its resources in place."""
    import sky
    from sky.utils import schemas

    task = schemas.get_task_schema()
    kept = ("name", "num_nodes", "workdir", "file_mounts", "setup", "run", "envs", "secrets")
    resources = schemas.get_resources_schema()
    for nested in ("any_of", "ordered"):
        del resources["properties"][nested]
    properties = {name: task["properties"][name] for name in kept} | {"resources": resources}
    return {"$comment": f"SkyPilot {sky.__version__}", **task, "properties": properties}


def _short(value: Any) -> Any:
    """Without descriptions, and with references inside the one document. A field may be called description, too."""
    if isinstance(value, list):
        return [_short(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {name: item for name, item in value.items() if not (name == "description" and isinstance(item, str))}
    if "$ref" in kept:
        kept["$ref"] = _HERE + kept["$ref"].rpartition(_HERE)[2]
    return {name: item if name == "$ref" else _short(item) for name, item in kept.items()}


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for item in value for name in _references(item)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"].removeprefix(_HERE)] if isinstance(value.get("$ref"), str) else []
    return own + [name for item in value.values() for name in _references(item)]


def _closed(value: Any) -> Any:
    """Pods refer to Kubernetes' own; other objects accept no field that they do not list."""
    if not isinstance(value, dict):
        return value
    properties = value.get("properties")
    if not isinstance(properties, dict):
        return {name: _closed(item) for name, item in value.items()}
    if "containers" in properties.get("spec", {}).get("properties", {}):
        return {"$ref": _HERE + POD}
    closed = {} if any(name in value for name in _OPEN) else {"additionalProperties": False}
    return {**value, **closed, "properties": {name: _closed(item) for name, item in properties.items()}}


MAKERS: dict[str, Callable[..., dict[str, Any]]] = {"kubernetes": kubernetes, "kuberay": kuberay, "skypilot": skypilot}


def main(name: str, *source: str) -> None:
    path = SCHEMAS / f"{name}.json"
    path.write_text(json.dumps(MAKERS[name](*source), separators=(",", ":")) + "\n")
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
