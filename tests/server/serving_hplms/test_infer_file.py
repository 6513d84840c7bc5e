"""`hplm infer --file`: a line of JSON per text, and no text asked twice by a command that goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.answering import FileOfTexts
from hplm_client import HplmClient
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
    kept = {"text": wanted[0], "hplm": "acme/topic", "is": "kept"}
    out.write_text(json.dumps(kept) + "\n" + "".join(lines[1:200]) + lines[200][:20])
    assert infer(served, "--file", str(texts), "--out", str(out)).returncode == 0
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert answers[0] == kept
    assert [answer["text"] for answer in answers] == wanted
    assert {answer["hplm"] for answer in answers} == {"acme/topic"}
    before = out.read_text()
    done = infer(served, "--file", str(texts), "--out", str(out))
    assert done.returncode == 0 and f"nothing was asked: {out} has all answers" in done.stderr
    assert out.read_text() == before


def test_texts_that_were_not_answered_are_asked_again(served: Served, tmp_path: Path) -> None:
    texts, out = tmp_path / "texts.txt", tmp_path / "answers.jsonl"
    wanted = [f"my cat number {number}" for number in range(600)]
    texts.write_text("".join(f"{text}\n" for text in wanted))
    kept = [{"text": text, "hplm": "acme/topic", "is": "kept"} for text in wanted[:500]]
    for number in (0, 255, 256, 499):
        kept[number] = {"text": wanted[number], "error": {"code": "UNAVAILABLE", "message": "the queue is full"}}
    out.write_text("".join(f"{json.dumps(line)}\n" for line in kept))
    done = infer(served, "--file", str(texts), "--out", str(out))
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [answer["text"] for answer in answers] == wanted
    assert [number for number, answer in enumerate(answers[:500]) if "is" not in answer] == [0, 255, 256, 499]
    assert all("label" in answer for answer in answers if "is" not in answer)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["answers.jsonl", "texts.txt"]


def test_an_interrupted_command_keeps_what_it_was_answered(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, out, link = tmp_path / "texts.txt", tmp_path / "answers.jsonl", tmp_path / "link.jsonl"
    wanted = [f"my cat number {number}" for number in range(700)]
    texts.write_text("".join(f"{text}\n" for text in wanted))
    error = {"code": "UNAVAILABLE", "message": "the queue is full"}
    before = [{"text": text, "error": error} for text in wanted]
    out.write_text("".join(f"{json.dumps(line)}\n" for line in before))
    out.chmod(0o600)
    link.symlink_to(out)
    with HplmClient(served.grpc_url) as client:
        infer_many, calls = client.infer_many, []

        def interrupted(*arguments: Any, **options: Any) -> Any:
            calls.append(arguments)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return infer_many(*arguments, **options)

        monkeypatch.setattr(client, "infer_many", interrupted)
        with pytest.raises(KeyboardInterrupt):
            FileOfTexts(client, "acme/topic", texts, None, None).answer(link)
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [answer["text"] for answer in answers] == wanted
    assert ["label" in answer for answer in answers] == [True] * 256 + [False] * 444 and answers[256:] == before[256:]
    assert link.is_symlink() and out.stat().st_mode & 0o777 == 0o600
    assert len(list(tmp_path.iterdir())) == 3


def test_texts_of_a_pipe_are_read_once(served: Served, tmp_path: Path) -> None:
    wanted = [f"my cat number {number}" for number in range(600)]
    given = "".join(f"{text}\n" for text in wanted)
    out = tmp_path / "answers.jsonl"
    out.touch()
    command = [HPLM, "infer", "acme/topic", "--url", f"grpc://{served.grpc_url}", "--file", "/dev/stdin", "--out", out]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["text"] for line in out.read_text().splitlines()] == wanted
    again = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert again.returncode == 2 and "is no file that can be read again" in again.stderr


def test_answers_to_other_texts_or_of_another_hplm_are_left_alone(served: Served, tmp_path: Path) -> None:
    texts, out = tmp_path / "texts.txt", tmp_path / "answers.jsonl"
    texts.write_text("my cat\nthe rain\n")
    for lines, told in (
        ([{"text": "my dog"}], "line 1 of {out} answers another text"),
        ([{"text": "my cat"}, {"text": "the rain"}, {"text": "more"}], "line 3 of {out} answers another text"),
        ([{"text": "my cat"}, {"text": "the rain", "hplm": "acme/other"}], "line 2 of {out} is of acme/other"),
    ):
        before = "".join(f"{json.dumps(line)}\n" for line in lines)
        out.write_text(before)
        done = infer(served, "--file", str(texts), "--out", str(out))
        assert done.returncode == 2 and told.format(out=out) in done.stderr
        assert out.read_text() == before


def test_errors_have_lines_too(served: Served, tmp_path: Path) -> None:
    texts, out = tmp_path / "texts.txt", tmp_path / "answers.jsonl"
    texts.write_text("\ufeffmy cat\n\nthe rain\n", encoding="utf-8")
    done = infer(served, "--file", str(texts))
    assert done.returncode == 2, "a blank line is no better next time"
    assert "1 text was not answered; its line has an error" in done.stderr
    assert json.loads(done.stdout.splitlines()[0])["text"] == "my cat"
    late = infer(served, "--file", str(texts), "--out", str(out), "--deadline", "1ms")
    assert late.returncode == 5 and "3 texts were not answered; their lines have an error, and the" in late.stderr
    again = infer(served, "--file", str(texts), "--out", str(out))
    assert again.returncode == 2 and again.stderr == "1 text was not answered; its line has an error\n"
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert ["error" in row for row in rows] == [False, True, False]
    assert rows[1]["error"]["code"] == "INVALID_ARG"


def test_a_line_that_is_not_utf_8_costs_no_other_its_answer(served: Served, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_bytes(b"my cat\n" * 300 + b"\xff\n" + b"the rain\n")
    done = infer(served, "--file", str(texts))
    assert done.returncode == 2
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [number for number, row in enumerate(rows, 1) if "error" in row] == [301]
    assert rows[300]["error"] == {"code": "INVALID_ARG", "message": "line 301 of texts.txt is not UTF-8"}


def test_another_file_is_left_alone(served: Served, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("my cat\n")
    done = infer(served, "--file", str(texts), "--out", str(texts))
    assert done.returncode == 2 and "holds no answers" in done.stderr
    assert texts.read_text() == "my cat\n"
