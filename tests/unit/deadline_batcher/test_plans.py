"""The plugin's rules, tested in C++, with the sanitizers of the compiler that is there."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from backends.deadline_batcher import SOURCE
from builder.plugin import find_compiler

TESTS = sorted(Path(__file__).parent.glob("*.cc"))
FLAGS = ("-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{SOURCE.parent}")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module", params=TESTS, ids=lambda tests: tests.stem)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = find_compiler()
    assert compiler is not None, "the plugin's tests need a C++ compiler: apt install g++, or pip install ziglang"
    built = tmp_path_factory.mktemp("plans") / "test"
    checked = compile_tests([*compiler, *FLAGS, *SANITIZERS], request.param, built)
    if checked.returncode != 0:  # not every compiler brings sanitizers
        plain = compile_tests([*compiler, *FLAGS], request.param, built)
        assert plain.returncode == 0, plain.stderr
    return built


def compile_tests(command: list[str], tests: Path, built: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, str(tests), "-o", str(built)], capture_output=True, text=True, timeout=600)


def test_the_rules_hold(program: Path) -> None:
    seed = random.randrange(1 << 32)
    done = subprocess.run([str(program), str(seed)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}\n{done.stderr[-2000:]}"
