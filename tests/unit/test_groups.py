"""Tests that share what takes long to make stay on one worker of pytest-xdist."""

from __future__ import annotations

import os

import pytest


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="there are no workers")
def test_the_workers_know_the_groups(request: pytest.FixtureRequest) -> None:
    """Without its group at the end of a test's name, pytest-xdist hands the test to any worker, and says nothing."""
    assert request.node.nodeid.endswith(f"@{request.path}")
