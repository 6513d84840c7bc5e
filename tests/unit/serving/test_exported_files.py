"""What a server goes on loading, whatever is exported beside it."""

from __future__ import annotations

from pathlib import Path

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
    render_repository(repository, ExportSettings(takes_plugin=False))
    (repository / "other" / "1").mkdir(parents=True)
    (repository / "hplm_upper" / "1" / "__pycache__").mkdir()
    (repository / "hplm_upper" / "1" / "__pycache__" / "model.pyc").write_bytes(b"compiled")
    ExportedFiles.read(repository).lay_out(tmp_path / "laid", repository)
    assert (tmp_path / "laid" / "other").readlink() == repository / "other"
    assert not (tmp_path / "laid" / "hplm_upper" / "1" / "__pycache__").exists()


def test_of_no_repository_there_is_nothing(tmp_path: Path) -> None:
    assert ExportedFiles.read(tmp_path / "none") == ExportedFiles((), {})
