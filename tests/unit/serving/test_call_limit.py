import json

import pytest

from backends.call_limit import CallLimit


@pytest.mark.parametrize(("num_rows", "may_leave_more"), [(0, False), (31, False), (32, True), (64, True)])
def test_half_a_call_is_taken_for_a_full_one(num_rows: int, may_leave_more: bool) -> None:
    limit = CallLimit.from_triton({"model_config": json.dumps({"max_batch_size": 64})})
    assert limit.may_leave_more(num_rows) == may_leave_more
