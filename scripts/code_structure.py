"""Measures how easily a reader finds a module: `python -m scripts.code_structure [--json] [--list]`.

The rules that hold are tested in tests/unit/test_code_structure.py; this prints all numbers, and with --list what is
behind each of them.
"""

import ast
import importlib.util
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = "batch_agent"

# Module names that end in -ing and are nouns of the field, each with its reason.
NOUNS_IN_ING = {
    "forecasting": "the name of the discipline",
    "routing": "load balancing over endpoints is called routing",
    "ring": "not a gerund",
    "string": "not a gerund",
    "testing": "what users import for their own tests, as in numpy.testing",
}
# Names that end in -ed and are not participles, and `embedded`: the embedded model, as the field says.
NOUNS_IN_ED = {"embed", "embedded", "feed", "seed", "shed", "speed"}
IRREGULAR_PARTICIPLES = {
    "bound", "built", "done", "drawn", "found", "given", "gone", "heard", "held", "kept", "known", "left", "lost",
    "made", "met", "paid", "said", "seen", "sent", "shown", "spent", "taken", "told", "understood", "written",
}  # fmt: skip

# Words with a plainer or a standard synonym, and those whose meaning depends on who reads them.
BANNED_WORDS = {
    "anew", "beside", "commons", "crew", "crews", "dearer", "excuse", "excuses", "farewell", "farewells", "goodbye",
    "guest", "guests", "hearing", "house", "houses", "nobody", "place", "places", "placing", "purse", "purses", "seat",
    "seats", "setback", "setbacks", "somebody", "standing", "tenant", "tenants", "told", "warden", "whereabouts",
    "whoever", "words", "workshop", "workshops",
}  # fmt: skip
BANNED_PHRASES = re.compile(
    # "There is no X" is how English says that X does not exist; "it is no X" should be "it is not an X".
    r"(?<!there\s)\b(?:is|are|was|were) no (?!longer|more|less|later|earlier|such|other|better|worse|need|way|limit)"
    r"|\bat one stroke\b|\bthrown out\b|\bunder way\b|\bfirst[- ]hand\b|\bseen by hand\b|\bin our words\b",
    re.IGNORECASE,
)
# Classes that each stood, or stand, for one run before its first request.
RUN_OBJECTS = (
    "BatchSpec", "Preparation", "LaidOut", "Prepared", "Ready", "Going",
    "RunSetup", "InputLayout", "CompiledRun", "RunResources", "RunDriver",
)  # fmt: skip

_WORD = re.compile(r"[A-Za-z]+")
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@dataclass(frozen=True)
class Import:
    """One module importing another. `kind`: "top" (at import time), "lazy" (when first used), "function" (when called)
    or "typing" (never)."""

    source: str
    target: str
    kind: str


@dataclass(frozen=True)
class Module:
    name: str
    path: Path

    @property
    def stem(self) -> str:
        return self.path.parent.name if self.is_package else self.path.stem

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def is_named(self) -> bool:
        """False for __init__ and __main__, whose names are Python's."""
        return not self.path.name.startswith("__")

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


