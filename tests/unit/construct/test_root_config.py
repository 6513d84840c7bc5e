"""A root's recipe in a file: read, refused, written back."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import tomli_w

from backends.errors import InvalidArgumentError, NotFoundError
from builder.construct.root.config import config_of, merged, read_config, root_request
from builder.requests.roots import AddRoot
from builder.settings.domain import PlotSettings
from builder.settings.root import DistilSettings
from short_requests import new_root

TOML = """
source = "some-package==1.0"
lower = 3
n = 5
corpus = ["texts/a.txt", "/b.txt"]
held_out = ["../foreign.txt"]

[distil]
steps = 50
learning_rate = 1
train_upper = true

[plot]
max_fragments = 1000
"""


@pytest.mark.parametrize("kind", ["toml", "json"])
def test_a_file_becomes_a_request(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"root.{kind}"
    path.write_text(TOML if kind == "toml" else json.dumps(tomllib.loads(TOML)))
    request = root_request("r", read_config(path))
    assert request == new_root(
        "r",
        "some-package==1.0",
        3,
        (tmp_path / "texts/a.txt", Path("/b.txt")),
        n=5,
        held_out=[tmp_path / "../foreign.txt"],
        distil=DistilSettings(steps=50, learning_rate=1.0, train_upper=True),
        plot=PlotSettings(max_fragments=1000),
    )


def test_a_models_folder_lies_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = tmp_path / "root.toml"
    path.write_text('source = "model"\n')
    assert read_config(path)["source"] == str(tmp_path / "model")


@pytest.mark.parametrize(
    "request_",
    [
        new_root(
            "r", 'odd "name" ä', 3, (Path("/a.txt"), Path("/b c.txt")), 64, 2, sinks=False, held_out=[Path("/h.txt")]
        ),
        new_root("r", "m", 1, (Path("/a.txt"),), distil=DistilSettings(learning_rate=3e-05, final_weight=2.5)),
        new_root("r", "m", 1, (Path("/a.txt"),), distilled=Path("/d.safetensors")),
        new_root("r", "m", 1, (Path("/a.txt"),), distilled=Path("/d"), distil=DistilSettings(train_upper=True)),
        new_root("r", "m", 1, (Path("/a.txt"),), plot=PlotSettings(theta=0.5, max_fragments=7)),
    ],
)
def test_a_request_survives_the_file(tmp_path: Path, request_: AddRoot) -> None:
    path = tmp_path / "root.toml"
    path.write_text(tomli_w.dumps(config_of(request_)))
    again = root_request("r", read_config(path))
    assert again.training == request_.training
    assert config_of(again) == config_of(request_)
    assert root_request("r", json.loads(json.dumps(config_of(request_)))) == again


def test_what_is_given_goes_before_the_file() -> None:
    file = {"source": "a", "lower": 3, "distil": {"steps": 9, "seed": 1}}
    given = {"source": None, "lower": 2, "distil": {"steps": None, "seed": 5}, "plot": {"theta": None}}
    assert merged(file, given) == {"source": "a", "lower": 2, "distil": {"steps": 9, "seed": 5}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("colour = 1", "configuration: colour: Extra inputs are not permitted"),
        ("name = 'r'", "does not know 'name'"),
        ("n = 3.0", "configuration: n: Input should be a valid integer"),
        ("max_tokens = true", "configuration: max_tokens: Input should be a valid integer"),
        ("corpus = 'a.txt'", "configuration: corpus: Input should be a valid array"),
        ("distil = 5", "configuration: distil: "),
        ("[distil]\nstep = 4", "configuration: distil.step: Unexpected keyword argument"),
        ("[distil]\nsteps = '4'", "configuration: distil.steps: Input should be a valid integer"),
        ("[distil]\nsteps = 0", "must be positive"),
        ("[plot]\ntheta = 7", "theta"),
        ("n = ", "root.toml"),
    ],
)
def test_lines_that_are_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "root.toml"
    path.write_text("source = 'm'\nlower = 2\n" + ("" if "corpus" in line else "corpus = ['a']\n") + line)
    with pytest.raises(InvalidArgumentError, match=message):
        root_request("r", read_config(path))


@pytest.mark.parametrize("missing", ["source", "lower", "corpus"])
def test_what_must_be_there(missing: str) -> None:
    config = {"source": "m", "lower": 2, "corpus": ["a"]}
    del config[missing]
    with pytest.raises(InvalidArgumentError, match=f"{missing}: Field required"):
        root_request("r", config)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        read_config(tmp_path / "root.toml")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(InvalidArgumentError, match="not a table"):
        read_config(tmp_path / "list.json")
    (tmp_path / "latin.toml").write_bytes("source = 'mödel'".encode("latin-1"))
    with pytest.raises(InvalidArgumentError, match=r"latin\.toml: .*utf-8"):
        read_config(tmp_path / "latin.toml")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(InvalidArgumentError, match=r"deep\.json"):
        read_config(tmp_path / "deep.json")
