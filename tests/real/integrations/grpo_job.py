"""Run a GRPO job of TRL that does not mention stepprof, with a tiny model made here, on the CPU and
offline.
"""

import hashlib
import json
import os
import time

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer


def tokenizer() -> PreTrainedTokenizerFast:
    words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *"0123456789+="])}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    special["model_input_names"] = ["input_ids", "attention_mask"]  # transformers 4 adds token_type_ids
    return PreTrainedTokenizerFast(tokenizer_object=made, padding_side="left", **special)


def small_model(width: int = 32, layers: int = 2) -> Qwen2ForCausalLM:
    size = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    return Qwen2ForCausalLM(
        Qwen2Config(vocab_size=15, max_position_embeddings=64, **size, **heads, **special)
    )


def digits(completions: list[str], **_: object) -> list[float]:
    time.sleep(float(os.environ.get("REWARD_SECONDS", "0")))
    return [float(sum(letter.isdigit() for letter in text)) for text in completions]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    given = json.loads(os.environ.get("JOB_SETTINGS", "{}"))
    model = small_model(**given.pop("model", {}))
    settings = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_generations": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 4,
        "max_completion_length": 8,
        "save_strategy": "no",
        **given,
    }
    quiet = {"report_to": [], "disable_tqdm": True, "logging_steps": 1, "use_cpu": True}
    data = Dataset.from_list([{"prompt": f"{number}+{number}="} for number in range(10)])
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=digits,
        args=GRPOConfig(output_dir="out", **quiet, **settings),
        train_dataset=data,
        eval_dataset=data.select(range(2)),
        processing_class=tokenizer(),
    )
    trainer.train()
    weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    rank = os.environ.get("RANK", "0")
    with open(f"result-{rank}.json", "w") as file:  # noqa: PTH123 - as a user would
        json.dump({"losses": losses, "weights": hashlib.sha256(weights).hexdigest()}, file)


if __name__ == "__main__":
    main()
