"""Draws the pictures of the documents as SVG: `make pictures`."""

from __future__ import annotations

import sys
from pathlib import Path

from idea import idea
from ladders import ladders
from peers import peers
from request import request
from results import is_measured
from structure import structure
from tenants import tenants

PICTURES = {"idea": idea, "peers": peers, "request": request, "structure": structure, "tenants": tenants}


def main(folder: Path) -> None:
    pictures = {**PICTURES, "ladders": ladders} if is_measured("levels") else PICTURES
    for name, draw in pictures.items():
        (folder / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
