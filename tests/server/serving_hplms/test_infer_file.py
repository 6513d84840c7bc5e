"""`hplm infer --file`: a line of JSON per text, and no text asked twice by a command that goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from served_home import Served

pytestmark = pytest.mark.server
HPLM = str(Path(sys.executable).with_name("hplm"))


def infer(served: Served, *options: str) -> subprocess.CompletedProcess[str]:
    command = [HPLM, "infer", "acme/topic", "--url", f"grpc://{served.grpc_url}", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_answers_are_lines_in_the_order_of_the_texts(served: Served, tmp_path: Path) -> None:
    texts, out = tmp_path / "texts.txt", tmp_path / "answers.jsonl"
    wanted = [f"my cat number {number}" for number in range(300)]
    texts.write_text("".join(f"{text}\n" for text in wanted))
    done = infer(served, "--file", str(texts))
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == wanted
    lines = done.stdout.splitlines(keepends=True)
    out.write_text('{"text": "kept as it is"}\n' + "".join(lines[1:200]) + lines[200][:20])
    assert infer(served, "--file", str(texts), "--out", str(out)).returncode == 0
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert answers[0] == {"text": "kept as it is"}
    assert [answer["text"] for answer in answers[1:]] == wanted[1:]
    assert {answer["hplm"] for answer in answers[1:]} == {"acme/topic"}


def test_errors_have_lines_too(served: Served, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("my cat\n\nthe rain\n")
    done = infer(served, "--file", str(texts))
    assert done.returncode == 5
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert ["error" in row for row in rows] == [False, True, False]
    assert rows[1]["error"]["code"] == "INVALID_ARG"


def test_a_line_that_is_not_utf_8_costs_no_other_its_answer(served: Served, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_bytes(b"my cat\n" * 300 + b"\xff\n" + b"the rain\n")
    done = infer(served, "--file", str(texts))
    assert done.returncode == 5
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [number for number, row in enumerate(rows, 1) if "error" in row] == [301]
    assert rows[300]["error"] == {"code": "INVALID_ARG", "message": "line 301 of texts.txt is not UTF-8"}


def test_another_file_is_left_alone(served: Served, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("my cat\n")
    done = infer(served, "--file", str(texts), "--out", str(texts))
    assert done.returncode == 2 and "holds no answers" in done.stderr
    assert texts.read_text() == "my cat\n"
