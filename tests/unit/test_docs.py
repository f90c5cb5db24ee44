"""What the docs say about the code, kept true."""

import pkgutil
import re
from dataclasses import fields
from pathlib import Path

from benchmarks.render.tables import PAGES, TABLES, written
from scripts.backend_table import FLAVORS, SERVICES, services_table, table
from scripts.layer_picture import PICTURE, layers, picture

import batch_agent
import batch_agent.pools
from batch_agent.backends.flavors import BY_OWNER, BY_SCHEME, SIM
from batch_agent.core.errors import ErrorKind
from batch_agent.core.options.flat_options import OPTION_GROUPS, flat_name
from batch_agent.core.spec import BatchSpec

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_of_backends_is_the_one_that_the_flavors_make() -> None:
    text = (DOCS / "backends.md").read_text()
    shown = text.partition("<!-- table -->\n")[2].partition("\n<!-- /table -->")[0]
    assert shown == table(), "run `python -m scripts.backend_table` and put its output into docs/backends.md"
    shown = text.partition("<!-- services -->\n")[2].partition("\n<!-- /services -->")[0]
    assert shown == services_table(), "run `python -m scripts.backend_table` and put its output into docs/backends.md"
    assert {*BY_SCHEME.values(), *BY_OWNER.values()} - {SIM} <= {*FLAVORS, *SERVICES}


def test_every_option_is_documented() -> None:
    text = (DOCS / "options.md").read_text()
    own = [field.name for field in fields(BatchSpec) if field.name not in OPTION_GROUPS]
    grouped = [flat_name(group, field.name) for group, kind in OPTION_GROUPS.items() for field in fields(kind)]
    assert [name for name in (*own, *grouped) if f"`{name}`" not in text] == []


def test_every_kind_of_backend_error_has_its_reaction_in_the_docs() -> None:
    text = (DOCS / "backends.md").read_text()
    of_agents = {
        ErrorKind.BAD_INPUT,
        ErrorKind.INPUTS,
        ErrorKind.OUT,
        ErrorKind.AGENT_TIMEOUT,
        ErrorKind.TRUNCATED,
        ErrorKind.REFUSED,
        ErrorKind.INVALID_OUTPUT,
        ErrorKind.MAX_TURNS,
        ErrorKind.BUDGET,
        ErrorKind.CANCELLED,
        ErrorKind.PROGRAM,
        ErrorKind.CALLBACK,
        ErrorKind.RUNNING,
        ErrorKind.INTERRUPTED,
        ErrorKind.NOT_STARTED,
        ErrorKind.INTERNAL,
    }
    assert [kind for kind in set(ErrorKind) - of_agents if f"| `{kind}` |" not in text] == []


def test_the_tables_of_benchmarks_are_those_that_the_results_make() -> None:
    pages = [page.read_text() for page in PAGES]
    assert [written(page) for page in pages] == pages, "run `python -m benchmarks.render.tables`"
    assert [name for name in TABLES if f"<!-- table: {name} -->" not in "".join(pages)] == []


def test_the_readme_stays_short() -> None:
    assert len((DOCS.parent / "README.md").read_text().split()) <= 700


def test_the_picture_of_the_layers_shows_those_of_the_linter() -> None:
    assert PICTURE.read_text() == picture(layers()), "run `python -m scripts.layer_picture`"


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    public = set(vars(batch_agent)["__all__"])
    assert [name for name in public if f"::: batch_agent.{name}\n" not in text] == []
    aggregators = batch_agent.pools.aggregators.__dict__
    patterns = set(batch_agent.pools.__all__) - set(aggregators) - public
    assert [name for name in patterns if f"::: batch_agent.pools.{name}\n" not in text] == []


def test_every_name_in_the_reference_exists() -> None:
    text = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    names = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    assert len(names) > 50
    assert [name for name in names if not _exists(name)] == []


def _exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (AttributeError, ImportError):
        return False
    return True
