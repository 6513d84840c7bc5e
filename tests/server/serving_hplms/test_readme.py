"""What the README tells a reader to type is typed here, on a home of a tiny model behind the real server."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import cli
from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.tiny_home import tiny_root, write_corpus, write_task
from hplm_client import Classification, HplmClient
from served_home import Served
from waiting import wait_until

pytestmark = pytest.mark.server

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
RUN_BY_CI = {"make quickstart", "make demo", "make test"}
"""Commands that need minutes: `make test` is what CI runs; quickstart and demo have tests of their own."""
ASKED, ASKED_HERE = "acme/area", "acme/topic"
"""Whom the README asks, and who answers in the tiny home."""
SHORTER = {"hplm domain create": "--mlm-steps 4 --head-steps 4", "hplm profile": "--batches 40 --repeats 1"}
"""Options that save minutes."""
BINARIES = Path(sys.executable).parent
JQ = "jq -c 'if .error then . else .RESULT | fromjson | {label: .label, score} end'"
RESULT = f"{sys.executable} -c 'import json, sys; print(json.load(sys.stdin)[\"RESULT\"])'"
"""What a reader's jq does, where there is none."""


def blocks(language: str) -> list[str]:
    return [content for name, content in BLOCKS if name == language]


def commands(content: str) -> list[str]:
    """Return the lines of a shell block without their comments."""
    return [line.partition("  #")[0].strip() for line in content.splitlines()]


def shorter(command: str) -> str:
    for name, options in SHORTER.items():
        command = command.replace(name, f"{name} {options}")
    return command


def test_every_block_is_run_here_or_by_ci() -> None:
    typed = blocks("sh")
    assert {line for content in typed if content.startswith("make ") for line in commands(content)} == RUN_BY_CI
    assert [content for content in typed if content.split()[0] not in ("make", "curl", "export")] == []
    assert sorted({language for language, _ in BLOCKS}) == ["json", "python", "sh"]


def test_curl_gets_an_answer_as_the_readme_shows_it(served: Served) -> None:
    (typed,) = [content for content in blocks("sh") if content.startswith("curl")]
    (shown,) = blocks("json")
    here = typed.replace(ASKED, ASKED_HERE).replace("localhost:8000", served.http_url).replace(JQ, RESULT)
    done = subprocess.run(["bash", "-ec", here], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    answer, promised = json.loads(done.stdout), json.loads(shown)
    assert answer["hplm"] == ASKED_HERE
    assert list(promised) == ["label", "score"] and JQ in typed
    assert answer["score"] == max(answer["scores"].values()) == answer["scores"][answer["label"]]


def test_the_program_of_the_sdk(served: Served) -> None:
    (program,) = blocks("python")
    here = program.replace(ASKED, ASKED_HERE).replace("localhost:8001", served.grpc_url)
    done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] in ("animals", "tools", "weather") for line in done.stdout.splitlines()] == [True, True]


@dataclass(frozen=True)
class Workshop:
    """A folder with a reader's files, and a home beside them that has the root, under both of the README's names."""

    folder: Path
    patch: pytest.MonkeyPatch
    printed: pytest.CaptureFixture[str]

    def run(self, line: str, home: str, url: str = "") -> str:
        """Run the commands of a line in this process, which has imported already what each of them needs."""
        self.patch.chdir(self.folder)
        self.patch.setenv("HPLM_HOME", home)
        self.patch.setenv("HPLM_URL", url)
        for command in line.split(" && "):
            assert command.startswith("hplm ")
            self.patch.setattr(sys, "argv", shlex.split(command))
            try:
                cli.main()
            except SystemExit as stop:
                assert not stop.code, f"{command}\n{self.printed.readouterr()}"
        return self.printed.readouterr().out

    @contextmanager
    def serving(self, command: str, home: str) -> Iterator[str]:
        """Run `hplm serve` on free ports beside the block, and give its URL."""
        line = [*command.split(), "--http", "0", "--grpc", "0", "--metrics", "0"]
        with (self.folder / "serve.log").open("w") as log:
            server = subprocess.Popen(
                line, cwd=self.folder, env=self._environment(home), stdout=subprocess.PIPE, stderr=log, text=True
            )
            try:
                assert server.stdout is not None
                ready = next(line for line in server.stdout if line.startswith("ready: "))
                yield ready.split()[1]
            finally:
                server.terminate()
                server.communicate(timeout=60)

    def _environment(self, home: str) -> dict[str, str]:
        others = {name: value for name, value in os.environ.items() if not name.startswith("HPLM_")}
        return others | {"HPLM_HOME": home, "PATH": f"{BINARIES}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Workshop:
    home = Home(tmp_path / "my_home")
    registry = Registry.open(home, create=True)
    tiny_root(home, registry, tmp_path, name="minilm")
    registry.close()
    (tmp_path / "quickstart_home").symlink_to(home.path)
    write_corpus(tmp_path / "shop.txt", 300, seed=11)
    train, dev = write_task(tmp_path / "first", "mood", seed=100)
    new, _ = write_task(tmp_path / "second", "mood", seed=300)
    for file, name in ((train, "train"), (dev, "dev"), (new, "new")):
        file.rename(tmp_path / f"{name}.jsonl")
    return Workshop(tmp_path, monkeypatch, capsys)


def is_all_live(home: Path, url: str) -> bool:
    """Whether the server answers with the versions that the registry says are live."""
    registry = Registry.open(Home(home))
    versions = {entry.id: entry.version for entry in registry.hplms()}
    registry.close()
    with HplmClient(url, rows_per_request=1) as client:
        answers = client.infer_many([(hplm, "a cat") for hplm in versions] * 8, on_error="return")
    return all(isinstance(answer, Classification) and answer.version == versions[answer.hplm] for answer in answers)


@pytest.mark.long
def test_models_of_ones_own(workshop: Workshop) -> None:
    """The root apart, which the home has already: its distillation takes minutes even for a tiny model."""
    tenant, whole = (commands(content) for content in blocks("sh") if content.startswith("export "))
    assert tenant[0] == "export HPLM_HOME=$PWD/quickstart_home PATH=$PWD/.venv/bin:$PATH"
    assert whole[0] == "export HPLM_HOME=$PWD/my_home"
    assert whole[1].startswith("hplm root add minilm ") and whole[-1] == "hplm serve"
    for command in whole[2:-1]:
        workshop.run(shorter(command), "my_home")
    with workshop.serving(whole[-1], "my_home") as url:
        said = {}
        for command in tenant[1:]:
            said[command.split()[1]] = workshop.run(command, "quickstart_home", url)
            wait_until(lambda: is_all_live(workshop.folder / "my_home", url))
    assert "glad" in said["infer"] or "sad" in said["infer"]
    assert list(said) == ["create", "infer", "update", "rollback"]
