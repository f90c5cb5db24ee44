"""Builders of compiled plans."""

from typing import Any

from batch_agent.agent.output import output_type
from batch_agent.core.agent_config import AgentConfig
from batch_agent.core.messages import ToolSpec
from batch_agent.core.protocols.backend import Traits
from batch_agent.core.spec import BatchSpec
from batch_agent.plan.compile import Plan, compile_plan
from batch_agent.plan.layout import default_layout
from batch_agent.plan.template import parse_template

SEARCH = ToolSpec(
    "search", "Finds pages.", {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
)


def traits(native_tools: bool = True, json_schema: bool = True, beside_tools: bool = True) -> Traits:
    return Traits("fake", "default-model", native_tools, json_schema, beside_tools, inflight=8)


CAPABLE = traits()


def plan(
    tools: tuple[ToolSpec, ...] = (), output: Any = None, traits: Traits = CAPABLE, task: str = "{it}", **options: Any
) -> Plan:
    spec = BatchSpec.of(task=task, inputs=[], **options)
    return compile_plan(spec, default_layout(parse_template(task)), tools, output_type(output), traits)


def rules(
    tools: tuple[ToolSpec, ...] = (), output: Any = None, traits: Traits = CAPABLE, **options: Any
) -> AgentConfig:
    return plan(tools, output, traits, **options).config
