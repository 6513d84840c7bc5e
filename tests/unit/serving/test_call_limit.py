import json

import pytest

from backends.call_limit import CallLimit


@pytest.mark.parametrize(("num_rows", "was_full"), [(0, False), (31, False), (32, True), (64, True)])
def test_half_a_call_is_taken_for_a_full_one(num_rows: int, was_full: bool) -> None:
    limit = CallLimit.from_triton({"model_config": json.dumps({"max_batch_size": 64})})
    assert limit.was_call_full(num_rows) == was_full
