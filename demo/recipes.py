"""The texts that each demo tenant classifies, and the source of their labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from demo.harvest import Kind, Snippet
from demo.prose import lead, passages

TEXT_WORDS = 45
DOCUMENTATION = frozenset({Kind.MODULE, Kind.CLASS, Kind.FUNCTION, Kind.METHOD})

Labeller = Callable[[Snippet], str | None]
Cutter = Callable[[Snippet], Iterable[str]]


def opening(snippet: Snippet) -> Iterable[str]:
    return [lead(snippet.text, TEXT_WORDS)]


def every_passage(snippet: Snippet) -> Iterable[str]:
    return passages(snippet.text, TEXT_WORDS)


def opening_or_chapter(snippet: Snippet) -> Iterable[str]:
    return every_passage(snippet) if snippet.kind is Kind.REFERENCE else opening(snippet)


@dataclass(frozen=True)
class Recipe:
    """The making of one task: whose snippets, how each is labelled (None leaves it out) and cut into texts."""

    id: str
    domain: str
    question: str
    packages: tuple[str, ...]
    label: Labeller
    cut: Cutter
    must_name: re.Pattern[str] | None = None


def by_module(modules: Mapping[str, str]) -> Labeller:
    """Labels documentation by the module that it stands in: label → dotted prefixes."""
    label_of = {prefix: label for label, prefixes in modules.items() for prefix in prefixes.split()}

    def label(snippet: Snippet) -> str | None:
        if snippet.kind not in DOCUMENTATION:
            return None
        parts = snippet.module.split(".")
        prefixes = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
        return next((label_of[prefix] for prefix in prefixes if prefix in label_of), None)

    return label


VERBS = {
    "checks": re.compile(r"(is|has|can)_|(is|has)(?!o|h)[a-z]+$"),
    "reads": re.compile(r"(get|read|fetch|load|recv|find)"),
    "writes": re.compile(r"(set|write|put|send|add|append|insert|store|push)(?!tings)"),
}


def by_verb(snippet: Snippet) -> str | None:
    """Labels a function's documentation by what its name promises."""
    if snippet.kind not in (Kind.FUNCTION, Kind.METHOD):
        return None
    name = snippet.name.rpartition(".")[2].lower()
    if name.startswith("__"):  # operators: `__add__` writes nothing
        return None
    name = name.lstrip("_")
    return next((label for label, verb in VERBS.items() if verb.match(name)), None)


def by_kind(snippet: Snippet) -> str | None:
    if snippet.kind in (Kind.FUNCTION, Kind.METHOD):
        return "docstring"
    return {Kind.ERROR: "error", Kind.REFERENCE: "manual"}.get(snippet.kind)


def by_package(snippet: Snippet) -> str | None:
    return snippet.package if snippet.kind in DOCUMENTATION else None


AREAS = {
    "concurrency": "asyncio threading multiprocessing concurrent queue",
    "files": "pathlib shutil zipfile tarfile tempfile os ntpath posixpath genericpath glob fnmatch gzip bz2 lzma "
    "filecmp fileinput",
    "mail": "email mailbox imaplib smtplib poplib nntplib smtpd",
    "numbers": "_pydecimal fractions statistics numbers random colorsys datetime calendar",
}
TOOLS = {
    "importing": "importlib pkgutil zipimport runpy modulefinder",
    "logging": "logging warnings",
    "markup": "xml html",
    "testing": "unittest doctest",
}
TOPICS = {
    "connections": "engine pool",
    "mapping": "orm",
    "schema": "sql.schema sql.ddl",
    "types": "sql.sqltypes sql.type_api types dialects.postgresql.types dialects.postgresql.array "
    "dialects.postgresql.json dialects.postgresql.ranges dialects.postgresql.hstore dialects.mysql.types "
    "dialects.oracle.types dialects.mssql.json dialects.mysql.enumerated dialects.postgresql.named_types",
}
SYSTEMS = {
    "mysql": "dialects.mysql",
    "oracle": "dialects.oracle",
    "postgresql": "dialects.postgresql",
    "sqlite": "dialects.sqlite",
}
SYSTEM_NAMES = re.compile(r"postgres|psycopg|asyncpg|pg\d|mysql|maria|oracle|sqlite|aiosqlite|pragma", re.IGNORECASE)
PARTS = {
    "distributed": "distributed",
    "quantization": "ao",
    "tensors": "_torch_docs _tensor_docs linalg special functional",
}
SUBJECTS = {
    "algebra": "linalg core.einsumfunc",
    "fourier": "fft",
    "masking": "ma",
    "polynomials": "polynomial lib.polynomial",
}

RECIPES = (
    Recipe(
        "acme/area",
        "stdlib",
        "Which part of the standard library does this text describe?",
        ("stdlib",),
        by_module(AREAS),
        opening,
    ),
    Recipe(
        "globex/action",
        "stdlib",
        "Does the described function check, read or write something?",
        ("stdlib", "rich", "psutil", "typer"),
        by_verb,
        opening,
    ),
    Recipe(
        "initech/kind",
        "stdlib",
        "Is this a docstring, an error message or a passage of the language manual?",
        ("stdlib",),
        by_kind,
        opening_or_chapter,
    ),
    Recipe(
        "globex/tool",
        "stdlib",
        "Which of a developer's tools is this text about?",
        ("stdlib",),
        by_module(TOOLS),
        every_passage,
    ),
    Recipe(
        "acme/topic",
        "databases",
        "Which side of working with a database does this text explain?",
        ("sqlalchemy",),
        by_module(TOPICS),
        every_passage,
    ),
    Recipe(
        "initech/system",
        "databases",
        "Which database system is this note about?",
        ("sqlalchemy",),
        by_module(SYSTEMS),
        every_passage,
        SYSTEM_NAMES,
    ),
    Recipe(
        "initech/part",
        "numerics",
        "Which part of the deep learning library does this text document?",
        ("torch",),
        by_module(PARTS),
        opening,
    ),
    Recipe(
        "globex/subject",
        "numerics",
        "Which subject of array computing is this text about?",
        ("numpy",),
        by_module(SUBJECTS),
        every_passage,
    ),
    Recipe(
        "acme/library",
        "numerics",
        "Which numerical library does this text come from?",
        ("numpy", "torch"),
        by_package,
        opening,
    ),
)
