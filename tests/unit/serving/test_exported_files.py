"""What a server goes on loading, whatever is exported beside it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import pytest

from backends.deadline_batcher import FILE_NAME
from backends.errors import UnavailableError
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.serving.exported_files import ExportedFiles


def contents(folder: Path) -> dict[str, bytes | None]:
    """All paths below, and what files hold."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_it_is_what_was_exported_then(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    render_repository(repository, ExportSettings())
    before, exported = contents(repository), ExportedFiles.read(repository)
    render_repository(repository, ExportSettings(max_batch_size=8, takes_plugin=False))
    exported.lay_out(tmp_path / "laid", repository)
    assert contents(tmp_path / "laid") == before != contents(repository)


def test_a_configuration_of_the_run_takes_the_place_of_the_exported_one(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    render_repository(repository, ExportSettings(takes_plugin=False))
    exported = ExportedFiles.read(repository).configured({"hplm_upper": "of this run"})
    exported.lay_out(tmp_path / "laid", repository)
    other = {name: content for name, content in contents(repository).items() if name != "hplm_upper/config.pbtxt"}
    assert contents(tmp_path / "laid") == {**other, "hplm_upper/config.pbtxt": b"of this run"}


def test_models_of_the_operator_are_linked_and_compiled_code_is_left_out(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    stages = ExportSettings(takes_plugin=False, upper_parameters={"stages": "2"}, stage_models=True)
    render_repository(repository, stages)
    (repository / "other" / "1").mkdir(parents=True)
    (repository / "hplm_upper" / "1" / "__pycache__").mkdir()
    (repository / "hplm_upper" / "1" / "__pycache__" / "model.pyc").write_bytes(b"compiled")
    ExportedFiles.read(repository).lay_out(tmp_path / "laid", repository)
    assert (tmp_path / "laid" / "other").readlink() == repository / "other"
    assert not any((tmp_path / "laid" / model).is_symlink() for model in ("hplm_upper", "hplm_stage_1"))
    assert not (tmp_path / "laid" / "hplm_upper" / "1" / "__pycache__").exists()


def test_the_plugin_is_linked_while_it_is_the_exported_one(tmp_path: Path) -> None:
    """Some temporary folders are mounted so that no library can be loaded from them."""
    repository = tmp_path / "repository"
    render_repository(repository, ExportSettings())
    exported = ExportedFiles.read(repository)
    plugins = [path for path in exported.files if path.name == FILE_NAME]
    exported.lay_out(tmp_path / "first", repository)
    assert [(tmp_path / "first" / path).readlink() for path in plugins] == [repository / path for path in plugins]
    (repository / plugins[0]).write_bytes(b"another one")
    (repository / plugins[1]).unlink()
    exported.lay_out(tmp_path / "second", repository)
    assert len(plugins) == 2 and not any((tmp_path / "second" / path).is_symlink() for path in plugins)
    assert contents(tmp_path / "second") == contents(tmp_path / "first") | {
        str(path): exported.files[path] for path in plugins
    }


def test_an_export_in_the_midst_of_reading_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    render_repository(old, ExportSettings(takes_plugin=False))
    render_repository(new, ExportSettings(takes_plugin=False, max_batch_size=8))
    before, after = ExportedFiles.read(old), ExportedFiles.read(new)
    torn = ExportedFiles((), {**before.files, **{path: after.files[path] for path in list(after.files)[:1]}})
    looks = iter([before, torn, after, after, before, torn, *[before, after] * 10])
    monkeypatch.setattr(ExportedFiles, "_read_once", lambda *_: next(looks))
    assert ExportedFiles.read(new) == after != before
    with pytest.raises(UnavailableError, match="changes all the time"):
        ExportedFiles.read(new)


def test_a_model_whose_folder_is_a_link_is_read_too(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    render_repository(repository, ExportSettings(takes_plugin=False))
    before = ExportedFiles.read(repository)
    (repository / "hplm_upper" / "1").rename(tmp_path / "elsewhere")
    (repository / "hplm_upper" / "1").symlink_to(tmp_path / "elsewhere")
    assert ExportedFiles.read(repository) == before


def test_what_was_exported_needs_no_repository_any_more(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    render_repository(repository, ExportSettings())
    before, exported = contents(repository), ExportedFiles.read(repository)
    shutil.rmtree(repository)
    exported.lay_out(tmp_path / "laid", repository)
    assert contents(tmp_path / "laid") == before


def test_of_no_repository_there_is_nothing(tmp_path: Path) -> None:
    assert ExportedFiles.read(tmp_path / "none") == ExportedFiles((), {})


@pytest.mark.parametrize("mode", ["engine", "triton"])
def test_it_tells_who_batches(tmp_path: Path, mode: Literal["engine", "triton"]) -> None:
    repository = tmp_path / "repository"
    render_repository(repository, ExportSettings(mode=mode, takes_plugin=False))
    exported = ExportedFiles.read(repository)
    assert exported.is_batched_by_triton == (mode == "triton")
    assert not exported.configured({"hplm_upper": "of a newer Triton { } }"}).is_batched_by_triton
    assert not ExportedFiles.read(tmp_path / "nothing").is_batched_by_triton
