"""What `hplm gc` takes and what it leaves, on a home of small real folders."""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from backends.errors import ConflictError, CorruptFileError, InvalidArgumentError, NotFoundError
from backends.home import Home
from backends.registry.garbage import Garbage, KeepRule
from backends.registry.registry import Registry
from backends.storage import publishing, staging_folder, write_json
from builder.clock_mark import Clocks, note_clock
from builder.lifecycle.garbage import GarbageSettings, collect_garbage
from builder.lifecycle.rollback import rollback_domain, rollback_hplm
from builder.locks import LOGGER, exclusive, no_build_begins, not_built
from seeds import SEED

AT_ONCE = GarbageSettings(grace_s=0, unfinished_s=0)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def registry(home: Home) -> Registry:
    registry = Registry.open(home, create=True)
    add_root(home, registry, "mini")
    return registry


def write(folder: Path, size_bytes: int = 1000) -> Path:
    with publishing(folder) as staged:
        (staged / "weights").write_bytes(b"x" * size_bytes)
    return folder


def add_root(home: Home, registry: Registry, name: str) -> None:
    root, plot = write(home.root(name)), write(home.plot(name, "general", 1))
    registry.publish_root(name, "f00d", home.relative(root), "general", home.relative(plot), {})


def add_domain(home: Home, registry: Registry, name: str, parent: str = "general") -> str:
    version = registry.next_domain_version("mini", name)
    folder = write(home.plot("mini", name, version))
    above = registry.find_domain("mini", parent)
    return registry.publish_domain("mini", name, home.relative(folder), above, {}).label


def add_hplm(home: Home, registry: Registry, hplm: str, domain: str = "general", **options: bool) -> int:
    version = registry.next_hplm_version(hplm)
    folder = write(home.bank("mini", hplm, version))
    tuned_on = registry.find_domain("mini", domain)
    parts = (hplm, tuned_on, "classification", ["a"], home.relative(folder), {})
    return registry.publish_hplm(*parts, **options).version


def folders(home: Home) -> set[str]:
    rooms = ("roots/*", "plots/*/*", "bank/*/*")
    return {path.relative_to(home.path).as_posix() for room in rooms for path in home.path.glob(room)}


def removed(home: Home, registry: Registry, settings: GarbageSettings = AT_ONCE) -> set[str | None]:
    return {removal.folder for removal in collect_garbage(home, registry, settings).removed}


def age(path: Path, seconds: float) -> None:
    at = time.time() - seconds
    for part in [*path.rglob("*"), path]:
        os.utime(part, (at, at))


@dataclass
class MovedClocks:
    """A machine that has run for an hour; its wall clock is set by so much."""

    ran_s: float = 3600.0
    set_by_s: float = 0.0

    @property
    def clocks(self) -> Clocks:
        return Clocks(lambda: 1e9 + self.ran_s + self.set_by_s, lambda: self.ran_s, lambda: "this start")


@pytest.mark.parametrize("set_by_s", [86_400.0, -86_400.0])
def test_nothing_goes_while_the_clock_was_set_lately(home: Home, registry: Registry, set_by_s: float) -> None:
    machine = MovedClocks()
    note_clock(home, machine.clocks)
    half_built = home.bank("mini", "acme/new", 1).with_name(".acme--new@1.building")
    half_built.mkdir(parents=True)
    way = "forward" if set_by_s > 0 else "back"
    machine.set_by_s = set_by_s
    age(half_built, 86_500.0)  # it looks so old where the clock went forward, and is a minute old
    settings = GarbageSettings()
    for ran_s, left in ((3660.0, "24.0 h"), (45_000.0, "12.5 h"), (90_000.0, "60 s")):
        machine.ran_s = ran_s
        with pytest.raises(ConflictError, match=f"set {way} by 24.0 h, .*works again in {left}, or with shorter"):
            collect_garbage(home, registry, settings, clocks=machine.clocks)
        assert half_built.exists()
    machine.ran_s = 90_061.0
    (removal,) = collect_garbage(home, registry, settings, clocks=machine.clocks).removed
    assert removal.name == half_built.name


def test_a_clock_that_is_corrected_a_little_stops_no_collection(home: Home, registry: Registry) -> None:
    machine = MovedClocks()
    for set_by_s in (0.0, 20.0, -30.0, 40.0):
        machine.set_by_s = set_by_s
        collect_garbage(home, registry, GarbageSettings(), clocks=machine.clocks)
    (home.run / "clock.json").write_text("half a fi")
    collect_garbage(home, registry, GarbageSettings(), clocks=machine.clocks)
    machine.set_by_s = 3600.0
    with pytest.raises(ConflictError, match=r"by 3560 s"):
        collect_garbage(home, registry, GarbageSettings(), clocks=machine.clocks)
    assert collect_garbage(home, registry, AT_ONCE, clocks=machine.clocks).removed == ()


