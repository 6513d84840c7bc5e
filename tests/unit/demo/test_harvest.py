from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from demo.harvest import Harvest, Kind, Snippet, Source, harvest

MODULE = '''"""What the module is for."""

# A remark that
# spans two lines.


class Box:
    """Holds one thing."""

    def put(self, thing):
        """Puts the thing in."""
        if thing is None:
            raise ValueError(f"cannot hold {thing!r} in a box")
        raise errors.FullError("the box holds %s " "already" % thing)


def empty():
    def inner():
        """Is nested."""

    raise RuntimeError


add_docstr(torch.fill, r"""fill(value) -> Box""")
add_newdoc("box", "Box", ("lid", "What closes it."))
'''


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_every_kind_of_text_is_found_with_its_name(tmp_path: Path) -> None:
    write(tmp_path, "pack/boxes.py", MODULE)
    write(tmp_path, "pydoc_data/topics.py", "topics = {'while': 'The while statement.'}")
    found = harvest([Source("mine", tmp_path)], workers=1).snippets
    expected = {
        (Kind.MODULE, "pack.boxes", "What the module is for."),
        (Kind.CLASS, "Box", "Holds one thing."),
        (Kind.METHOD, "Box.put", "Puts the thing in."),
        (Kind.FUNCTION, "empty.inner", "Is nested."),
        (Kind.FUNCTION, "fill", "fill(value) -> Box"),
        (Kind.FUNCTION, "lid", "What closes it."),
        (Kind.ERROR, "ValueError", "cannot hold … in a box"),
        (Kind.ERROR, "FullError", "the box holds %s already"),
        (Kind.COMMENT, "", "A remark that spans two lines."),
        (Kind.REFERENCE, "while", "The while statement."),
    }
    assert {(snippet.kind, snippet.name, snippet.text) for snippet in found} == expected
    assert found == tuple(sorted(found))


def test_what_cannot_be_parsed_or_is_no_library_code_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, "good.py", '"""Good."""')
    write(tmp_path, "broken.py", '"""Broken."""\ndef (:')
    write(tmp_path, "null.py", '"""Null."""\0')
    (tmp_path / "latin.py").write_bytes(b'"""\xe9t\xe9"""')
    for skipped in ("test/case.py", "a/_vendor/copy.py", "site-packages/other.py", "tkinter/window.py"):
        write(tmp_path, skipped, '"""Skipped."""')
    found = harvest([Source("mine", tmp_path)], workers=1)
    assert found == Harvest((Snippet("mine", "good", Kind.MODULE, "good", "Good."),))


def test_the_digest_depends_on_the_texts_and_not_on_their_place(tmp_path: Path) -> None:
    write(tmp_path / "one", "boxes.py", MODULE)
    shutil.copytree(tmp_path / "one", tmp_path / "elsewhere" / "two")
    first = harvest([Source("mine", tmp_path / "one")], workers=1)
    assert first.digest() == harvest([Source("mine", tmp_path / "elsewhere" / "two")], workers=2).digest()
    write(tmp_path / "one", "boxes.py", MODULE.replace("one thing", "two things"))
    assert first.digest() != harvest([Source("mine", tmp_path / "one")], workers=1).digest()


def test_nothing_is_harvested_from_an_empty_or_missing_folder(tmp_path: Path) -> None:
    assert harvest([Source("mine", tmp_path), Source("gone", tmp_path / "gone")], workers=1) == Harvest(())


@pytest.mark.long
@pytest.mark.parametrize("package", ["stdlib", "numpy", "torch", "sqlalchemy"])
def test_installed_packages_carry_documentation(installed_harvest: Harvest, package: str) -> None:
    assert sum(snippet.kind is Kind.FUNCTION for snippet in installed_harvest.of(package)) > 300
