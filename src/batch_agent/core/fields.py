"""A task whose fields may be ordered: said once what is to be done, then the fields of each input."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from .errors import SpecError


@dataclass(frozen=True, slots=True, init=False)
class Fields:
    """`Fields("Does the review fit the product?", "product", "description", "review")`.

    The order of the fields is the engine's: what many inputs share comes first, so that it is computed once. In a
    task that is a text, fields stay where they stand. No names: all fields that the first input has."""

    instruction: str
    names: tuple[str, ...] = field(default=())

    def __init__(self, instruction: str, *names: str) -> None:
        if not isinstance(instruction, str) or not instruction.strip():
            raise SpecError("Fields(...) begins with a text that says what each agent should do.")
        for name in names:
            if not isinstance(name, str) or not name:
                raise SpecError(f"Fields(...): a field is named by a text; got {name!r}.")
        if len(set(names)) < len(names):
            raise SpecError(f"Fields(...) names a field twice: {', '.join(names)}.")
        object.__setattr__(self, "instruction", instruction)
        object.__setattr__(self, "names", names)

    def __str__(self) -> str:
        """The same task as a text with its fields in the order in which they were named."""
        escaped = self.instruction.replace("{", "{{").replace("}", "}}")
        return "\n".join([escaped, "", *(f"{name}: {{{name}}}" for name in self.names)])

    def named(self, names: Iterable[str]) -> Self:
        """With these names, if it has none yet."""
        return self if self.names else type(self)(self.instruction, *names)
