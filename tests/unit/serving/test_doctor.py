"""What the doctor says of good and of poor machines."""

import io
import json
import resource
from pathlib import Path

import pytest
from rich.console import Console

from builder import doctor
from builder.doctor import Check, Status, checks_as_json, doctor_report, has_failure, run_checks

GIBIBYTE = 1 << 30


@pytest.fixture(scope="module")
def checks(tmp_path_factory) -> list[Check]:
    return run_checks(tmp_path_factory.mktemp("doctor") / "not" / "there" / "yet")


def test_this_machine_can_serve(checks):
    assert not has_failure(checks), [check for check in checks if check.status is Status.FAIL]
    assert len({check.name for check in checks}) == len(checks) == 14


def test_everything_but_ok_comes_with_a_remedy(checks):
    for check in checks:
        assert check.found
        assert bool(check.remedy) == (check.status is not Status.OK)


def test_the_json_form_is_json(checks):
    loaded = json.loads(json.dumps(checks_as_json(checks)))
    assert [each["name"] for each in loaded] == [check.name for check in checks]
    assert {each["status"] for each in loaded} <= {"ok", "warn", "fail"}


def test_the_table_shows_every_check_and_takes_no_text_for_markup():
    text = io.StringIO()
    check = Check("disk [x]", Status.WARN, "/tmp/[bold]home", "make [room]")
    Console(file=text, width=120).print(doctor_report([check]))
    for part in ("warn", "/tmp/[bold]home", "make [room]"):
        assert part in text.getvalue()


@pytest.mark.parametrize(
    ("library", "version", "status"),
    [
        ("glibc", "2.36", "ok"),
        ("glibc", "2.35", "ok"),
        ("glibc", "2.31", "fail"),
        ("", "", "fail"),
        ("musl", "9.9", "fail"),
    ],
)
def test_glibc(library, version, status):
    assert doctor.judge_glibc(library, version).status == status


@pytest.mark.parametrize(("free_bytes", "status"), [(GIBIBYTE, "ok"), (100 << 20, "warn"), (10 << 20, "fail")])
def test_shared_memory(free_bytes, status):
    check = doctor.judge_shared_memory(2 * GIBIBYTE, free_bytes)
    assert check.status == status
    assert ("--shm-size" in check.remedy) == (status != "ok")


def test_missing_shared_memory(tmp_path):
    assert doctor.check_shared_memory(tmp_path / "shm").status == "fail"


@pytest.mark.parametrize(("free_gib", "status"), [(50, "ok"), (3, "warn"), (0.1, "fail")])
def test_disk(tmp_path, free_gib, status):
    assert doctor.judge_disk(int(free_gib * GIBIBYTE), tmp_path).status == status


@pytest.mark.parametrize(("limit", "status"), [(1024, "warn"), (65536, "ok"), (resource.RLIM_INFINITY, "ok")])
def test_open_files(limit, status):
    assert doctor.judge_open_files(limit).status == status


def test_a_package_that_is_missing_is_named():
    check = doctor.check_packages(["json", "no_such_package_here"])
    assert check.status == "fail"
    assert "no_such_package_here" in check.found
    assert "json" not in check.remedy


def test_a_missing_compiler_only_warns():
    assert doctor.judge_compiler(None).status == "warn"
    assert doctor.judge_compiler(("/usr/bin/g++",)).status == "ok"


@pytest.mark.parametrize(
    ("flags", "status"), [({"avx512_bf16", "fma"}, "ok"), ({"amx_bf16"}, "ok"), ({"avx2", "avx512f"}, "warn")]
)
def test_cpu_flags(flags, status):
    assert doctor.judge_cpu_flags(frozenset(flags)).status == status


@pytest.mark.parametrize(
    ("gpus", "num_usable", "status"),
    [([], 0, "ok"), (["H200, 141 GiB"], 1, "ok"), (["H200, 141 GiB"], 0, "warn"), (["A", "B"], 1, "warn")],
)
def test_gpu(gpus, num_usable, status):
    assert doctor.judge_gpu(gpus, num_usable).status == status


@pytest.mark.parametrize(
    ("flags", "found"),
    [({"avx2", "avx512_vnni"}, "avx512_vnni; see"), ({"avx2"}, "avx2; see"), (set(), "neither")],
)
def test_doctor_says_whether_int8_is_fast(flags: set[str], found: str) -> None:
    check = doctor.judge_int8_flags(frozenset(flags))
    assert check.status == "ok" and check.found.startswith(found)


@pytest.mark.parametrize(
    ("version", "status"), [("2.51.0", "warn"), ("2.59.0", "warn"), ("2.59.1", "ok"), ("2.60.0", "ok"), ("", "warn")]
)
def test_a_triton_that_callers_can_crash_is_told(version: str, status: str) -> None:
    assert doctor.judge_tritonserver("tritonserver", version, Path("/opt/tritonserver")).status == status


@pytest.mark.parametrize(("mode", "status"), [(0o700, "ok"), (0o750, "ok"), (0o755, "warn"), (0o777, "fail")])
def test_a_home_that_others_can_read_or_change_is_told(tmp_path: Path, mode: int, status: str) -> None:
    home = tmp_path / "home"
    assert doctor.check_access(home).status == "ok"
    home.mkdir()
    home.chmod(mode)
    assert doctor.check_access(home).status == status


@pytest.mark.parametrize(
    ("options", "is_contained", "status"),
    [
        ("rw,nosuid,relatime", False, "warn"),
        ("rw,hidepid=0", False, "warn"),
        ("rw,hidepid=invisible", False, "ok"),
        ("rw,gid=4,hidepid=2", False, "ok"),
        ("rw", True, "ok"),
    ],
)
def test_command_lines_that_other_users_can_read_are_told(options: str, is_contained: bool, status: str) -> None:
    mounts = f"sysfs /sys sysfs rw 0 0\nproc /proc proc {options} 0 0\nproc /jail/proc proc rw,hidepid=2 0 0\n"
    check = doctor.judge_command_lines(mounts, is_contained)
    assert check.status == status
    assert ("hidepid=2" in check.remedy) == (status == "warn")
