"""What `hplm gc` takes of what interrupted builds have left."""

from __future__ import annotations

from folder_home import AT_ONCE, age, removed, write

from backends.home import Home
from backends.registry.registry import Registry
from backends.storage import staging_folder, write_json
from builder.lifecycle.garbage import GarbageSettings, collect_garbage
from builder.locks import exclusive


def test_what_interrupted_builds_left_goes_when_nobody_comes_back(home: Home, registry: Registry) -> None:
    staged = staging_folder(home.plot("mini", "shop", 1))
    staged.mkdir()
    write_json(home.path / "plots/mini/.shop@1.inputs", {"inputs": "x"})
    (home.path / "roots/.big.checkpoint").write_bytes(b"1")
    (home.path / "bank/mini").mkdir(parents=True)
    stray = write(home.bank("mini", "acme/x", 1))
    young = {"plots/mini/.shop@1.building", "plots/mini/.shop@1.inputs", "roots/.big.checkpoint", "bank/mini/acme--x@1"}
    assert removed(home, registry, GarbageSettings(grace_s=0)) == set()
    old = {"plots/mini/.shop@1.building", "plots/mini/.shop@1.inputs"}
    for path in old:
        age(home.path / path, 48 * 3600)
    assert removed(home, registry, GarbageSettings(grace_s=0)) == old
    assert removed(home, registry) == young - old
    assert not stray.exists()


def test_what_a_killed_build_left_within_a_root_goes(home: Home, registry: Registry) -> None:
    students = write(home.root("mini") / "students")
    staged = write(staging_folder(students))
    (half := home.root("mini") / "int8.json.0a1b2c3d.new").write_bytes(b"1")
    left = {home.relative(path) for path in (staged, half)}
    assert removed(home, registry, GarbageSettings(grace_s=0)) == set()
    with exclusive(home, home.root("mini"), "a build of students"):
        report = collect_garbage(home, registry, AT_ONCE)
        assert (report.removed, set(report.in_use)) == ((), left)
    assert removed(home, registry) == left and students.exists()


def test_what_a_kill_between_two_renames_has_put_aside_stays(home: Home, registry: Registry) -> None:
    """It is all that there is of the students, until the next publication puts it back."""
    students = home.root("mini") / "students"
    write(students.with_name(".students.replaced"))
    assert removed(home, registry) == set()
    students.mkdir()
    assert removed(home, registry) == {"roots/mini/.students.replaced"}


def test_what_teachers_left_in_the_cache_goes_and_other_states_stay(home: Home, registry: Registry) -> None:
    names = {".teacher-1", ".reading-1/hidden.f16", ".lock-1", "rows/hidden.f16"}
    for name in names:
        (home.states / name).parent.mkdir(parents=True, exist_ok=True)
        (home.states / name).write_bytes(b"1")
    assert removed(home, registry, GarbageSettings(grace_s=0)) == set()
    for path in home.states.rglob("*"):
        age(path, 48 * 3600)
    assert removed(home, registry, GarbageSettings(grace_s=0)) == {
        "cache/states/.teacher-1",
        "cache/states/.reading-1",
    }
    assert {path.name for path in home.states.iterdir()} == {".lock-1", "rows"}


def test_what_one_build_has_left_goes_together(home: Home, registry: Registry) -> None:
    staged, tuning = staging_folder(home.plot("mini", "shop", 2)), home.bank("mini", "acme/x", 1)
    staged.mkdir()
    inputs = home.path / "plots/mini/.shop@2.inputs"
    write_json(inputs, {"inputs": "x"})
    tuning.parent.mkdir(parents=True)
    trials = [tuning.with_name(f".{tuning.name}.tuning-{number}") for number in (1, 2)]
    for trial in trials:
        trial.mkdir()
    for path in (inputs, trials[0]):
        age(path, 48 * 3600)
    assert removed(home, registry, GarbageSettings(grace_s=0)) == set()
    for path in (staged, trials[1]):
        age(path, 48 * 3600)
    left = {home.relative(path) for path in (staged, inputs, *trials)}
    assert removed(home, registry, GarbageSettings(grace_s=0)) == left
