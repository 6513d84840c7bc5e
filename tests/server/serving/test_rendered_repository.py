"""The rendered configurations in a real Triton, with toy code in the place of the models'."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton

from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.serving import ServerConfig, TritonServer
from seeds import SEED

pytestmark = pytest.mark.server

# The hidden size is the length of MODEL, the number of tokens of a row the length of TEXT.
LOWER = """
import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


def fold(request):
    model, text = (pb_utils.get_input_tensor_by_name(request, name).as_numpy()[:, 0] for name in ("MODEL", "TEXT"))
    lengths = np.array([len(each) for each in text], dtype=np.int64)
    rows = np.zeros((len(text) * -(-lengths.sum() // len(text)), len(model[0])), dtype=np.float16)
    rows[: lengths.sum()] = np.repeat(lengths, lengths)[:, None]
    hidden = pb_utils.Tensor("HIDDEN", rows.reshape(len(text), -1, len(model[0])))
    ticket = np.stack([lengths] * (1 + lengths[0] % 3), axis=1)
    words = pb_utils.Tensor("WORDS", lengths.astype(np.uint8)[:, None])
    return pb_utils.InferenceResponse([hidden, pb_utils.Tensor("TICKET", ticket), words])


class TritonPythonModel:
    def execute(self, requests):
        return [fold(request) for request in requests]
"""
UPPER = """
import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.home = Path(args["model_repository"]).parent / parameters["home"]["string_value"]
        self.word = parameters["word"]["string_value"] + (self.home / "word").read_text()

    def execute(self, requests):
        return [self.answer(request, len(requests)) for request in requests]

    def answer(self, request, num_requests):
        hidden = pb_utils.get_input_tensor_by_name(request, "HIDDEN").as_numpy()
        lengths = pb_utils.get_input_tensor_by_name(request, "TICKET").as_numpy()[:, 0]
        words = pb_utils.get_input_tensor_by_name(request, "WORDS").as_numpy()[:, 0]
        assert list(words) == list(lengths)
        rows = hidden.reshape(-1, hidden.shape[-1])
        sums = np.add.reduceat(rows[:, 0].astype(np.int64), np.cumsum(lengths) - lengths)
        answers = [f"{self.word} {hidden.shape[-1]} {total}" for total in sums]
        return pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.array(answers, dtype=object)[:, None])])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rendered")
    for name, code in (("hplm_lower", LOWER), ("hplm_upper", UPPER)):
        version = folder / "code" / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(code)
    home = folder / "home"
    home.mkdir()
    (home / "word").write_text("there")
    settings = ExportSettings(max_batch_size=16, mode="triton", upper_parameters={"word": "hello "})
    render_repository(home / "repository", settings, folder / "code")
    with TritonServer(ServerConfig(repository=home / "repository")) as running:
        yield running


def column(name: str, values: list[str]) -> triton.InferInput:
    tensor = triton.InferInput(name, [len(values), 1], "BYTES")
    tensor.set_data_from_numpy(np.array(values, dtype=object)[:, None])
    return tensor


def test_requests_of_any_batch_length_and_hidden_size_share_the_server(server):
    source = np.random.default_rng(SEED)
    with triton.InferenceServerClient(server.grpc_url) as client, ThreadPoolExecutor(16) as threads:

        def ask(number: int) -> tuple[list[str], list[str]]:
            num_rows, hidden_size = int(source.integers(1, 17)), int(source.integers(1, 40))
            lengths = source.integers(1, 200, size=num_rows)
            inputs = [column("MODEL", ["m" * hidden_size] * num_rows), column("TEXT", ["t" * n for n in lengths])]
            answers = client.infer("hplm", inputs).as_numpy("RESULT")
            assert answers.shape == (num_rows, 1)
            return [each.decode() for each in answers[:, 0]], [f"hello there {hidden_size} {n * n}" for n in lengths]

        for found, expected in threads.map(ask, range(200)):
            assert found == expected
        statistics = client.get_inference_statistics("hplm_upper").model_stats[0]
    assert statistics.inference_stats.success.count == 200
    assert statistics.execution_count < 200  # requests of different shapes were handed over together


@pytest.mark.parametrize(("num_models", "num_texts", "words"), [(2, 3, "batch"), (17, 17, r"\[16\]|<= 16|batch-size")])
def test_batches_that_do_not_fit_are_refused(server, num_models, num_texts, words):
    with triton.InferenceServerClient(server.grpc_url) as client:
        inputs = [column("MODEL", ["m"] * num_models), column("TEXT", ["t"] * num_texts)]
        with pytest.raises(triton.InferenceServerException, match=words):
            client.infer("hplm", inputs)
