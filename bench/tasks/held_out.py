"""The texts that the demo keeps out of everything that it builds."""

from __future__ import annotations

import json

from backends.errors import NotFoundError
from backends.home import Home


def held_out_texts(home: Home, hplm: str) -> list[str]:
    path = home.path / "texts" / hplm / "test.jsonl"
    if not path.exists():
        raise NotFoundError(f"{path} does not exist; 'make demo' builds a home with held-out texts")
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]
