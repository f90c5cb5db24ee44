"""What a package index shows of the project."""

import re
import tomllib
from pathlib import Path

from scripts.release import NOT_FOR_USERS, USES

import batch_agent

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def published_readme() -> str:
    text = (ROOT / "README.md").read_text()
    for each in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    return text


def test_links_and_pictures_of_the_published_readme_are_absolute() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", published_readme())
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []


def test_links_of_the_published_readme_name_files_of_the_repository() -> None:
    pages = re.findall(r"\]\(https://(?:github|raw)[^)]*?/main/([^)#]+)", published_readme())
    assert len(pages) > 20
    assert [page for page in pages if not (ROOT / page).exists()] == []


def test_the_version_of_the_package_is_an_attribute() -> None:
    assert batch_agent.__version__ == PROJECT["project"]["version"]


def test_the_citation_names_the_version() -> None:
    assert f"\nversion: {batch_agent.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_each_extra_has_a_check_of_the_release() -> None:
    assert set(PROJECT["project"]["optional-dependencies"]) - NOT_FOR_USERS == set(USES)


def test_the_project_has_urls() -> None:
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= set(PROJECT["project"]["urls"])
