"""Provide a model that fits everywhere, and the settings with which SGLang runs it on a CPU.

It has two layers, a vocabulary of 512 bytes and merges, and no weights on disk. An engine starts in
half a minute and takes 1.4 GB, nearly all of it Python.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

STUBS = Path(__file__).parent / "stubs"
HELPERS = Path(__file__).parents[2] / "helpers"

ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
"""Variables that have to be set before SGLang is imported. Its children are spawned, so the stubs
have to be on PYTHONPATH.
"""

ENGINE: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_radix_cache": True,
    "load_format": "dummy",
    "grammar_backend": "none",
    "disable_cuda_graph": True,
    "mem_fraction_static": 0.5,
    "max_total_tokens": 2048,
    "max_running_requests": 8,
    "context_length": 512,
    "log_level": "error",
}
"""The arguments of a tiny engine."""


def variables() -> dict[str, str]:
    """Return the environment variables of a process that runs SGLang here and imports the helpers
    of the tests.
    """
    paths = [str(STUBS), str(HELPERS), os.environ.get("PYTHONPATH", "")]
    return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def make_model(folder: Path) -> str:
    """Write the configuration and the tokenizer of the model, and return its path."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|endoftext|>": 0, **{letter: number for number, letter in enumerate(alphabet, start=1)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": 512,
        },
    )
    _write(
        folder / "config.json",
        {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "vocab_size": 512,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "torch_dtype": "float32",
        },
    )
    return str(folder)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1))
