"""`hplm place` on a home: the plan that it writes, and what it says of bad traffic, devices and profiles."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends.engine import precision
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.scheduling.cost_model import CostModel
from backends.scheduling.cost_profile import CostProfile, Measured, write_profile
from backends.storage import write_json
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.placement.planner import home_models
from builder.placement.planner.plan_file import plan_to_json, read_plan, write_plan

Run = Callable[..., str]
MODEL = CostModel(2_000.0, 100.0, 30.0, 0.01, 50.0)


def add_profile(home: Home, root: str, model: CostModel = MODEL, device: str = "H200", dtype: str = "bf16") -> None:
    measured = Measured(Registry.open(home).root(root).fingerprint, device, dtype, "ragged", 2)
    write_profile(home.profile(root), CostProfile(model, measured, "2", 100, 5.0))


@pytest.fixture
def home(tiny_home: Home) -> Home:
    """Two roots of the same weights, with profiles."""
    registry = Registry.open(tiny_home)
    entry = registry.root("tiny")
    shutil.copytree(tiny_home.path / entry.folder, tiny_home.root("twin"))
    registry.publish_root("twin", entry.fingerprint, "roots/twin", "general", "plots/twin/general@1", {})
    add_profile(tiny_home, "tiny")
    add_profile(tiny_home, "twin")
    return tiny_home


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    """A minute of requests, with lengths and deadlines."""
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.gamma(1 / 16, 16 / 60, 3_000))
    names = rng.choice(["acme/topic", "acme/mood", "twin"], 3_000)
    lines = [f"{time:.6f},{name},{rng.integers(5, 40)},200" for time, name in zip(times, names, strict=True)]
    path = tmp_path / "monday.csv"
    path.write_text("\n".join(["time_s,hplm,tokens,deadline_ms", *lines]))
    return path


@pytest.fixture
def place(run_hplm: Run, home: Home, traffic: Path) -> Run:
    def placed(*options: str, path: Path = traffic) -> str:
        return run_hplm("place", "--home", home.path, "--traffic", path, *options)

    return placed


def test_a_plan_is_printed_and_kept(place: Run, home: Home, tmp_path: Path) -> None:
    printed = place("--devices", "4x16GB", "--svg", str(tmp_path / "plan.svg"))
    made = read_plan(home.placement)
    assert made.verdict == "all everywhere, no stages" and printed.startswith(made.verdict)
    assert {device.memory_bytes for device in made.devices} == {15 * 10**9}
    assert {root for group in made.groups for root in group.roots} == {"tiny", "twin"}
    assert "stages would only cost" in printed and "selective replication" in printed
    assert (tmp_path / "plan.svg").read_text().startswith("<svg")
    made.check_home({entry.name: entry.fingerprint for entry in Registry.open(home).roots()})
    as_json = json.loads(place("--devices", "4x16GB", "--json"))
    assert as_json["groups"][0]["name"] == "g0" and as_json["alternatives"][0]["held_out"] is not None


def test_the_memory_of_devices_is_a_budget(place: Run, home: Home) -> None:
    size = RootFolder(home.root("twin")).upper_bytes
    needed = json.loads(place("--devices", "2x1GB", "--reserve", "0", "--json"))["groups"][0]["stacks"]
    total = sum(stack["size_bytes"] for stack in needed)
    assert total > 2 * size, "slots take memory too"
    both = f"2x{(total + 1000) / 1e6:.6f}MB"
    assert place("--devices", both, "--reserve", "0").startswith("all everywhere")
    one = f"2x{0.7 * total / 1e6:.6f}MB"
    assert "not all fit everywhere" in place("--devices", one, "--reserve", "0")
    assert "fits on no group of these devices" in place("--devices", "2x0.01MB", "--reserve", "0")


def test_without_stages_each_device_is_a_group(place: Run, home: Home) -> None:
    tight = ("--devices", f"8x{0.7 * largest_root(place) / 1e6:.6f}MB", "--reserve", "0")
    first, *_, last = place(*tight, "--dry-run").splitlines()
    assert "stages" in first and "'hplm fleet apply' takes no roots that are cut in stages" in last
    assert "fits on no group" in place(*tight, "--no-stages")
    place("--devices", f"4x{1.1 * largest_root(place) / 1e6:.6f}MB", "--reserve", "0", "--no-stages")
    assert [group.shape.num_devices for group in read_plan(home.placement).groups] == [1] * 4


def largest_root(place: Run) -> int:
    """Return the bytes of the largest root, with its slots."""
    groups = json.loads(place("--devices", "1GB", "--reserve", "0", "--dry-run", "--json"))["groups"]
    return max(stack["size_bytes"] for stack in groups[0]["stacks"])


def test_a_dry_run_writes_nothing(place: Run, home: Home) -> None:
    assert place("--devices", "16GB", "--dry-run").startswith("all everywhere")
    assert not home.placement.exists()


def test_the_plan_goes_to_the_named_file(place: Run, home: Home, tmp_path: Path) -> None:
    path = tmp_path / "plans" / "monday.json"
    lacking = f"{path.parent}, where --out is to be written, is no folder"
    assert place("--devices", "no devices", "--out", str(path)) == f"hplm: {lacking}"
    path.parent.mkdir()
    assert place("--devices", "16GB", "--out", str(path)).startswith("all everywhere")
    assert read_plan(path).verdict == "all everywhere, no stages" and not home.placement.exists()
    for option in ("--out", "--svg", "--compare"):
        said = place("--devices", "no devices", option, str(path.parent))
        assert said == f"hplm: {option} {path.parent} is a folder; name a file in it"
    both = place("--devices", "no devices", "--out", str(path), "--dry-run")
    assert both == "hplm: --dry-run writes no plan and --out names a file for it; give only one"


def test_a_placement_that_stays_goes_to_the_named_file_too(place: Run, home: Home, tmp_path: Path) -> None:
    place("--devices", "2x16GB")
    content, path = home.placement.read_bytes(), tmp_path / "next.json"
    assert "it stays" in place("--from", str(home.placement), "--out", str(path))
    change = read_plan(path).change
    assert change is not None and not change.steps
    assert read_plan(path).groups == read_plan(home.placement).groups and home.placement.read_bytes() == content


def test_the_fewest_devices_for_a_target(place: Run, home: Home, drifting: Callable[[str], Path]) -> None:
    """3,000 requests a second, of which a device answers most."""
    busy = drifting("twin")
    printed = place("--devices", "1x16GB@alpha,63x24GB@beta", "--target", "99", "--no-stages", path=busy)
    made = read_plan(home.placement)
    assert printed.startswith("2 of 64 devices are enough for 99 % on time; no stages: 2 devices")
    assert [(device.name, device.memory_bytes) for device in made.devices] == [
        ("alpha/0", 15 * 10**9),
        ("beta/0", 23 * 10**9),
    ]
    assert "are on time, and" in made.decisions[0] and " too few: " in made.decisions[1]
    single = place("--devices", "64x16GB", "--target", "1", "--dry-run", path=busy)
    assert single.startswith("1 of 64 devices is enough for 1 % on time; ")


def test_a_target_goes_with_pictures_and_json(place: Run, tmp_path: Path, drifting: Callable[[str], Path]) -> None:
    plan, ways = tmp_path / "plan.svg", tmp_path / "ways.svg"
    target = ("--devices", "4x16GB", "--target", "90", "--json", "--svg", str(plan), "--compare", str(ways))
    made = json.loads(place(*target, path=drifting("twin")))
    count = len(made["devices"])
    assert made["verdict"].startswith(f"{count} of 4 devices ") and len(made["groups"]) == count
    assert [load for load, _ in made["alternatives"][0]["over_load"]] == [0.5, 1.0, 1.5, 2.0, 3.0, 4.0]
    assert "of 4 devices" in plan.read_text() and ">this plan<" in ways.read_text()


def test_a_target_out_of_reach_writes_nothing(
    place: Run, home: Home, tmp_path: Path, drifting: Callable[[str], Path]
) -> None:
    path, picture = tmp_path / "plan.json", tmp_path / "plan.svg"
    options = ("--devices", "1x16GB", "--target", "99.9", "--deadlines", "1ms", "--out", str(path))
    said = place(*options, "--svg", str(picture), path=drifting("twin")).splitlines()[-1]
    assert said.startswith("hplm: 1 device is too few for 99.9 % on time: the best is 0.0 % of the held-out requests")
    assert said.endswith("; more devices or longer --deadlines may help")
    failed = json.loads(place(*options, "--json", path=drifting("twin")).splitlines()[-1])["error"]
    assert (failed["code"], failed["exit_code"]) == ("THRESHOLD_MISSED", 7)
    assert failed["hint"] == "more devices or longer --deadlines may help" and "may help" not in failed["message"]
    assert not path.exists() and not picture.exists() and not home.placement.exists()


def test_a_target_is_a_percentage_of_devices_to_choose_from(place: Run, home: Home) -> None:
    for percent in ("0", "-5", "100.5", "100.0001", "nan"):
        said = place("--devices", "16GB", "--target", percent)
        assert said.endswith(f"--target is a percentage above 0 and at most 100, not {percent}")
    said = place("--from", str(home.placement), "--target", "99")
    assert said == "hplm: --target chooses the devices and --from keeps them; give only one"
    assert "say what there is with --devices" in place("--target", "99")


@pytest.mark.parametrize(
    ("devices", "complaint"),
    [
        ("0x16GB", "there are 1 to 10,000 devices, not 0"),
        ("-1x16GB", "there are 1 to 10,000 devices, not -1"),
        ("20000x16GB", "not 20,000"),
        ("4x0GB", "has no memory"),
        ("4x-3GB", "has no memory"),
        ("4x1GB", "has 1,000,000,000 bytes, and --reserve keeps 1,000,000,000; give a smaller --reserve"),
        ("four", "is not of the form COUNTxMEMORY"),
        ("4x16", "is not of the form COUNTxMEMORY"),
    ],
)
def test_impossible_devices_are_rejected(devices: str, complaint: str, place: Run) -> None:
    assert complaint in place("--devices", devices)


def test_devices_have_hosts(place: Run) -> None:
    made = json.loads(place("--devices", "2x16GB@alpha,2x24GiB@beta", "--json"))
    assert [device["name"] for device in made["devices"]] == ["alpha/0", "alpha/1", "beta/0", "beta/1"]
    assert made["devices"][3]["memory_bytes"] == 24 * 2**30 - 10**9


def test_arguments_are_rejected_before_torch_is_imported(home: Home, traffic: Path, tmp_path: Path) -> None:
    """PyTorch and Numba take seconds to import."""
    foreign = tmp_path / "foreign.csv"
    foreign.write_text("time_s,hplm,deadline_ms\n0,acme/gone,5\n")
    shutil.rmtree(home.profile("twin"))
    wrong = [
        ("--traffic", str(traffic), "--devices", "four"),
        ("--traffic", str(traffic), "--from", str(foreign)),
        ("--traffic", str(traffic), "--devices", "2x16GB", "--hop", "soon"),
        ("--traffic", str(tmp_path / "none.csv"), "--devices", "2x16GB"),
        ("--traffic", str(foreign), "--devices", "2x16GB"),
        ("--traffic", str(traffic), "--devices", "2x16GB", "--deadlines", "soon"),
        ("--traffic", str(traffic), "--devices", "2x16GB"),
    ]
    code = f"""