def test_the_last_versions_stay_for_a_rollback(home: Home, registry: Registry) -> None:
    for _ in range(5):
        add_hplm(home, registry, "acme/x")
    report = collect_garbage(home, registry, AT_ONCE, dry_run=True)
    assert [removal.name for removal in report.removed] == ["acme/x@1", "acme/x@2", "acme/x@3"]
    assert (report.size_bytes, len(folders(home))) == (3000, 7)
    assert collect_garbage(home, registry, AT_ONCE).removed == report.removed
    assert [version.entry.version for version in registry.hplm_versions("acme/x")] == [4, 5]
    assert rollback_hplm(home, registry, "acme/x").version == 4
    assert removed(home, registry) == set()
    assert removed(home, registry, GarbageSettings(keep=0, grace_s=0)) == {"bank/mini/acme--x@5"}
    assert add_hplm(home, registry, "acme/x") == 6


def test_what_was_live_a_moment_ago_stays(home: Home, registry: Registry) -> None:
    for _ in range(3):
        add_hplm(home, registry, "acme/x")
    registry.delete_hplm("acme/x")
    add_domain(home, registry, "shop")
    registry.delete_domain("mini", "shop")
    before = folders(home)
    assert removed(home, registry, GarbageSettings(keep=0, grace_s=30, unfinished_s=0)) == set()
    assert folders(home) == before
    assert removed(home, registry, GarbageSettings(keep=0, grace_s=0)) == {
        *(f"bank/mini/acme--x@{version}" for version in (1, 2, 3)),
        "plots/mini/shop@1",
    }


def test_domain_versions_stay_while_anything_needs_them(home: Home, registry: Registry) -> None:
    add_domain(home, registry, "shop")  # 1: the parent of shoes
    add_domain(home, registry, "shoes", "shop")
    add_domain(home, registry, "shop")  # 2: acme/live is tuned on it
    add_hplm(home, registry, "acme/live", "shop")
    add_domain(home, registry, "shop")  # 3: acme/pinned is pinned to it
    add_hplm(home, registry, "acme/pinned", "shop", pinned=True)
    add_hplm(home, registry, "acme/pinned", "shop")
    add_domain(home, registry, "shop")  # 4: acme/old was tuned on it, two versions ago
    for domain in ("shop", "general", "general"):
        add_hplm(home, registry, "acme/old", domain)
    for _ in range(3):
        add_domain(home, registry, "shop")  # 5: nobody's; 6: kept for a rollback; 7: live
    assert removed(home, registry) == {"bank/mini/acme--old@1", "plots/mini/shop@4", "plots/mini/shop@5"}
    registry.unpin_hplm("acme/pinned")
    registry.delete_hplm("acme/pinned")
    assert removed(home, registry) == {*(f"bank/mini/acme--pinned@{v}" for v in (1, 2)), "plots/mini/shop@3"}
    registry.delete_domain("mini", "shoes")
    assert removed(home, registry) == {"plots/mini/shoes@1", "plots/mini/shop@1"}
    assert rollback_domain(home, registry, "mini", "shop").label == "shop@6"
    assert registry.hplm("acme/live").domain.label == "shop@2"


def test_whatever_happens_what_is_needed_stays_on_disk(home: Home, registry: Registry) -> None:
    """Random histories: after every collection all that is registered has its folders, and nothing else is there."""
    chance = random.Random(SEED)
    for _ in range(60):
        hplm, domain = f"acme/{chance.choice('ab')}", chance.choice(["shop", "shoes"])
        match chance.randrange(7):
            case 0:
                add_domain(home, registry, domain, chance.choice(["general", *(d.name for d in registry.domains())]))
            case 1 | 2:
                add_hplm(home, registry, hplm, chance.choice(registry.domains()).name, pinned=chance.random() < 0.3)
            case 3 if registry.has_hplm(hplm) and len(registry.hplm_versions(hplm)) > 1:
                registry.rollback_hplm(
                    hplm, chance.choice([v for v in registry.hplm_versions(hplm) if not v.is_live]).entry.version
                )
            case 4 if registry.has_hplm(hplm) and chance.random() < 0.3:
                registry.delete_hplm(hplm)
            case 5 if registry.has_domain("mini", domain) and len(registry.domain_versions("mini", domain)) > 1:
                older = [v for v in registry.domain_versions("mini", domain) if not v.is_live]
                registry.rollback_domain("mini", domain, chance.choice(older).entry.version)
            case _:
                collect_garbage(home, registry, GarbageSettings(keep=chance.randrange(2), grace_s=0, unfinished_s=0))
                assert folders(home) == registry.known_folders()
                for entry in registry.hplms():
                    needed = {entry.folder, *entry.domain.folders, *(entry.pinned or entry.domain).folders}
                    assert needed <= folders(home)


