"""Building the deadline batcher, with the machine's C++ compiler or with the one that pip's `ziglang` brings.

Usage:
    build_plugin(Path("build/batchstrategy.so"))
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from backends.deadline_batcher import FILE_NAME, PLAN_VERSION, SOURCE, version_of
from backends.errors import HplmError, InvalidArgumentError, NotFoundError

_COMPILERS = ("g++", "clang++", "c++")
_ZIG = "ziglang"
# Linked with the machine's own C++ library, which Triton loads anyway. A static one would ask for a newer C library.
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
# The first build with Zig also builds its C++ library.
_TIMEOUT_S = 600
_LINKER_SAYS_WHY = "collect2: error: ld returned"
_REMEDY = "apt install g++, or pip install 'hplm[plugin]'"


class PluginError(HplmError):
    """The deadline batcher could not be built; the server does without it."""


def find_compiler() -> tuple[str, ...] | None:
    """The command in front of a compiler's options: `$CXX`, the machine's own, or Zig's."""
    own = os.environ.get("CXX", "").strip()
    for name in (own, *_COMPILERS) if own else _COMPILERS:
        program, *arguments = name.split()
        if (path := shutil.which(program)) is not None:
            return (path, *arguments)
    return (sys.executable, "-m", _ZIG, "c++") if find_spec(_ZIG) is not None else None


def require_compiler() -> tuple[str, ...]:
    if (compiler := find_compiler()) is None:
        raise PluginError(f"there is no C++ compiler to build the deadline batcher with; {_REMEDY}")
    return compiler


def build_plugin(target: Path, plan_version: int = PLAN_VERSION, definitions: tuple[str, ...] = ()) -> None:
    """Compile the plugin; what was at `target` before stays until the new one is complete."""
    compiler = require_compiler()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".plugin_") as folder:
        built = Path(folder) / FILE_NAME
        made = [f"-DHPLM_PLAN_VERSION={plan_version}", *definitions, str(SOURCE), "-o", str(built)]
        _compile([*compiler, *FLAGS, *made])
        built.chmod(0o755)
        built.replace(target)


def require_plugin(plugin: Path) -> None:
    """Reject a file that a server could not use."""
    if not plugin.is_file():
        raise NotFoundError(f"there is no deadline batcher at {plugin}; make one with `make plugin`")
    version = version_of(plugin)
    if version is None:
        raise InvalidArgumentError(f"{plugin} is no deadline batcher of this project; make one with `make plugin`")
    if version != PLAN_VERSION:
        raise InvalidArgumentError(
            f"{plugin} is a deadline batcher of another release (plan {version}, here {PLAN_VERSION}); "
            "make one with `make plugin`"
        )


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PluginError(f"the deadline batcher could not be built: {error}") from error
    if done.returncode != 0:
        # The compiler says last that the linker has failed; the linker says why, unless it is not there or was killed.
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith(_LINKER_SAYS_WHY)]
        told = (line for line in lines if "error" in line.lower() or "failed" in line.lower())
        reason = next(told, lines[-1] if lines else "no reason given")
        raise PluginError(f"the deadline batcher could not be built with {command[0]}: {reason.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m builder.plugin", description="Build the deadline batcher.")
    parser.add_argument("target", type=Path, help=f"the file to write, named {FILE_NAME} where Triton shall find it")
    target: Path = parser.parse_args().target
    build_plugin(target)
    sys.stdout.write(f"built {target}\n")


if __name__ == "__main__":
    try:
        main()
    except HplmError as error:
        sys.exit(f"make plugin: {error}")
