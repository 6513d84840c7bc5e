"""Commands print in any locale."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

CODE = "from cli.streams import take_any_text; import sys; take_any_text(); print('└── é …', file={stream})"


@pytest.mark.parametrize("stream", ["sys.stdout", "sys.stderr"])
def test_what_the_encoding_lacks_is_a_question_mark(stream: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "iso-8859-1"}
    done = subprocess.run([sys.executable, "-c", CODE.format(stream=stream)], env=environment, capture_output=True)
    printed = done.stdout + done.stderr
    assert (done.returncode, printed.decode("iso-8859-1").strip()) == (0, "??? é ?")


def test_json_is_the_same_in_any_encoding() -> None:
    code = "from cli.options import print_json; from cli.streams import take_any_text; take_any_text(); "
    code += "print_json({'label': 'gr\u00f6\u00dfe\u2192'})"
    environment = {**os.environ, "PYTHONIOENCODING": "iso-8859-1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert json.loads(done.stdout.decode("iso-8859-1")) == {"label": "größe→"}