def test_what_lies_beside_a_version_goes_with_it(home: Home, registry: Registry) -> None:
    add_domain(home, registry, "shop")
    (home.path / "plots/mini/shop@1.overlay").mkdir()
    (home.path / "plots/mini/shop@1.overlay/0.log").write_bytes(b"12345")
    (home.path / "roots/mini.mlm_head.safetensors").write_bytes(b"123")
    assert removed(home, registry) == set()
    registry.delete_domain("mini", "shop")
    report = collect_garbage(home, registry, AT_ONCE)
    assert [(removal.name, removal.size_bytes) for removal in report.removed] == [("shop@1", 1005)]
    assert folders(home) == {"roots/mini", "roots/mini.mlm_head.safetensors", "plots/mini/general@1"}


def test_a_folder_that_a_live_version_shares_stays(home: Home, registry: Registry) -> None:
    add_hplm(home, registry, "acme/x")
    entry = registry.hplm("acme/x")
    for _ in range(2):
        registry.publish_hplm(entry.id, entry.domain, entry.task, entry.labels, entry.folder, {})
    (removal,) = collect_garbage(home, registry, AT_ONCE).removed
    assert (removal.name, removal.folder, removal.size_bytes) == ("acme/x@1", None, 0)
    assert (home.path / entry.folder).exists()


def test_a_deleted_root_frees_its_name(home: Home, registry: Registry) -> None:
    add_root(home, registry, "other")
    registry.delete_root("other")
    report = collect_garbage(home, registry, AT_ONCE, dry_run=True)
    assert {removal.folder for removal in report.removed} == {"roots/other", "plots/other/general@1"}
    assert removed(home, registry) == {"roots/other", "plots/other/general@1"}
    registry.require_new_root("other")
    add_root(home, registry, "other")
    assert registry.find_domain("other", "general").version == 1


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


@pytest.mark.parametrize(
    ("name", "held"),
    [
        (".big.checkpoint.0a1b2c3d.new", "big"),
        ("mini.mlm_head.safetensors.0a1b2c3d.new", "mini.mlm_head.safetensors"),
    ],
)
def test_a_half_written_file_stays_while_its_build_runs(home: Home, registry: Registry, name: str, held: str) -> None:
    (home.path / "roots" / name).write_bytes(b"1")
    with exclusive(home, home.root(held), "its build"):
        assert removed(home, registry) == set()
    assert removed(home, registry) == {f"roots/{name}"}


def test_the_files_of_a_root_of_a_longer_name_stay(home: Home, registry: Registry) -> None:
    add_root(home, registry, "other")
    add_root(home, registry, "other.v2")
    for name in ("other", "other.v2"):
        (home.path / f"roots/{name}.mlm_head.safetensors").write_bytes(b"123")
    registry.delete_root("other")
    removed(home, registry)
    assert {path.name for path in (home.path / "roots").glob("other*")} == {"other.v2", "other.v2.mlm_head.safetensors"}


@pytest.mark.parametrize("held", ["plots/mini/shop@1", "plots/mini/shop", "roots/mini"])
def test_what_a_running_build_holds_stays(home: Home, registry: Registry, held: str) -> None:
    staging_folder(home.plot("mini", "shop", 1)).mkdir()
    with exclusive(home, home.path / held, "somebody's build"):
        report = collect_garbage(home, registry, AT_ONCE)
        assert (report.removed, report.in_use) == ((), ("plots/mini/.shop@1.building",))
    assert removed(home, registry) == {"plots/mini/.shop@1.building"}


def test_a_running_build_keeps_what_it_reads(home: Home, registry: Registry) -> None:
    add_domain(home, registry, "shop")
    add_domain(home, registry, "shoes", "shop")  # on shop@1
    for _ in range(3):
        add_domain(home, registry, "shop")
        add_domain(home, registry, "shoes", "shop")
    settings = GarbageSettings(keep=0, grace_s=0)
    with exclusive(home, home.path / "bank/acme--x", "hPLM 'acme/x'") as hold:
        hold.will_read(registry.domain("mini", "shoes", 1).folders)
        report = collect_garbage(home, registry, settings)
        assert not report.domains_kept
        assert {removal.name for removal in report.removed} == {"shoes@2", "shoes@3", "shop@2", "shop@3"}
    assert removed(home, registry, settings) == {"plots/mini/shoes@1", "plots/mini/shop@1"}


