from __future__ import annotations

import pytest

from demo.harvest import Harvest, harvest
from demo.tasks import DemoTask, demo_tasks


@pytest.fixture(scope="session")
def installed_harvest() -> Harvest:
    return harvest(workers=2)


@pytest.fixture(scope="session")
def installed_tasks(installed_harvest: Harvest) -> list[DemoTask]:
    return demo_tasks(installed_harvest)
