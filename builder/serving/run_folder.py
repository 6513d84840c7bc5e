"""The private folder of one running server, and the leftovers of servers that were killed.

The folder is locked as long as any process of its server lives: every one of them inherits the locked descriptor. So a
folder that can be locked belongs to no server, and it names the shared-memory regions that may go with it.
"""

from __future__ import annotations

import fcntl
import glob
import os
import secrets
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from backends.server_folder import FOLDER_VARIABLE
from builder.serving.errors import TritonMissingError
from builder.serving.exported_files import ExportedFiles
from builder.serving.installation import PYTHON_VERSION, STUB_NAME, Installation, find_libpython

SHARED_MEMORY = Path("/dev/shm")
_FOLDER_PREFIX = "hplm-triton-"
_BUILDING_PREFIX = "hplm-building-"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Backend directory, libraries and (unless its path is given) the log of one server."""

    path: Path
    lock: int
    admin_key: str
    """Opens Triton's administrative endpoints; random, of this start, and in the file `admin-key` for operators."""

    @classmethod
    def create(cls) -> Self:
        """A locked folder; it gets its name only once it is locked, so that no sweep takes it for a leftover."""
        building = Path(tempfile.mkdtemp(prefix=_BUILDING_PREFIX))
        lock = os.open(building, os.O_RDONLY | os.O_DIRECTORY)
        path, admin_key = building.with_name(_FOLDER_PREFIX + secrets.token_hex(6)), secrets.token_hex(16)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (building / "admin-key").touch(0o600)
            (building / "admin-key").write_text(admin_key, encoding="utf-8")
            building.rename(path)
        except BaseException:  # a full disk, say
            os.close(lock)
            shutil.rmtree(building, ignore_errors=True)
            raise
        return cls(path, lock, admin_key)

    @property
    def shm_prefix(self) -> str:
        return shm_prefix(self.path)

    @property
    def backend_directory(self) -> Path:
        return self.path / "backends"

    @property
    def library_folder(self) -> Path:
        return self.path / "lib"

    def lay_out(self, installation: Installation) -> None:
        """Link the backends, the stub of the running Python and its libpython into the folder."""
        python_backend = self.backend_directory / "python"
        python_backend.mkdir(parents=True)
        for backend in installation.backends.iterdir():
            if backend.name != "python":
                (self.backend_directory / backend.name).symlink_to(backend)
        for file in installation.python_backend.iterdir():
            if file.is_file() and file.name != STUB_NAME:
                (python_backend / file.name).symlink_to(file)
        _link_executable(installation.stub, python_backend / STUB_NAME)
        self._link_libpython()

    def link_repository(self, repository: Path) -> Path:
        """Return a path to the repository without blanks: Triton starts stubs through a shell and does not quote."""
        link = self.path / "repository"
        link.symlink_to(repository.absolute())
        return link

    def lay_out_repository(self, repository: Path, exported: ExportedFiles) -> Path:
        """Return such a path to a repository of these files; models find a home that they are told by its path."""
        laid = self.path / "repository"
        exported.lay_out(laid, repository)
        return laid

    def environment(self, installation: Installation) -> dict[str, str]:
        """Return the variables by which tritonserver and its stubs find their libraries and their Python."""
        inherited = os.environ.get("LD_LIBRARY_PATH", "")
        libraries = [str(self.library_folder), *map(str, installation.library_folders), inherited]
        # The stub takes the first python3 on the PATH for its own, and with it the virtual environment.
        programs = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        return {
            "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
            "PATH": ":".join(programs),
            FOLDER_VARIABLE: str(self.path),
        }

    def unlock(self) -> None:
        """Leave the lock to the processes that inherited it."""
        os.close(self.lock)

    def _link_libpython(self) -> None:
        libpython = find_libpython()
        if libpython is None:
            raise TritonMissingError(
                f"libpython{PYTHON_VERSION}.so.1.0, which the Python backend needs, is not on this machine; "
                "`hplm doctor` says how to get it"
            )
        # Only this one file: the whole folder of a conda or system Python would shadow Triton's own libraries.
        self.library_folder.mkdir()
        (self.library_folder / libpython.name).symlink_to(libpython)


def shm_prefix(folder: Path) -> str:
    """The names of a server's shared-memory regions begin with this; newer Tritons map no such region for callers."""
    return f"triton_hplm_{folder.name.removeprefix(_FOLDER_PREFIX)}_"


def sweep_stale() -> int:
    """Remove what killed servers have left; return the number of servers."""
    return sum(_sweep(folder) for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"))


def _sweep(folder: Path) -> bool:
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone meanwhile, or another user's
        return False
    try:
        if os.fstat(lock).st_uid != os.getuid():
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for region in SHARED_MEMORY.glob(f"{glob.escape(shm_prefix(folder))}*"):
            region.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # its server lives
        return False
    finally:
        os.close(lock)
    return True


def _link_executable(source: Path, target: Path) -> None:
    if os.access(source, os.X_OK):
        target.symlink_to(source)
    else:  # some installers drop the executable bit
        shutil.copyfile(source, target)
        target.chmod(0o755)
