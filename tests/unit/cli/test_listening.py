from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from backends.errors import InvalidArgumentError
from backends.home import Home
from cli.listening import require_guarded

PRIVATE = ("127.0.0.1", "127.8.9.10", "::1", "localhost")
PUBLIC = ("0.0.0.0", "::", "10.0.0.7", "192.168.1.2", "example.com", "localhost.example.com", "::ffff:10.0.0.7", "")


@pytest.mark.parametrize("address", PRIVATE)
def test_this_machine_may_go_without_tokens(address: str) -> None:
    require_guarded(address, asks_for_tokens=False, is_insecure=False)


@pytest.mark.parametrize("address", PUBLIC)
def test_others_need_tokens_or_a_word_of_the_operator(address: str) -> None:
    with pytest.raises(InvalidArgumentError, match="--insecure"):
        require_guarded(address, asks_for_tokens=False, is_insecure=False)
    require_guarded(address, asks_for_tokens=True, is_insecure=False)
    require_guarded(address, asks_for_tokens=False, is_insecure=True)


def test_the_command_rejects_before_it_makes_anything(tiny_home: Home) -> None:
    hplm = Path(sys.executable).with_name("hplm")
    command = [hplm, "serve", "--home", tiny_home.path, "--address", "0.0.0.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("hplm: on 0.0.0.0 others could ask every tenant's hPLMs")
    assert not tiny_home.repository.exists()
