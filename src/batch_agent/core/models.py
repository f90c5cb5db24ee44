"""Pydantic's models among values. Pydantic is not imported to find none: whoever has a model has imported it."""

import sys
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from pydantic import BaseModel, SecretBytes, SecretStr


def is_model(value: object) -> "TypeGuard[BaseModel]":
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.BaseModel)


def is_model_class(value: object) -> "TypeGuard[type[BaseModel]]":
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, type) and issubclass(value, pydantic.BaseModel)


def is_secret(value: object) -> "TypeGuard[SecretStr | SecretBytes]":
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.SecretStr | pydantic.SecretBytes)
