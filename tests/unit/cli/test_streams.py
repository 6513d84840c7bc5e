"""Commands print in any locale."""

from __future__ import annotations

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
