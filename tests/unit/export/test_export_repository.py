"""The rendered repository: whole, or as it was before."""

from pathlib import Path

import pytest

from backends.errors import NotFoundError
from builder.export.config import from_text
from builder.export.models import all_models
from builder.export.plugin import with_plugin
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings

MODEL_REPOSITORY = Path(__file__).parents[3] / "model_repository"


@pytest.fixture
def code(tmp_path) -> Path:
    for name in ("hplm_lower", "hplm_upper"):
        version = tmp_path / "code" / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(f"# {name}\n")
    return tmp_path / "code"


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_repository_holds_all_models_and_their_code(tmp_path, code):
    repository = tmp_path / "home" / "repository"
    settings = ExportSettings(max_batch_size=8, lower_parameters={"threads": "1"})
    render_repository(repository, settings, code)
    with with_plugin(settings, print) as complete:
        models = {model.name: model for model in all_models(complete)}
    assert {path.name for path in repository.iterdir()} == set(models)
    for name, model in models.items():
        assert from_text((repository / name / "config.pbtxt").read_text()) == model
        assert (repository / name / "1").is_dir()
    assert (repository / "hplm_lower" / "1" / "model.py").read_text() == "# hplm_lower\n"
    assert (repository / "hplm_upper" / "1" / "model.py").read_text() == "# hplm_upper\n"


def test_a_second_export_replaces_the_first_completely(tmp_path, code):
    repository = tmp_path / "repository"
    render_repository(repository, ExportSettings(), code)
    (repository / "hplm_lower" / "1" / "stray.py").write_text("")
    render_repository(repository, ExportSettings(max_batch_size=5), code)
    assert "hplm_lower/1/stray.py" not in content(repository)
    assert from_text((repository / "hplm" / "config.pbtxt").read_text()).max_batch_size == 5


def test_a_failing_export_keeps_the_old_repository(tmp_path, code):
    repository = tmp_path / "repository"
    render_repository(repository, ExportSettings(), code)
    before = content(repository)
    (code / "hplm_upper" / "1" / "model.py").unlink()
    with pytest.raises(NotFoundError, match=r"hplm_upper/1/model\.py"):
        render_repository(repository, ExportSettings(max_batch_size=5), code)
    assert content(repository) == before
    assert {path.name for path in tmp_path.iterdir()} == {"repository", "code"}


def test_the_home_is_found_from_where_the_repository_lies(tmp_path, code):
    home = tmp_path / "home"
    render_repository(home / "repository", ExportSettings(), code)
    moved = tmp_path / "mounted" / "elsewhere"
    moved.parent.mkdir()
    home.rename(moved)
    config = from_text((moved / "repository" / "hplm_upper" / "config.pbtxt").read_text())
    assert (moved / "repository" / config.parameters["home"]).resolve() == moved


def test_the_installed_package_carries_the_code_of_the_models(tmp_path):
    render_repository(tmp_path / "repository", ExportSettings())
    for name in ("hplm_lower", "hplm_upper"):
        source = MODEL_REPOSITORY / name / "1" / "model.py"
        assert (tmp_path / "repository" / name / "1" / "model.py").read_bytes() == source.read_bytes()
