from __future__ import annotations

import pytest

from backends.errors import (
    CorruptFileError,
    FileError,
    FingerprintMismatchError,
    FormatVersionError,
    InvalidArgumentError,
    presentable,
)

SECRET = "/srv/home/plots/tiny/rival-project@3/tri.values"


@pytest.mark.parametrize("kind", [CorruptFileError, FingerprintMismatchError, FormatVersionError])
def test_a_client_hears_what_is_wrong_and_the_log_where(
    kind: type[FileError], caplog: pytest.LogCaptureFixture
) -> None:
    shown = presentable(kind(f"{SECRET} cannot be used"), "the table of this hPLM is")
    assert str(shown) == f"the table of this hPLM is {kind.complaint}"
    assert shown.code == kind.code
    assert SECRET in caplog.text
    assert presentable(shown) is shown  # whoever passes it on changes nothing
    assert SECRET not in str(presentable(kind(SECRET)))


def test_what_is_wrong_with_the_request_is_said_in_full() -> None:
    error = InvalidArgumentError("TEXT is empty")
    assert presentable(error) is error
