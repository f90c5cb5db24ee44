"""Description of a run for its views: task, system prompt, tools, schema and options, without secrets."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from pathlib import PurePath
from typing import Any

from ..core.options.flat_options import OPTION_GROUPS, flat_name
from ..core.run_reports import RunDescription
from ..core.safe_text import public_url
from ..core.spec import BatchSpec
from ..observe.checkpoint_results import answer_schema, recorded_tools
from ..plan.compile import Plan
from ..supervisor.environment_secrets import is_secret

_MASKED = "***"
_SHOWN_APART = frozenset({"task", "tools", "output_schema", "model", "system_prompt"})


def describe_run(spec: BatchSpec, plan: Plan) -> RunDescription:
    """Description of the run with this spec."""
    return RunDescription(
        task=plan.question["task"],
        system_prompt=plan.config.prompt.system,
        tools=recorded_tools(plan.description),
        output_schema=answer_schema(plan.description),
        options=_changed_options(spec),
    )


def _changed_options(spec: BatchSpec) -> dict[str, Any]:
    """Options that differ from their defaults, by their flat names. Inputs are named only if they have an address."""
    found = {}
    for each in fields(spec):
        value = getattr(spec, each.name)
        if each.name in OPTION_GROUPS:
            found.update(_changed(each.name, value))
        elif each.name == "inputs":
            if isinstance(value, str | PurePath):
                found["inputs"] = _shown("inputs", value)
        elif each.name not in _SHOWN_APART and value != _default(each):
            found[each.name] = _shown(each.name, value)
    return found


def _changed(group: str, options: Any) -> dict[str, Any]:
    return {
        flat_name(group, each.name): _MASKED if each.name == "cache_salt" else _shown("", value)
        for each in fields(options)
        if each.name not in _SHOWN_APART and (value := getattr(options, each.name)) != _default(each)
    }


def _default(option: Field[Any]) -> Any:
    return option.default_factory() if option.default_factory is not MISSING else option.default


def _shown(name: str, value: Any) -> Any:
    """The value as JSON data. A text with the name of a secret is masked; URLs have neither passwords nor queries."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | PurePath):
        text = str(value)
        return _MASKED if is_secret(name, "") else public_url(text) if "://" in text else text
    if isinstance(value, Mapping):
        return {str(each): _shown(str(each), inner) for each, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown(name, inner) for inner in value]
    return getattr(value, "__name__", None) or type(value).__name__
