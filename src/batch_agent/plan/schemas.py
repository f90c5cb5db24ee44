"""How a model is kept to a schema: by its server, or by words."""

import orjson

from ..core.schema import JsonSchema
from ..core.strict_schema import strict_form
from ..core.traits import Traits


def is_kept(schema: JsonSchema, traits: Traits) -> bool:
    """Whether the server keeps answers to this schema."""
    return traits.json_schema and (not traits.strict_schema or strict_form(schema) is not None)


def inject(schema: JsonSchema) -> str:
    """What a prompt says where it does not."""
    return "Answer with JSON only, no other text. It must fit this JSON schema:\n" + orjson.dumps(schema).decode()
