"""Reads the pieces of text that Python source files carry, without importing anything."""

from __future__ import annotations

import ast
import gc
import hashlib
import logging
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

logger = logging.getLogger(__name__)

# Tests and generated, vendored or optional parts: absent from some distributions, or hardly prose.
SKIPPED_FOLDERS = frozenset(
    [
        "test",
        "tests",
        "testing",
        "test_suite",
        "_vendor",
        "vendored",
        "_vendored",
        "bin",
        "include",
        "share",
        "__pycache__",
        "site-packages",
        "dist-packages",
        "lib-dynload",
        "encodings",
        "idlelib",
        "lib2to3",
        "tkinter",
        "turtledemo",
        "distutils",
        "ensurepip",
        "pydoc_data",
        "msilib",
        "curses",
        "_inductor",
        "_dynamo",
        "_functorch",
        "_higher_order_ops",
        "_native",
        "_refs",
        "_numpy",
        "f2py",
        "array_api",
        "models",
    ]
)
REFERENCE_FILE = "pydoc_data/topics.py"
PACKAGES = ("numpy", "psutil", "rich", "safetensors", "sqlalchemy", "tokenizers", "torch", "transformers", "typer")
LARGEST_FILE_BYTES = 600_000


class Kind(StrEnum):
    MODULE = "module"
    CLASS = "class"
    FUNCTION = "function"
    METHOD = "method"
    ERROR = "error"
    COMMENT = "comment"
    REFERENCE = "reference"


@dataclass(frozen=True, order=True)
class Snippet:
    """One piece of text as its author wrote it; `name` is what it documents, or the exception that it explains."""

    package: str
    module: str
    kind: Kind
    name: str
    text: str


@dataclass(frozen=True)
class Source:
    """A folder of source files whose modules are named from `folder` on."""

    package: str
    folder: Path


@dataclass(frozen=True)
class Harvest:
    snippets: tuple[Snippet, ...] = field(repr=False)

    def of(self, *packages: str) -> list[Snippet]:
        return [snippet for snippet in self.snippets if snippet.package in packages]

    def digest(self) -> str:
        content = hashlib.sha256()
        for snippet in self.snippets:
            content.update(repr((snippet.package, snippet.module, snippet.kind, snippet.name, snippet.text)).encode())
        return content.hexdigest()


def installed_sources() -> list[Source]:
    """The standard library and those of our own dependencies that are installed as plain source."""
    sources = [Source("stdlib", Path(sysconfig.get_path("stdlib")))]
    for package in PACKAGES:
        spec = find_spec(package)  # finds a top-level package without importing it
        if spec is not None and spec.submodule_search_locations:
            sources.append(Source(package, Path(spec.submodule_search_locations[0])))
    return sources


def harvest(sources: Sequence[Source] | None = None, workers: int = 2) -> Harvest:
    """All snippets of `sources`, sorted: the same files give the same harvest wherever they lie."""
    files = [
        (source.package, source.folder, path)
        for source in (installed_sources() if sources is None else sources)
        for path in source_files(source.folder)
    ]
    if workers <= 1:
        found = [read_file(file) for file in files]
    else:
        # Forked, because a spawned worker would import the caller's main module, and torch with it; workers only parse.
        # A syntax tree is many objects and no cycle: looking for cycles would take a fifth of a worker's time.
        with ProcessPoolExecutor(workers, get_context("fork"), gc.disable) as pool:
            found = list(pool.map(read_file, files, chunksize=32))
    snippets = {snippet for of_file in found for snippet in of_file}
    logger.info("harvested %d texts from %d files", len(snippets), len(files))
    return Harvest(tuple(sorted(snippets)))


def source_files(folder: Path) -> list[Path]:
    kept = [
        path
        for path in folder.rglob("*.py")
        if not SKIPPED_FOLDERS.intersection(path.relative_to(folder).parts) and path.stat().st_size < LARGEST_FILE_BYTES
    ]
    reference = folder / REFERENCE_FILE
    return sorted(kept) + ([reference] if reference.is_file() else [])


def read_file(file: tuple[str, Path, Path]) -> list[Snippet]:
    """The snippets of one file; a file that this Python cannot parse has none."""
    package, folder, path = file
    relative = path.relative_to(folder)
    module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
    try:
        source = path.read_text("utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError) as error:
        logger.debug("skipping %s: %s", path, error)
        return []
    if relative.as_posix() == REFERENCE_FILE:
        return [Snippet(package, module, Kind.REFERENCE, name, text) for name, text in reference_topics(tree)]
    found = [(Kind.MODULE, module, ast.get_docstring(tree) or ""), *walk(tree, "", False), *comments(source)]
    return [Snippet(package, module, kind, name, text) for kind, name, text in found if text.strip()]


def reference_topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The chapters of the language reference, which `help()` keeps as one dictionary."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                name, text = literal_text(key), literal_text(value)
                if name and text:
                    yield name, text


def walk(node: ast.AST, prefix: str, in_class: bool) -> Iterator[tuple[Kind, str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            is_class = isinstance(child, ast.ClassDef)
            kind = Kind.CLASS if is_class else Kind.METHOD if in_class else Kind.FUNCTION
            yield kind, prefix + child.name, ast.get_docstring(child) or ""
            yield from walk(child, f"{prefix}{child.name}.", is_class)
        elif isinstance(child, ast.Raise):
            yield from error_message(child)
        elif isinstance(child, ast.Expr):
            yield from attached_documentation(child)
        elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from walk(child, prefix, in_class)


def error_message(node: ast.Raise) -> Iterator[tuple[Kind, str, str]]:
    if isinstance(node.exc, ast.Call) and node.exc.args:
        name, text = last_name(node.exc.func), literal_text(node.exc.args[0])
        if name and text:
            yield Kind.ERROR, name, text


def attached_documentation(node: ast.Expr) -> Iterator[tuple[Kind, str, str]]:
    """Documentation of compiled functions: `add_docstr(torch.add, "…")` and `add_newdoc("…", "zeros", "…")`."""
    call = node.value
    if not isinstance(call, ast.Call) or len(call.args) < 2 or not isinstance(call.func, ast.Name):
        return
    if call.func.id not in ("add_docstr", "add_docstr_all", "add_newdoc"):
        return
    owner, content = call.args[-2:]
    if isinstance(content, ast.Tuple) and len(content.elts) == 2:  # add_newdoc("module", "Class", ("method", "…"))
        owner, content = content.elts
    name, text = last_name(owner) or literal_text(owner), literal_text(content)
    if name and text:
        yield Kind.FUNCTION, name, text


def last_name(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return None


def literal_text(node: ast.expr | None) -> str | None:
    """Read the text of a string expression; parts known only at run time become an ellipsis."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(literal_text(value) or "…" for value in values)
        case ast.BinOp(left=left, op=ast.Mod()):
            return literal_text(left)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            halves = literal_text(left), literal_text(right)
            return "".join(half or "…" for half in halves) if any(halves) else None
        case ast.Call(func=ast.Attribute(value=value, attr="format" | "strip")):
            return literal_text(value)
        case _:
            return None


def comments(source: str) -> Iterator[tuple[Kind, str, str]]:
    """Blocks of whole-line comments."""
    for block in comment_blocks(source.splitlines()):
        yield Kind.COMMENT, "", " ".join(block)


def comment_blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for line in (line.strip() for line in lines):
        if line.startswith("#"):
            block.append(line.lstrip("#!: "))
        elif block:
            yield block
            block = []
    if block:
        yield block
