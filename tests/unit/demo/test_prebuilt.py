"""The prebuilt parts in the repository, and those that cannot be used."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from backends.adapters.bank import weights_path
from backends.errors import ConflictError, CorruptFileError, FormatVersionError
from backends.home import Home
from backends.storage import read_json, write_json
from demo import prebuilt as parts
from demo.prebuilt import PREBUILT, Prebuilt
from demo.quickstart import EXAMPLES, QuickstartHome, document_lines
from demo.recipes import RECIPES
from demo.root import DISTILLED
from source_tree import PROJECT

_MOST_BYTES = 20 << 20


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PREBUILT, tmp_path / "prebuilt"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "home"


def quickstart(folder: Path, prebuilt: Prebuilt | None = None) -> QuickstartHome:
    return QuickstartHome(Home(folder), prebuilt or Prebuilt.read(), Console(quiet=True))


def mark(folder: Path, prebuilt: Prebuilt, assembled: bool) -> None:
    folder.mkdir()
    write_json(folder / "quickstart.json", {"prebuilt": prebuilt.checksum, "assembled": assembled})


def edit(manifest: Path, **changes: object) -> None:
    write_json(manifest, {**read_json(manifest), **changes})


def test_all_parts_are_whole_and_small() -> None:
    prebuilt = Prebuilt.read()
    prebuilt.check()
    assert list(prebuilt.hplms) == sorted(recipe.id for recipe in RECIPES)
    assert EXAMPLES.keys() <= prebuilt.hplms.keys()
    files = [DISTILLED, *(path for path in PREBUILT.rglob("*") if path.is_file())]
    assert sum(path.stat().st_size for path in files) < _MOST_BYTES


def test_the_notice_names_what_is_carried() -> None:
    notice = (PROJECT / "NOTICE").read_text(encoding="utf-8")
    for path in (DISTILLED, PREBUILT):
        assert f"{path.relative_to(PROJECT)} holds" in notice


def test_the_documents_are_corpus_enough() -> None:
    assert len(set(document_lines())) > 200


def test_a_damaged_hplm_is_named(copied: Path) -> None:
    damaged = weights_path(Prebuilt.read(copied).hplm_folder("acme/area"))
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    complaint = r"acme--area/weights\.safetensors does not match its checksum; 'git checkout demo' .* brings"
    with pytest.raises(CorruptFileError, match=complaint):
        Prebuilt.read(copied).check()


def test_a_missing_hplm_is_named(copied: Path) -> None:
    shutil.rmtree(Prebuilt.read(copied).hplm_folder("acme/area"))
    with pytest.raises(CorruptFileError, match=r"acme--area/manifest\.json is missing"):
        Prebuilt.read(copied).check()


def test_an_hplm_in_another_ones_folder_is_named(copied: Path) -> None:
    prebuilt = Prebuilt.read(copied)
    shutil.rmtree(prebuilt.hplm_folder("acme/area"))
    shutil.copytree(prebuilt.hplm_folder("acme/topic"), prebuilt.hplm_folder("acme/area"))
    with pytest.raises(CorruptFileError, match="acme--area holds the weights of 'acme/topic'"):
        prebuilt.check()


def test_damaged_layers_are_named_before_anything_is_written(tmp_path: Path, folder: Path) -> None:
    damaged = tmp_path / DISTILLED.name
    damaged.write_bytes(DISTILLED.read_bytes()[:-1] + b"\0")
    assert damaged.read_bytes() != DISTILLED.read_bytes()
    with pytest.raises(CorruptFileError, match="does not match its checksum"):
        quickstart(folder).assemble(damaged)
    assert not folder.exists()


def test_a_damaged_manifest_is_named(copied: Path) -> None:
    manifest = copied / "prebuilt.json"
    manifest.write_text(manifest.read_text().replace("acme/area", "acme/arena"))
    with pytest.raises(CorruptFileError, match=r"prebuilt\.json does not match its checksum"):
        Prebuilt.read(copied)


@pytest.mark.parametrize("version", [0, parts.FORMAT_VERSION + 1, "x"])
def test_parts_of_another_format_are_rejected(copied: Path, version: object) -> None:
    edit(copied / "prebuilt.json", format_version=version)
    with pytest.raises(FormatVersionError, match=r"has format version .*, but this release reads 1; .* 'make demo'"):
        Prebuilt.read(copied)


def test_an_hplm_of_a_newer_format_is_rejected(copied: Path) -> None:
    edit(Prebuilt.read(copied).hplm_folder("acme/area") / "manifest.json", format_version=99)
    with pytest.raises(FormatVersionError, match="format version 99"):
        Prebuilt.read(copied).check()


def test_another_folder_is_left_alone(folder: Path) -> None:
    folder.mkdir()
    (folder / "letters.txt").write_text("mine")
    with pytest.raises(ConflictError, match="was not made by 'make quickstart'; nothing was changed"):
        quickstart(folder).is_assembled()
    assert [path.name for path in folder.iterdir()] == ["letters.txt"]


def test_a_file_in_its_place_is_left_alone(folder: Path) -> None:
    folder.write_text("mine")
    with pytest.raises(ConflictError, match="was not made by 'make quickstart'"):
        quickstart(folder).is_assembled()


def test_an_empty_folder_is_as_good_as_none(folder: Path) -> None:
    folder.mkdir()
    assert not quickstart(folder).is_assembled()


def test_what_was_begun_goes_on_with_the_same_parts_only(folder: Path) -> None:
    prebuilt = Prebuilt.read()
    mark(folder, prebuilt, assembled=False)
    assert not quickstart(folder, prebuilt).is_assembled()
    with pytest.raises(ConflictError, match="was begun with other prebuilt parts; remove it"):
        quickstart(folder, replace(prebuilt, root_fingerprint="another")).is_assembled()


def test_a_finished_home_stays_its_owners_whatever_parts_come_later(folder: Path) -> None:
    prebuilt = Prebuilt.read()
    mark(folder, prebuilt, assembled=True)
    assert quickstart(folder, replace(prebuilt, root_fingerprint="another")).is_assembled()
