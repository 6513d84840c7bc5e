"""The server's log: noise, and the reason of a failure in one line."""

import re
import subprocess
import sys
import threading

import pytest

from builder.serving.log import LogFollower, failure_reason, is_complaint, is_noise, last_lines

HEAD = "E1120 08:37:17.126063 4192 model_lifecycle.cc:642] "
TRACEBACK = (
    r'"failed to load \'m\' version 1: Internal: ValueError: no home\n\nAt:\n  /r/m/1/model.py(4): initialize\n"'
)
LOADED = "I1120 08:37:09.696884 4055 model_lifecycle.cc:839] \"successfully loaded 'echo'\""
TABLE = "| m     | 1       | UNAVAILABLE: Internal: ValueError: no home |"


def traceback_line(model: str) -> str:
    return HEAD + TRACEBACK.replace(r"\'m\'", f"'{model}'")


def test_a_model_that_does_not_load_is_named_with_its_error_and_place():
    lines = [LOADED, traceback_line("m"), TABLE, "error: creating server: Internal - failed to load all models"]
    assert failure_reason(lines) == "model 'm' did not load: ValueError: no home (at /r/m/1/model.py(4): initialize)"


@pytest.mark.parametrize(
    "words",
    [
        '"unable to create stream for hplm: CUDA driver version is insufficient for CUDA runtime version"',
        '"failed to allocate pinned system memory: no pinned memory pool, falling back to non-pinned system memory"',
    ],
)
def test_lines_of_every_machine_without_a_gpu_do_not_reach_the_screen(words: str) -> None:
    assert is_noise(f"{HEAD}{words}")
    assert not is_noise(f'{HEAD}"failed to allocate pinned system memory: out of memory"')


def test_two_models_are_both_named_and_repetitions_are_not():
    reason = failure_reason([traceback_line("a"), traceback_line("a"), traceback_line("b")])
    assert reason.count("did not load") == 2
    assert "'a'" in reason
    assert "'b'" in reason


@pytest.mark.parametrize(
    "line",
    [
        "stub: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file",
        "error: creating server: Invalid argument - no models",
        "tritonserver: unrecognized option '--no-such'",
    ],
)
def test_other_failures_give_the_line_that_tells_them(line):
    reason = failure_reason([LOADED, "Error: Failed to initialize NVML", line, TABLE])
    assert reason in line
    assert "\n" not in reason
    assert len(reason) > 30


def test_a_server_that_aborts_gives_its_last_words_and_not_where_in_memory_it_was() -> None:
    before = ["backends.errors: CorruptFileError: weights.safetensors is damaged", LOADED]
    words, frames = "terminate called after throwing an instance of 'lock_exception'", [" 0# 0x00005625 in /triton"]
    assert failure_reason([*before, words, *frames]) == words
    assert failure_reason(["Signal (6) received.", " 0# 0x00005625 in /triton", "22# abort in libc.so.6"]) == (
        "Signal (6) received."
    )


def test_the_end_of_a_log_is_what_went_wrong() -> None:
    told = [f'I1130 08:37:0{number}.698687 4055 server.cc:604] "Timeout {number}"' for number in range(9)]
    error = 'E1130 08:37:09.698687 4055 model_lifecycle.cc:642] "failed to load"'
    assert last_lines([error, *told]) == [error]
    assert last_lines(told) == told


def test_an_unknown_failure_gives_the_last_lines():
    assert failure_reason(["one", "two", "", "three", TABLE, "four"]) == "two; three; four"
    assert failure_reason([]) == "it wrote no log"


def test_a_very_long_reason_is_cut():
    assert len(failure_reason(["x" * 10_000])) <= 400


def test_noise_is_what_a_machine_without_gpu_prints_and_nothing_else():
    assert is_noise("Error: Failed to initialize NVML")
    assert is_noise('W1120 08:37:09.698687 4055 metrics.cc:798] "DCGM unable to start: DCGM initialization error"')
    assert not is_noise(LOADED)
    assert not is_noise('W1120 x pinned memory pool will not be available: out of memory"')


def test_the_follower_reads_what_is_appended_and_only_that(tmp_path):
    path = tmp_path / "server.log"
    path.write_text("of an earlier server\n")
    seen: list[str] = []
    arrived = threading.Event()

    def take(line: str) -> None:
        seen.append(line)
        arrived.set()

    follower = LogFollower(path, take)
    with path.open("a") as log:
        log.write("first\nsec")
        log.flush()
        assert arrived.wait(30)
        log.write("ond\nError: Failed to initialize NVML\nlast\n")
    follower.finish()
    assert seen == ["first", "second", "last"]
    assert follower.lines == ["first", "second", "Error: Failed to initialize NVML", "last"]


def test_complaints_of_triton_and_of_the_models_are_told_from_the_rest() -> None:
    complaints = [
        'E1120 08:37:09.698687 4055 model.cc:1] "failed to load"',
        "2026-11-27 01:21:02.096 hplm_lower_0_1: ERROR backends.lower.service: domain mini/shop: a table is damaged",
        "2026-11-27 01:21:02.096 hplm_upper_0_0: WARNING hplm_upper: there is no deadline batcher",
    ]
    assert all(map(is_complaint, complaints))
    others = [
        "2026-11-27 01:21:02.096 hplm_lower_0_0: INFO hplm_lower: open",
        "an ERROR backends.x: inside",
        "| ERROR |",
    ]
    assert not any(map(is_complaint, [LOADED, *others]))


def test_lines_of_a_model_say_when_and_of_which_process() -> None:
    code = "import logging; from backends.logs import configure_logging; configure_logging('hplm_lower_0_1');"
    code += "logging.getLogger('backends.x').warning('the registry is back')"
    written = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} hplm_lower_0_1: WARNING backends.x: the registry is back\n", written
    )
    assert is_complaint(written)


def test_the_last_lines_are_without_tables_and_shortened() -> None:
    lines = [*(f"line {number}" for number in range(30)), "| model | READY |", "", "x" * 1_000]
    shown = last_lines(lines)
    assert shown[:-1] == [f"line {number}" for number in range(16, 30)]
    assert len(shown[-1]) == 400
