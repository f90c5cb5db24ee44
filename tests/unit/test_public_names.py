"""The names that people import."""

import builtins
import subprocess
import sys

import pytest

import batch_agent
from batch_agent.lazy_imports import lazy_imports, lazy_modules

PUBLIC: list[str] = vars(batch_agent)["__all__"]  # made at run time, where a type checker does not see it


OWN_NAMES = {"Backend": "BackendSettings"}
"""Classes that have another name inside of the package."""


def test_every_public_name_is_there() -> None:
    for name in PUBLIC:
        assert getattr(batch_agent, name).__name__ == OWN_NAMES.get(name, name)
        assert name in dir(batch_agent)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        getattr(batch_agent, "Nothing")  # noqa: B009 - mypy knows that it is not there


def test_importing_the_package_brings_nothing_that_takes_time() -> None:
    code = "import sys, batch_agent; print([m for m in ('aiohttp', 'pydantic', 'rich', 'asyncio') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip() == "[]"


def test_every_public_name_is_found_by_a_star_import() -> None:
    namespace: dict[str, object] = {}
    exec("from batch_agent import *", namespace)
    assert sorted(set(namespace) - {"__builtins__"}) == PUBLIC
    assert "lazy_imports" not in PUBLIC


def test_names_of_packages_are_complete_whether_imported_at_once_or_not() -> None:
    assert {"Tool", "group_by_tools", "MCP", "sql_tool"} <= set(vars(batch_agent.tools)["__all__"])
    assert {"SqlQuery", "read_inputs", "as_row", "open_results"} <= set(vars(batch_agent.data)["__all__"])
    assert callable(batch_agent.tools.group_by_tools)


@pytest.mark.slow
def test_packages_can_be_imported_by_threads_at_once_with_what_others_import() -> None:
    code = """
import builtins, sys, threading
real, names = builtins.__import__, ["batch_agent", "batch_agent.tools", "batch_agent.data", "json", "csv", "decimal"]
barrier = threading.Barrier(len(names))
def load(name):
    barrier.wait()
    __import__(name)
threads = [threading.Thread(target=load, args=(name,)) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert builtins.__import__ is real
from batch_agent.tools import MCP, group_by_tools
from batch_agent.data import as_row
from batch_agent import BatchAgent
print(BatchAgent.__name__, MCP.__name__, as_row.__name__, sys.modules["csv"].reader.__name__)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.split() == ["BatchAgent", "MCP", "as_row", "reader"]


def test_an_import_that_fails_while_names_are_noted_leaves_python_as_it_was() -> None:
    package: dict[str, object] = {"__name__": "some", "__builtins__": builtins}
    real = builtins.__import__
    with pytest.raises(ZeroDivisionError):
        exec("with lazy_imports(globals()):\n from .a import b as b\n 1 / 0", {**package, "lazy_imports": lazy_imports})
    assert builtins.__import__ is real


def test_a_lazy_module_is_imported_when_it_is_first_used() -> None:
    code = """
import sys
from batch_agent.lazy_imports import lazy_modules
names = {"__name__": "batch_agent.some", "__package__": "batch_agent", "lazy_modules": lazy_modules}
exec("with lazy_modules(globals()):\\n from .core import facts as kept\\n from . import channel", names)
print("batch_agent.core.facts" in sys.modules, names["kept"].Replied.__module__)
print(names["kept"] is sys.modules["batch_agent.core.facts"], "batch_agent.channel" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.split() == ["False", "batch_agent.core.facts", "True", "False"]


def test_a_lazy_module_that_is_not_there_is_an_error_when_it_is_used() -> None:
    namespace: dict[str, object] = {"__name__": "batch_agent.some", "__package__": "batch_agent"}
    exec(
        "with lazy_modules(globals()):\n from .core import nothing",
        namespace | {"lazy_modules": lazy_modules},
        namespace,
    )
    with pytest.raises(ModuleNotFoundError, match=r"batch_agent\.core\.nothing"):
        getattr(namespace["nothing"], "some")  # noqa: B009 - mypy does not know the name


def test_the_names_of_aurora_swarm_are_those_of_pools() -> None:
    from batch_agent import pools, swarm

    names = {"Blackboard", "Stage", "VLLMPool", "broadcast", "majority_vote", "run_pipeline", "tree_reduce"}
    assert names <= set(swarm.__all__) == set(pools.__all__)
    assert all(getattr(swarm, name) is getattr(pools, name) for name in swarm.__all__)