class Source:
    """The modules of a package and the imports between them."""

    def __init__(self, root: Path = ROOT / "src", package: str = PACKAGE) -> None:
        self.root = root
        self.modules = {module.name: module for module in _modules_of(root, package)}

    @cached_property
    def imports(self) -> list[Import]:
        return [
            Import(module.name, target, kind)
            for module in self.modules.values()
            for target, kind in sorted(set(self._imports_of(module)))
            if target != module.name
        ]

    def _imports_of(self, module: Module) -> Iterator[tuple[str, str]]:
        for node, kind in _import_nodes(module.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, kind) for alias in node.names if alias.name in self.modules)
                continue
            base = _absolute(node, module)
            for alias in node.names:
                target = f"{base}.{alias.name}" if f"{base}.{alias.name}" in self.modules else base
                if target in self.modules:
                    yield target, kind

    def participle_names(self) -> list[str]:
        """Modules and packages that are named by a gerund or a participle."""
        return sorted(m.name for m in self.modules.values() if m.stem != PACKAGE and is_participle(m.stem))

    def repeated_names(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for module in self.modules.values():
            if module.is_named:
                found[module.stem].append(module.name)
        return {stem: sorted(names) for stem, names in sorted(found.items()) if len(names) > 1}

    def repeated_classes(self) -> dict[str, list[str]]:
        """Public classes at the top level of a module whose name another module defines too."""
        found: dict[str, list[str]] = defaultdict(list)
        for module in self.modules.values():
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(module.name)
        return {name: sorted(modules) for name, modules in sorted(found.items()) if len(modules) > 1}

    def folders(self) -> dict[str, int]:
        """How many modules each folder has, the largest first. __init__ and __main__ do not count."""
        counts = Counter(m.path.parent.relative_to(self.root).as_posix() for m in self.modules.values() if m.is_named)
        return dict(counts.most_common())

    def single_importers(self) -> dict[str, str]:
        """Modules that exactly one other module imports, and which one."""
        importers: dict[str, set[str]] = defaultdict(set)
        for each in self.imports:
            importers[each.target].add(each.source)
        return {
            name: next(iter(importers[name]))
            for name, module in sorted(self.modules.items())
            if module.is_named and len(importers[name]) == 1
        }

    def circles(self, kinds: Iterable[str] = ("top", "lazy", "function", "typing")) -> list[list[str]]:
        """Groups of modules that import each other, the largest first. That a module imports the packages it is in does
        not count."""
        edges: dict[str, set[str]] = {name: set() for name in self.modules}
        for each in self.imports:
            if each.kind in set(kinds):
                edges[each.source].add(each.target)
        return sorted(
            (sorted(group) for group in strong_components(edges) if len(group) > 1), key=lambda g: (-len(g), g)
        )

    def imports_within(self, circle: Iterable[str]) -> list[Import]:
        inside = set(circle)
        return [each for each in self.imports if each.source in inside and each.target in inside]

    def banned_vocabulary(self) -> dict[str, Counter[str]]:
        """Banned words by where they are: identifiers, docstrings, comments, strings and the files of the page."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for module in self.modules.values():
            for kind, text in _texts(module):
                found[kind] += banned_in(text, is_prose=kind != "identifiers")
        for path in sorted(self.root.rglob("*")):
            if path.suffix in {".js", ".css", ".html"} and not path.name.endswith(".min.js"):
                found["page files"] += banned_in(path.read_text(encoding="utf-8"), is_prose=True)
        return dict(found)


def is_participle(stem: str) -> bool:
    last = stem.rpartition("_")[2]
    if stem in NOUNS_IN_ING or last in NOUNS_IN_ED:
        return False
    return last.endswith(("ing", "ed")) or last in IRREGULAR_PARTICIPLES


def banned_in(text: str, *, is_prose: bool) -> Counter[str]:
    words = (part.lower() for word in _WORD.findall(text) for part in _CAMEL.findall(word))
    counts = Counter(word for word in words if word in BANNED_WORDS)
    if is_prose:
        counts.update(" ".join(found.lower().split()) for found in BANNED_PHRASES.findall(text))
    return counts


def strong_components(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """Strongly connected components by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components: list[set[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for target in sorted(edges[node]):
            if target not in order:
                visit(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in stack:
                lowest[node] = min(lowest[node], order[target])
        if lowest[node] == order[node]:
            first = stack.index(node)
            components.append(set(stack[first:]))
            del stack[first:]

    for node in edges:
        if node not in order:
            visit(node)
    return components


def _modules_of(root: Path, package: str) -> Iterator[Module]:
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path)


def _import_nodes(node: ast.AST, kind: str = "top") -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, kind
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _import_nodes(child, "function")
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _import_nodes(child, "typing")
        elif isinstance(child, ast.With) and "lazy_" in ast.unparse(child.items[0]):
            yield from _import_nodes(child, "lazy")
        else:
            yield from _import_nodes(child, kind)


def _absolute(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    package = module.name if module.is_package else module.name.rpartition(".")[0]
    return importlib.util.resolve_name("." * node.level + (node.module or ""), package).rstrip(".")


def _texts(module: Module) -> Iterator[tuple[str, str]]:
    """What is written in a module, by kind."""
    docstrings = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.add(id(first.value))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield ("docstrings" if id(node) in docstrings else "strings"), node.value
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.NAME:
            yield "identifiers", token.string
        elif token.type == tokenize.COMMENT:
            yield "comments", token.string


def contracts() -> list[dict[str, Any]]:
    """The rules of imports in pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return list(settings["tool"]["importlinter"]["contracts"])


def measure(source: Source) -> dict[str, Any]:
    """All numbers and what is behind them, as JSON."""
    named = [module for module in source.modules.values() if module.is_named]
    docs = sum((banned_in(path.read_text(encoding="utf-8"), is_prose=True) for path in _docs()), Counter[str]())
    classes = {node.name for m in named for node in m.tree.body if isinstance(node, ast.ClassDef)}
    return {
        "modules": len(source.modules),
        "lines": sum(len(module.text.splitlines()) for module in source.modules.values()),
        "participle_names": source.participle_names(),
        "repeated_names": source.repeated_names(),
        "repeated_classes": source.repeated_classes(),
        "banned_vocabulary": {
            **{kind: dict(counts.most_common()) for kind, counts in sorted(source.banned_vocabulary().items())},
            "docs": dict(docs.most_common()),
        },
        "single_importers": source.single_importers(),
        "folders": source.folders(),
        "run_objects": [name for name in RUN_OBJECTS if name in classes],
        "circles": [
            {"modules": circle, "imports": [vars(each) for each in source.imports_within(circle)]}
            for circle in source.circles()
        ],
        "circles_at_import_time": source.circles(["top"]),
        "circles_without_typing": source.circles(["top", "lazy", "function"]),
        "layers": [layer for each in contracts() for layer in each.get("layers", ())],
        "ignored_imports": [ignored for each in contracts() for ignored in each.get("ignore_imports", ())],
        "readme_words": len((ROOT / "README.md").read_text(encoding="utf-8").split()),
        "setup_functions": _setup_functions(),
    }


def _docs() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _setup_functions() -> str | None:
    """The sum that scripts/setup_functions.py prints last, where that script exists."""
    if not (ROOT / "scripts" / "setup_functions.py").exists():
        return None
    command = [sys.executable, "-m", "scripts.setup_functions"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()[-1].strip()


def table(numbers: Mapping[str, Any]) -> str:
    folders = [f"{name.removeprefix(PACKAGE + '/')} {count}" for name, count in list(numbers["folders"].items())[:6]]
    vocabulary = {kind: sum(counts.values()) for kind, counts in numbers["banned_vocabulary"].items()}
    rows = [
        ("modules / lines", f"{numbers['modules']} / {numbers['lines']:,}"),
        ("modules named by a gerund or participle", len(numbers["participle_names"])),
        ("module names in several folders", len(numbers["repeated_names"])),
        ("public class names defined several times", len(numbers["repeated_classes"])),
        *((f"banned vocabulary in {kind}", count) for kind, count in vocabulary.items()),
        ("modules with exactly one importer", len(numbers["single_importers"])),
        ("largest folders", ", ".join(folders)),
        ("objects of one run", f"{len(numbers['run_objects'])}: {', '.join(numbers['run_objects'])}"),
        ("import circles, all imports", _sizes([circle["modules"] for circle in numbers["circles"]])),
        ("import circles, without TYPE_CHECKING", _sizes(numbers["circles_without_typing"])),
        ("import circles, at import time", _sizes(numbers["circles_at_import_time"])),
        ("layers / ignored imports in pyproject.toml", f"{len(numbers['layers'])} / {len(numbers['ignored_imports'])}"),
        ("words in README.md", f"{numbers['readme_words']:,}"),
        ("functions of set-up", numbers["setup_functions"] or "scripts/setup_functions.py is missing"),
    ]
    return "\n".join(["| what | now |", "|---|---|", *(f"| {what} | {now} |" for what, now in rows)])


def _sizes(circles: list[list[str]]) -> str:
    return f"{len(circles)}" + (f" (of {', '.join(str(len(circle)) for circle in circles)} modules)" if circles else "")


def details(numbers: Mapping[str, Any]) -> Iterator[str]:
    yield "\n# Modules named by a gerund or participle\n" + "\n".join(numbers["participle_names"])
    for title, key in (("Module names in several folders", "repeated_names"), ("Classes", "repeated_classes")):
        yield f"\n# {title}\n" + "\n".join(f"{name}: {', '.join(homes)}" for name, homes in numbers[key].items())
    yield "\n# Modules with exactly one importer\n" + "\n".join(
        f"{name} <- {importer}" for name, importer in numbers["single_importers"].items()
    )
    for kind, counts in numbers["banned_vocabulary"].items():
        yield f"\n# Banned vocabulary in {kind}\n" + ", ".join(f"{word} {count}" for word, count in counts.items())
    for circle in numbers["circles"]:
        edges = (f"  {each['source']} -> {each['target']} ({each['kind']})" for each in circle["imports"])
        yield f"\n# Circle of {len(circle['modules'])}: {', '.join(circle['modules'])}\n" + "\n".join(edges)


def main() -> None:
    numbers = measure(Source())
    if "--json" in sys.argv:
        print(json.dumps(numbers, indent=2))
        return
    print(table(numbers))
    if "--list" in sys.argv:
        print(*details(numbers), sep="\n")


if __name__ == "__main__":
    main()