def test_a_killed_build_keeps_nothing(home: Home, registry: Registry) -> None:
    for _ in range(2):
        add_domain(home, registry, "shop")
    lock = home.path / "bank/.acme--x.lock"
    lock.parent.mkdir(exist_ok=True)
    lock.write_text('["plots/mini/shop@1"]')
    with exclusive(home, home.path / "bank/acme--x", "hPLM 'acme/x'"):
        assert collect_garbage(home, registry, GarbageSettings(keep=0, grace_s=0)).domains_kept
    lock.write_text('["plots/mini/shop@1"]')
    assert removed(home, registry, GarbageSettings(keep=0, grace_s=0)) == {"plots/mini/shop@1"}


def test_a_build_that_has_just_begun_keeps_all_domains(home: Home, registry: Registry) -> None:
    """It may be about to tune on a version that is live no more."""
    for _ in range(3):
        add_domain(home, registry, "shop")
    settings = GarbageSettings(keep=0, grace_s=0)
    with exclusive(home, home.path / "bank/acme--x", "hPLM 'acme/x'"):
        report = collect_garbage(home, registry, settings)
        assert (report.removed, report.domains_kept) == ((), True)
    assert removed(home, registry, settings) == {"plots/mini/shop@1", "plots/mini/shop@2"}


class BeginningBuild:
    """A build on an old version of a domain, begun in another thread; `moved` once it waits or knows what it reads."""

    def __init__(self, home: Home, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        self._home = home
        self._registry = registry
        self._moved = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.outcome: str | Exception | None = None
        monkeypatch.setattr(LOGGER, "info", lambda *_: self._moved.set())

    def begin(self) -> None:
        self._thread.start()
        assert self._moved.wait(30)

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with exclusive(self._home, self._home.path / "bank/acme--x", "hPLM 'acme/x'") as hold:
                domain = self._registry.find_domain("mini", "shop@1")
                hold.will_read(domain.folders)
                self.outcome = domain.folders[0]
        except Exception as error:
            self.outcome = error
        self._moved.set()


def test_a_build_that_begins_during_a_collection_reads_nothing_that_is_collected(
    home: Home, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        add_domain(home, registry, "shop")
    build = BeginningBuild(home, Registry.open(home), monkeypatch)
    forget = registry.forget_unneeded

    def forget_while_a_build_begins(rule: KeepRule) -> list[Garbage]:
        build.begin()
        return forget(rule)

    monkeypatch.setattr(registry, "forget_unneeded", forget_while_a_build_begins)
    assert "plots/mini/shop@1" in removed(home, registry, GarbageSettings(keep=0, grace_s=0))
    build.join()
    assert isinstance(build.outcome, NotFoundError), build.outcome


def test_a_beginning_build_waits_for_its_lock(home: Home, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    add_domain(home, registry, "shop")
    build = BeginningBuild(home, Registry.open(home), monkeypatch)
    with no_build_begins(home), not_built(home.path / "bank/acme--x", "held"):
        build.begin()
    build.join()
    assert build.outcome == "plots/mini/shop@1"


def test_a_version_without_its_files_does_not_go_live(home: Home, registry: Registry) -> None:
    for _ in range(2):
        add_domain(home, registry, "shop")
        add_hplm(home, registry, "acme/x", "shop")
    for folder in (home.bank("mini", "acme/x", 1), home.plot("mini", "shop", 1)):
        folder.rename(folder.with_name("away"))
        with pytest.raises(CorruptFileError, match=r"acme/x@1 cannot go live again: .* is missing"):
            rollback_hplm(home, registry, "acme/x")
        assert registry.hplm("acme/x").version == 2
        if "plots" in folder.parts:
            with pytest.raises(CorruptFileError, match="shop@1 cannot go live again"):
                rollback_domain(home, registry, "mini", "shop", to=1)
        folder.with_name("away").rename(folder)
    assert rollback_hplm(home, registry, "acme/x").version == 1


@pytest.mark.parametrize("wrong", [{"keep": -1}, {"grace_s": -1.0}, {"unfinished_s": -0.5}])
def test_numbers_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="at least 0"):
        GarbageSettings(**wrong)
