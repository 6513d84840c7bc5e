"""The tritonserver of this machine, its Python backend and the stub for the running Python.

A tritonserver on the PATH (NVIDIA's container) is taken when it has a stub for the running Python; otherwise the one
that the nvidia-pytriton wheel carries. The wheel's Python code is never imported, only its files are used.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.serving.errors import TritonMissingError

WHEEL = "nvidia-pytriton"
STUB_NAME = "triton_python_backend_stub"
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
# Without its dependencies: only the wheel's Python code, which is not used, needs them.
WHEEL_REMEDY = "pip install --no-deps nvidia-pytriton==0.7.0"


@dataclass(frozen=True, slots=True)
class Installation:
    """One usable tritonserver."""

    binary: Path
    backends: Path
    stub: Path
    library_folders: tuple[Path, ...]
    version: str

    @property
    def python_backend(self) -> Path:
        return self.backends / "python"


def find_installation() -> Installation:
    """The tritonserver that fits the running Python, or an error that says how to get one."""
    candidates = list(_candidates())
    fitting = [each for each in candidates if stub_python_version(each.stub) == PYTHON_VERSION]
    numpy = importlib.metadata.version("numpy")
    for candidate in fitting:
        if numpy.startswith("1.") or stub_knows_numpy_2(candidate.stub):
            return candidate
    if fitting:
        raise TritonMissingError(
            f"the Python backend of {fitting[0].binary} dies of arrays of numpy {numpy}; "
            "pip install 'numpy<2', or take Triton 24.11 or newer"
        )
    if candidates:
        found = candidates[0]
        raise TritonMissingError(
            f"{found.binary} has no Python backend stub for Python {PYTHON_VERSION} at {found.stub}; "
            f"get one: {WHEEL_REMEDY}"
        )
    raise TritonMissingError(f"no tritonserver on the PATH and no {WHEEL} wheel here; get one: {WHEEL_REMEDY}")


def stub_python_version(stub: Path) -> str | None:
    """The X.Y of the libpython that a stub links; None where there is no stub."""
    if not stub.exists():
        return None
    match = re.search(rb"libpython(\d+\.\d+)\.so", stub.read_bytes())
    return match.group(1).decode() if match else None


def stub_knows_numpy_2(stub: Path) -> bool:
    """Return whether a stub looks for numpy where numpy 2 has it; one that does not misreads the arrays of numpy 2."""
    return b"numpy._core" in stub.read_bytes()


def find_libpython() -> Path | None:
    """The shared library of the running Python's version, which the stub needs even where `python` itself does not.

    A Python built without --enable-shared has none of its own; a system library of the same version does as well.
    """
    name = f"libpython{PYTHON_VERSION}.so.1.0"
    return next((folder / name for folder in _libpython_folders() if (folder / name).exists()), None)


def _candidates() -> Iterator[Installation]:
    on_path = shutil.which("tritonserver")
    if on_path is not None:
        yield _installed_on_path(Path(on_path).resolve())
    wheel_root = _wheel_root()
    if wheel_root is not None:
        yield _carried_by_wheel(wheel_root)


def _installed_on_path(binary: Path) -> Installation:
    root = binary.parent.parent
    version_file = root / "TRITON_VERSION"
    return Installation(
        binary=binary,
        backends=root / "backends",
        stub=root / "backends" / "python" / STUB_NAME,
        library_folders=(root / "lib",),
        version=version_file.read_text(encoding="utf-8").strip() if version_file.exists() else "unknown version",
    )


def _carried_by_wheel(site_packages: Path) -> Installation:
    root = site_packages / "pytriton" / "tritonserver"
    return Installation(
        binary=root / "bin" / "tritonserver",
        backends=root / "backends",
        stub=root / "python_backend_stubs" / PYTHON_VERSION / STUB_NAME,
        library_folders=(site_packages / "nvidia_pytriton.libs",),
        version=f"{WHEEL} {importlib.metadata.version(WHEEL)}",
    )


def _wheel_root() -> Path | None:
    try:
        site_packages = Path(str(importlib.metadata.distribution(WHEEL).locate_file("")))
    except importlib.metadata.PackageNotFoundError:
        return None
    binary = site_packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"
    return site_packages if os.access(binary, os.X_OK) else None


def _libpython_folders() -> Iterator[Path]:
    for variable in ("LIBDIR", "LIBPL"):
        folder = sysconfig.get_config_var(variable)
        if folder:
            yield Path(folder)
    yield Path(sys.base_prefix) / "lib"
    multiarch = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    for prefix in ("/usr/local/lib", "/usr/lib64", f"/usr/lib/{multiarch}", f"/lib/{multiarch}", "/usr/lib"):
        yield Path(prefix)
