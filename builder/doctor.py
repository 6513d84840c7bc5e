"""Checks of what this machine has and lacks for building and serving, and how to get the rest.

Usage:
    checks = run_checks(Path("hplm_home"))
    Console().print(doctor_report(checks))
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import resource
import shutil
import stat
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from backends.home import Home
from builder.cpu_flags import FAST_BF16, FAST_INT8, cpu_flags
from builder.gpus import gpus_of_driver
from builder.plugin import find_compiler
from builder.registry_check import registry_state
from builder.serving.errors import TritonMissingError
from builder.serving.installation import PYTHON_VERSION, find_installation, find_libpython

_MEBIBYTE = 1 << 20
_GIBIBYTE = 1 << 30
_MIN_GLIBC = (2, 35)  # the wheel is tagged manylinux_2_35
_MIN_SHM_BYTES = 64 * _MEBIBYTE
_GOOD_SHM_BYTES = 512 * _MEBIBYTE
_MIN_DISK_BYTES = _GIBIBYTE
_GOOD_DISK_BYTES = 5 * _GIBIBYTE
_GOOD_NUM_OPEN_FILES = 4096
_SAFE_TRITON = (2, 59, 1)
"""The version in NVIDIA's container 25.07."""
_PROCESSES_OF_THE_MACHINE = "pid:[4026531836]"
"""The space of process numbers that Linux begins with; containers have others."""
_PACKAGES = ("numpy", "torch", "transformers", "tokenizers", "safetensors", "tritonclient", "sqlalchemy")


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at; `remedy` is empty where nothing needs to be done."""

    name: str
    status: Status
    found: str
    remedy: str = ""


def run_checks(home: Path) -> list[Check]:
    """Run all checks, in the order in which a new user would fix them."""
    return [
        judge_glibc(*platform.libc_ver()),
        check_tritonserver(),
        check_libpython(),
        check_packages(_PACKAGES),
        check_shared_memory(Path("/dev/shm")),
        check_disk(home),
        check_access(home),
        check_command_lines(),
        check_registry(home),
        judge_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        judge_compiler(find_compiler()),
        judge_cpu_flags(cpu_flags()),
        judge_int8_flags(cpu_flags()),
        judge_gpu(gpus_of_driver(), _num_gpus_of_torch()),
    ]


def doctor_report(checks: Sequence[Check]) -> Table:
    colours = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}
    table = Table("", "check", "found", "what to do", title="hplm doctor")
    for check in checks:
        colour = colours[check.status]
        table.add_row(f"[{colour}]{check.status}[/{colour}]", check.name, escape(check.found), escape(check.remedy))
    return table


def checks_as_json(checks: Iterable[Check]) -> list[dict[str, str]]:
    return [asdict(check) for check in checks]


def has_failure(checks: Iterable[Check]) -> bool:
    return any(check.status is Status.FAIL for check in checks)


def judge_glibc(library: str, version: str) -> Check:
    found = f"{library} {version}".strip() or "not glibc"
    numbers = tuple(int(number) for number in re.findall(r"\d+", version))
    if library == "glibc" and numbers >= _MIN_GLIBC:
        return Check("glibc", Status.OK, found)
    needed = ".".join(map(str, _MIN_GLIBC))
    remedy = f"tritonserver needs glibc {needed} or newer: Debian 12, Ubuntu 22.04, RHEL 10, or NVIDIA's container"
    return Check("glibc", Status.FAIL, found, remedy)


def check_tritonserver() -> Check:
    name = f"tritonserver with a stub for Python {PYTHON_VERSION}"
    try:
        installation = find_installation()
    except TritonMissingError as error:
        return Check(name, Status.FAIL, "not found", str(error))
    return judge_tritonserver(name, installation.version, installation.binary)


def judge_tritonserver(name: str, version: str, binary: Path) -> Check:
    """An older one serves as well; callers that are not trusted must not reach it."""
    found = f"{version}, {binary}"
    if tuple(int(number) for number in re.findall(r"\d+", version)) >= _SAFE_TRITON:
        return Check(name, Status.OK, found)
    remedy = "before 25.07 callers can crash it or run code in it: keep it on this machine or behind a gateway"
    return Check(name, Status.WARN, found, remedy)


def check_libpython() -> Check:
    library = find_libpython()
    name = f"libpython{PYTHON_VERSION}"
    if library is not None:
        return Check(name, Status.OK, str(library))
    remedy = (
        f"this Python was built without --enable-shared: apt install libpython{PYTHON_VERSION}, or take a Python that "
        "has it (conda, uv; pyenv with PYTHON_CONFIGURE_OPTS=--enable-shared)"
    )
    return Check(name, Status.FAIL, "no shared library", remedy)


def check_packages(modules: Sequence[str]) -> Check:
    broken = {module: reason for module in modules if (reason := _import_failure(module))}
    if broken:
        found = "; ".join(f"{module}: {reason}" for module, reason in broken.items())
        return Check("packages", Status.FAIL, found, f"pip install --force-reinstall {' '.join(broken)}")
    versions = (f"{module} {_version(module)}" for module in modules)
    return Check("packages", Status.OK, ", ".join(versions))


def check_shared_memory(folder: Path) -> Check:
    if not folder.is_dir():
        return Check("shared memory", Status.FAIL, f"no {folder}", f"mount -t tmpfs tmpfs {folder}")
    usage = shutil.disk_usage(folder)
    return judge_shared_memory(usage.total, usage.free)


def judge_shared_memory(size_bytes: int, free_bytes: int) -> Check:
    found = f"{_size(free_bytes)} free of {_size(size_bytes)} in /dev/shm"
    if free_bytes >= _GOOD_SHM_BYTES:
        return Check("shared memory", Status.OK, found)
    status = Status.WARN if free_bytes > _MIN_SHM_BYTES else Status.FAIL
    remedy = "give the container --shm-size=1g, or mount -o remount,size=1g /dev/shm; remove files left there"
    return Check("shared memory", status, found, remedy)


def check_disk(home: Path) -> Check:
    existing = next(folder for folder in (home.absolute(), *home.absolute().parents) if os.path.isdir(folder))
    if not os.access(existing, os.W_OK):
        return Check("disk at home", Status.FAIL, f"{existing} cannot be written", "choose another --home")
    return judge_disk(shutil.disk_usage(existing).free, home)


def judge_disk(free_bytes: int, home: Path) -> Check:
    found = f"{_size(free_bytes)} free at {home}"
    if free_bytes >= _GOOD_DISK_BYTES:
        return Check("disk at home", Status.OK, found)
    status = Status.WARN if free_bytes >= _MIN_DISK_BYTES else Status.FAIL
    return Check("disk at home", status, found, "make room, or choose another --home")


def check_access(home: Path) -> Check:
    """A user who can write to a home has the server run code; it holds texts and what was learned from them."""
    name = "access to the home"
    if not os.path.isdir(home):  # unlike Path.is_dir, without an error where this user may not look
        return Check(name, Status.OK, "not made yet")
    mode = home.stat().st_mode
    found = stat.filemode(mode)
    if mode & stat.S_IWOTH:
        return Check(name, Status.FAIL, f"{found}: every user can change it", f"chmod o-rwx {home}")
    if mode & stat.S_IROTH:
        return Check(name, Status.WARN, f"{found}: every user can read it", f"chmod o-rwx {home}")
    return Check(name, Status.OK, found)


def check_command_lines() -> Check:
    is_contained = os.readlink("/proc/self/ns/pid") != _PROCESSES_OF_THE_MACHINE
    return judge_command_lines(Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace"), is_contained)


def judge_command_lines(mounts: str, is_contained: bool) -> Check:
    """Warn of command lines that other users can read: a server's has the key of its administrative endpoints."""
    name = "command lines"
    mounted = [line.split() for line in mounts.splitlines() if line.split()[1:3] == ["/proc", "proc"]]
    options = mounted[-1][3].split(",") if mounted else []
    hiding = [one for one in options if one.startswith("hidepid=") and one not in ("hidepid=0", "hidepid=off")]
    if hiding:
        return Check(name, Status.OK, f"hidden from other users: {hiding[0]}")
    if is_contained:
        return Check(name, Status.OK, "those of this container")
    found = "users of this machine can read those of others, and in a server's the key of its administrative endpoints"
    remedy = "mount -o remount,hidepid=2 /proc, or serve where other users cannot log in: docs/explanation/security.md"
    return Check(name, Status.WARN, found, remedy)