import sys, cli
for options in {wrong!r}:
    sys.argv = ["hplm", "place", "--home", {str(home.path)!r}, *options]
    try:
        cli.main()
    except SystemExit as stop:
        print(stop.code, [name for name in ("torch", "numba") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *lines, last = zip(run.stdout.splitlines(), run.stderr.splitlines(), strict=True)
    assert {imported.split(" ", 1)[1] for imported, _ in (*lines, last)} == {"[]"}
    assert "root 'twin' has no cost model yet" in last[1]


def test_traffic_that_says_too_little_is_rejected(place: Run, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    for content, complaint in (
        ("", "no requests"),
        ("time_s,hplm,deadline_ms\n", "no requests"),
        ("time_s,hplm,deadline_ms\n0,acme/gone,5\n1,acme/topic,5\n", "requests for 'acme/gone', which are no hPLMs"),
        ("time_s,hplm\n0,acme/topic\n1,acme/topic\n", "no request of {path} has a deadline; say --deadlines"),
        ("time_s,hplm,deadline_ms\n0,acme/topic,\n", "no request of {path} has a deadline; say --deadlines 200ms"),
        ("time_s,deadline_ms\n0,5\n1,5\n", "has no column hplm, and this home has 2 roots"),
        ("time_s,hplm,deadline_ms\n0,acme/topic,0\n", "line 2: a deadline is above 0"),
    ):
        path.write_text(content)
        assert complaint.format(path=path) in place("--devices", "2x16GB", path=path)
    assert "No such file" in place("--devices", "2x16GB", path=tmp_path / "none.csv")
    assert "--hop" in place("--devices", "2x16GB", "--hop", "soon")
    assert "speed must be" in place("--devices", "2x16GB", "--speed", "0")


def test_deadlines_may_be_given_in_place_of_recorded_ones(place: Run, tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("time_s,hplm\n" + "\n".join(f"{number / 100},acme/topic" for number in range(500)))
    generous = json.loads(place("--devices", "2x16GB", "--deadlines", "5x-20x", "--json", path=path))
    assert generous["alternatives"][0]["attainment"] == 1.0
    tight = json.loads(place("--devices", "2x16GB", "--deadlines", "1ms", "--json", path=path))
    assert tight["alternatives"][0]["attainment"] == 0.0


def test_profiles_that_say_nothing_of_these_devices_are_rejected(place: Run, home: Home) -> None:
    add_profile(home, "twin", device="another GPU")
    assert "measured on 'another GPU', that of 'tiny' on 'H200'" in place("--devices", "2x16GB")
    add_profile(home, "twin", CostModel(0.0, 0.0, 0.0, 0.0, 0.0))
    assert "of root 'twin' a batch takes no time" in place("--devices", "2x16GB")
    measured = Measured("older weights", "H200", "bf16", "ragged", 2)
    write_profile(home.profile("twin"), CostProfile(MODEL, measured, "2", 100, 5.0))
    assert "measured with other weights" in place("--devices", "2x16GB")
    shutil.rmtree(home.profile("twin"))
    assert "root 'twin' has no cost model yet; 'hplm profile --root twin' makes one" in place("--devices", "2x16GB")
    shutil.rmtree(home.profile("tiny"))
    assert "root 'tiny' has no cost model yet" in place("--devices", "2x16GB")


def test_ways_to_place_are_drawn_over_the_load(place: Run, tmp_path: Path) -> None:
    path = tmp_path / "ways.svg"
    made = json.loads(place("--devices", "2x16GB", "--compare", str(path), "--json"))
    assert [load for load, _ in made["alternatives"][0]["over_load"]] == [0.5, 1.0, 1.5, 2.0, 3.0, 4.0]
    drawn = path.read_text()
    assert drawn.startswith("<svg") and ">this plan<" in drawn and ">selective replication<" in drawn
    assert "where --compare is to be written, is no folder" in place("--compare", str(tmp_path / "none" / "ways.svg"))
    few = tmp_path / "few.csv"
    few.write_text("time_s,hplm,deadline_ms\n0,acme/topic,50\n")
    said = place("--devices", "2x16GB", "--compare", str(path), path=few)
    assert said.startswith("hplm: the traffic has too few requests to hold some out")


def export(home: Home, dtype: str) -> None:
    render_repository(home.repository, ExportSettings(upper_parameters={"dtype": dtype}))


def test_a_plan_is_for_the_dtype_of_the_export(place: Run, home: Home) -> None:
    assert "of dtype bf16, as the cost models were measured" in place("--devices", "2x16GB")
    export(home, "int8")
    for root in ("tiny", "twin"):
        said = place("--devices", "2x16GB").splitlines()[-1]
        assert (
            said.startswith("hplm: ") and f"root '{root}' was measured in bf16, and the export serves in int8" in said
        )
        assert f"'hplm profile --root {root} --dtype int8' makes one" in said
        add_profile(home, root, dtype="int8")
    assert "of dtype int8, in which the export serves." in place("--devices", "2x16GB")


def test_a_plan_is_for_what_this_machine_computes_in(place: Run, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server takes fp32 where the processor has no bf16, and so does `hplm profile`."""
    monkeypatch.setattr(home_models, "device_name", lambda _: "this CPU")
    monkeypatch.setattr(precision, "cpu_multiplies_bf16", lambda: False)
    export(home, "bf16")
    for root in ("tiny", "twin"):
        add_profile(home, root, device="this CPU")
    assert "measured in bf16, and the export serves in fp32" in place("--devices", "2x16GB")
    for root in ("tiny", "twin"):
        add_profile(home, root, device="this CPU", dtype="fp32")
    said = place("--devices", "2x16GB")
    assert "of dtype fp32, in which the export serves in place of the exported bf16, which a device may lack" in said


def test_another_machine_may_lack_the_exported_dtype(place: Run, home: Home) -> None:
    export(home, "bf16")
    for root in ("tiny", "twin"):
        add_profile(home, root, device="a CPU without bf16", dtype="fp32")
    assert "of dtype fp32, in which the export serves in place of the exported bf16" in place("--devices", "2x16GB")


def test_profiles_of_two_dtypes_are_rejected(place: Run, home: Home) -> None:
    add_profile(home, "twin", dtype="fp32")
    said = place("--devices", "2x16GB")
    assert "root 'twin' was measured in fp32, that of 'tiny' in bf16" in said
    assert "'hplm profile --root twin --dtype bf16' makes one" in said


@pytest.fixture
def drifting(tmp_path: Path) -> Callable[[str], Path]:
    """Three seconds of requests, most of them for one of the roots, and more than one device answers."""

    def written(busy: str) -> Path:
        rng = np.random.default_rng(2)
        names = rng.choice([busy, {"twin": "acme/topic", "acme/topic": "twin"}[busy]], 9_000, p=[0.9, 0.1])
        lines = [f"{time:.6f},{name},20,100" for time, name in zip(np.sort(3 * rng.random(9_000)), names, strict=True)]
        path = tmp_path / f"{busy.replace('/', '-')}.csv"
        path.write_text("\n".join(["time_s,hplm,tokens,deadline_ms", *lines]))
        return path

    return written


def test_a_placement_stays_until_a_change_pays(place: Run, home: Home, drifting: Callable[[str], Path]) -> None:
    """Three devices with room for one root each."""
    devices = f"3x{1.1 * largest_root(place) / 1e6:.6f}MB"
    place("--devices", devices, "--reserve", "0", path=drifting("twin"))
    first, content = read_plan(home.placement), home.placement.read_bytes()
    assert len(first.groups_of("twin")) == 2
    again = place("--from", str(home.placement), path=drifting("twin"))
    assert "it stays" in again and home.placement.read_bytes() == content
    brief = place("--from", str(home.placement), "--window", "1s", path=drifting("acme/topic"))
    assert "less than 2 times the cost: the placement stays" in brief and home.placement.read_bytes() == content
    tried = place("--from", str(home.placement), "--dry-run", path=drifting("acme/topic"))
    assert "the placement changes" in tried and "14.7 s each" in tried and home.placement.read_bytes() == content
    as_json = json.loads(place("--from", str(home.placement), "--json", path=drifting("acme/topic")))
    made = read_plan(home.placement)
    assert made.change is not None and len(made.change.steps) == len(as_json["change"]["steps"]) == 1
    assert len(made.groups_of("tiny")) == 2
    assert set(made.change.steps[0].after(first.groups)) == set(made.groups)


def test_placements_of_something_else_are_rejected(place: Run, home: Home, tmp_path: Path) -> None:
    assert "say what there is with --devices" in place()
    place("--devices", "4x16GB")
    plan = tmp_path / "placement.json"
    plan.write_bytes(home.placement.read_bytes())
    said = place("--from", str(plan), "--devices", "4x24GB,2x16GB@beta")
    assert "the plan has 4 devices of 15,000,000,000 bytes on localhost, and --devices less --reserve " in said
    assert "4 devices of 23,000,000,000 bytes on localhost, 2 devices of 15,000,000,000 bytes on beta;" in said
    assert "--reserve goes with --devices" in place("--from", str(plan), "--reserve", "3GB")
    assert "no time gains nothing" in place("--from", str(plan), "--window", "0")
    write_json(plan, {**plan_to_json(read_plan(home.placement)), "format_version": 2})
    assert "format version 2; this release reads up to 1" in place("--from", str(plan))
    plan.write_text("{}")
    assert f"{plan} is no plan of hplm place" in place("--from", str(plan))
    assert "none.json: No such file" in place("--from", str(tmp_path / "none.json"))
    write_plan(plan, replace(read_plan(home.placement), roots={"tiny": "elsewhere", "twin": "elsewhere"}))
    assert "made for another root 'tiny'" in place("--from", str(plan))
