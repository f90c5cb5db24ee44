"""Writes the TypedDicts of src/batch_agent/core/options/types.py from the dataclasses that hold the options of a run:
`python -m scripts.option_types`. Names, types and descriptions are those of the dataclasses."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

from batch_agent.core.options.flat_options import OPTION_GROUPS, flat_name
from batch_agent.core.spec import BatchSpec

FILE = Path(__file__).parents[1] / "src/batch_agent/core/options/types.py"
IN_EACH_CALL = ("task", "inputs", "output_schema")
"""Required in one call and refused in another: the TypedDicts of core/options/run_options.py add them."""
OF_A_RUN = ("backend", "fallback", "lane", "checkpoint_dir", "on_result", "out", "log_requests")
"""Refused by a replay, which has no server and writes nothing."""
ACCEPTED = {
    "Path | None": "str | PathLike[str] | None",
    "Path | str | None": "str | PathLike[str] | None",
    "tuple[str, ...]": "list[str] | tuple[str, ...]",
}
"""Types that an option accepts, by the type that the dataclass stores."""

_HEAD = '''"""Types of the options of a run, for type checkers and editors.

Written by `python -m scripts.option_types` from the dataclasses of core/options, requests.py and spec.py: do not
edit."""

from collections.abc import Callable, Collection, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

from ..program_runtime import Runtime
from ..protocols.backend import Backend
from ..requests import Sampling
from ..results import OnResult
from . import ContextLimits, Distributed, Limits, Prefix, Retry, Rows, SpendingLimits, Timeouts, ToolCaching
from .backend_settings import BackendSettings
from .evaluation import Evaluation
'''
_AGENT = '''

class AgentOptions(TypedDict, total=False):
    """Options that say how agents work."""
'''
_COMMON = '''


class CommonOptions(AgentOptions, total=False):
    """Options that every run, and every stage of a flow, takes."""
'''

Declared = tuple[str, str, str]
"""Name, type and description of an option, as Python source."""


def text() -> str:
    """The whole module."""
    own = [each for each in declared(BatchSpec) if each[0] not in IN_EACH_CALL]
    agent = [each for each in own if each[0] not in OF_A_RUN and each[0] not in OPTION_GROUPS]
    for group, kind in OPTION_GROUPS.items():
        agent += [(flat_name(group, name), type_, about) for name, type_, about in declared(kind)]
        agent.append((group, kind.__name__, f"The options of `{kind.__name__}` as a group, instead of one by one."))
    common = [each for each in own if each[0] in OF_A_RUN]
    return _HEAD + _AGENT + "".join(map(_field, agent)) + _COMMON + "".join(map(_field, common)) + "\n"


def declared(kind: type[object]) -> Iterator[Declared]:
    """The fields of a dataclass, in order, with the types that a caller may give."""
    [tree] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    for field, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            stored = ast.unparse(field.annotation)
            yield ast.unparse(field.target), ACCEPTED.get(stored, stored), _description(after)


def _description(after: ast.stmt | None) -> str:
    match after:
        case ast.Expr(ast.Constant(str(about))):
            return inspect.cleandoc(about)
    return ""


def _field(option: Declared) -> str:
    name, type_, about = option
    described = "\n    ".join(wrap(f'"""{" ".join(about.split())}"""', width=116, break_on_hyphens=False))
    return f"\n    {name}: {type_.replace(chr(39), chr(34))}\n    {described}"


if __name__ == "__main__":
    FILE.write_text(text())
