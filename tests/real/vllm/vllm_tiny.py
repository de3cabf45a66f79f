"""Write a tiny model to a folder: two layers with random weights and a byte-level tokenizer. This
takes less than a second.

It is loaded with ``load_format="dummy"``, so there are no weights on disk. Every prompt gets some
answer, which is enough for a profiler.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": 257,
    "eos_token_id": 256,
    "pad_token_id": 256,
}


def model(folder: Path) -> str:
    """Write the model's configuration and its tokenizer, and return its path."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    for name in ("<|end|>", "<|begin|>"):
        vocabulary[name] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|begin|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|end|>",
                "bos_token": "<|begin|>",
                "model_max_length": 256,
            }
        )
    )
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def arguments(path: str, **more: Any) -> dict[str, Any]:
    """Return the arguments of an engine with this model for a machine with little memory and no
    device.
    """
    return {
        "model": path,
        "load_format": "dummy",
        "dtype": "float32",
        "max_model_len": 256,
        "max_num_seqs": 8,
        "enforce_eager": True,
        "gpu_memory_utilization": 0.1,
        "kv_cache_memory_bytes": 64 * 2**20,
        "seed": 0,
        **more,
    }