def check_registry(home: Path) -> Check:
    """A damaged one is noticed when it is needed, which may be in the middle of a build."""
    state = registry_state(Home(home.absolute()))
    return Check("registry", Status.FAIL if state.remedy else Status.OK, *state)


def judge_open_files(limit: int) -> Check:
    if limit == resource.RLIM_INFINITY or limit >= _GOOD_NUM_OPEN_FILES:
        return Check("open files", Status.OK, "unlimited" if limit == resource.RLIM_INFINITY else str(limit))
    remedy = "ulimit -n 65536 before serving; thousands of clients and mapped tables need one each"
    return Check("open files", Status.WARN, str(limit), remedy)


def judge_compiler(command: Sequence[str] | None) -> Check:
    if command is not None:
        return Check("C++ compiler", Status.OK, " ".join(command))
    remedy = "apt install g++, or pip install 'hplm[plugin]' (for Triton's batching plugin)"
    return Check("C++ compiler", Status.WARN, "none", remedy)


def judge_cpu_flags(flags: frozenset[str]) -> Check:
    fast = sorted(flags & FAST_BF16)
    if fast:
        return Check("fast bf16 on the CPU", Status.OK, ", ".join(fast))
    faster = any(flag in flags for flag in FAST_INT8)
    remedy = "none needed: fp32 takes its place"
    remedy += "; 'hplm export --dtype auto' takes int8 where that changes little" if faster else ""
    return Check("fast bf16 on the CPU", Status.WARN, "neither amx_bf16 nor avx512_bf16", remedy)


def judge_int8_flags(flags: frozenset[str]) -> Check:
    """Not having it is no fault: it is used by exports with `--dtype int8` or `auto` only."""
    fast = next((flag for flag in FAST_INT8 if flag in flags), None)
    found = f"{fast}; see hplm export --dtype" if fast else "neither avx512_vnni nor avx2"
    return Check("fast int8 on the CPU", Status.OK, found)


def judge_gpu(gpus: Sequence[str], num_usable: int) -> Check:
    """`gpus` are those that the driver sees, `num_usable` those that torch can use."""
    if not gpus and num_usable == 0:
        return Check("GPU", Status.OK, "none; everything runs on the CPU")
    found = f"{', '.join(gpus) or 'no driver answers'}; usable from torch: {num_usable}"
    if num_usable >= len(gpus):
        return Check("GPU", Status.OK, found)
    remedy = "install a torch build with CUDA for this driver: https://pytorch.org/get-started"
    return Check("GPU", Status.WARN, found, remedy)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _import_failure(module: str) -> str:
    try:
        importlib.import_module(module)
    except Exception as error:  # a broken binary package can raise anything
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return ""


def _num_gpus_of_torch() -> int:
    try:
        torch: Any = importlib.import_module("torch")
    except Exception:  # reported by the check of the packages
        return 0
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _GIBIBYTE:.1f} GiB" if size_bytes >= _GIBIBYTE else f"{size_bytes / _MEBIBYTE:.0f} MiB"
