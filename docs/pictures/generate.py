"""Draws the pictures of the documents as SVG: `make pictures`."""

from __future__ import annotations

import sys
from pathlib import Path

from idea import idea
from peers import peers
from request import request
from structure import structure
from tenants import tenants

PICTURES = {"idea": idea, "peers": peers, "request": request, "structure": structure, "tenants": tenants}


def main(folder: Path) -> None:
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
