"""Where a client takes its token from."""

from __future__ import annotations

from pathlib import Path

import pytest

from hplm_client import InvalidRequestError, environment


def test_the_environment_names_a_token_or_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.TOKEN_VARIABLE, raising=False)
    assert environment.token() is None
    file = tmp_path / "acme.token"
    file.write_text("from-file\n")
    monkeypatch.setenv(environment.TOKEN_FILE_VARIABLE, str(file))
    assert environment.token() == "from-file"
    monkeypatch.setenv(environment.TOKEN_VARIABLE, "itself")
    assert environment.token() == "itself"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read: No such file or directory$"), (b" \n", "is empty"), (b"\xff", "cannot be read")],
)
def test_files_without_a_token_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, message: str
) -> None:
    file = tmp_path / "acme.token"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.delenv(environment.TOKEN_VARIABLE, raising=False)
    monkeypatch.setenv(environment.TOKEN_FILE_VARIABLE, str(file))
    with pytest.raises(InvalidRequestError, match=message):
        environment.token()
