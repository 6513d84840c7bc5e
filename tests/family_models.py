"""Small random models of every family, as Hugging Face folders with a tokenizer each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertModel,
    CamembertConfig,
    CamembertModel,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    PretrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from bench.kit.tiny_home import sample_texts, write_tiny_bert

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 48,
    "initializer_range": 0.2,
}
DISTILBERT_SIZES = {"dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 48}
ROBERTA_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]

Build = Callable[[int], PreTrainedModel]


def _random(model: Callable[[PretrainedConfig], PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    """With all weights random; LayerNorms and biases would otherwise start as if they were not there."""
    built = model(config)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return built


FAMILY_MODELS: dict[str, Build] = {
    "bert": lambda vocab: _random(BertModel, BertConfig(vocab_size=vocab, **SIZES)),
    "roberta": lambda vocab: _random(
        RobertaModel, RobertaConfig(vocab_size=vocab, type_vocab_size=1, layer_norm_eps=1e-5, **SIZES)
    ),
    "xlm-roberta": lambda vocab: _random(
        XLMRobertaModel, XLMRobertaConfig(vocab_size=vocab, type_vocab_size=1, **SIZES)
    ),
    "camembert": lambda vocab: _random(CamembertModel, CamembertConfig(vocab_size=vocab, type_vocab_size=1, **SIZES)),
    "electra": lambda vocab: _random(ElectraModel, ElectraConfig(vocab_size=vocab, embedding_size=32, **SIZES)),
    "electra-small": lambda vocab: _random(ElectraModel, ElectraConfig(vocab_size=vocab, embedding_size=16, **SIZES)),
    "distilbert": lambda vocab: _random(DistilBertModel, DistilBertConfig(vocab_size=vocab, **DISTILBERT_SIZES)),
}
ROBERTA_LIKE = ("roberta", "xlm-roberta", "camembert")


def write_family_model(folder: Path, family: str, seed: int = 3) -> Path:
    """A folder whose tokenizer is of the kind that the family uses."""
    if family not in ROBERTA_LIKE:
        write_tiny_bert(folder)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    else:
        tokenizer = byte_level_tokenizer()
        folder.mkdir(parents=True)
        tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(seed)
    FAMILY_MODELS[family](tokenizer.get_vocab_size()).save_pretrained(folder)
    return folder


def byte_level_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=ROBERTA_SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([text.text for text in sample_texts(500, seed=5)], trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer
