"""Run a GRPO job of TRL that generates with the real vLLM and does not mention stepprof.

Without an argument, vLLM runs in the job's process. The argument is the URL of a running server.
The weights of that server do not change, because TRL sends them by NCCL, which needs a GPU.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integrations"))

import torch
from datasets import Dataset
from grpo_job import digits, tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.generation.vllm_client import VLLMClient


def write_model(folder: str) -> None:
    """Write a model of two layers and its tokenizer. Its heads are as wide as vLLM's attention
    requires.
    """
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32}
    special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None, "tie_word_embeddings": False}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    Qwen2ForCausalLM(
        Qwen2Config(vocab_size=64, max_position_embeddings=64, **size, **heads, **special)
    ).save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def load_on_a_processor(trainer: GRPOTrainer) -> None:
    """Load new weights with vLLM's own `reload_weights`. vLLM packs the weights for the CPU, so
    that `load_weights` alone fails.
    """
    runner = trainer.vllm_generation.llm.llm_engine.model_executor.driver_worker.model_runner
    expected = sum(1 for _ in trainer.model.named_parameters())
    received: list[tuple[str, torch.Tensor]] = []

    def load_weights(weights: list[tuple[str, torch.Tensor]]) -> None:
        received.extend((name, each.clone()) for name, each in weights)
        if len(received) == expected:
            del runner.model.load_weights
            runner.reload_weights(weights_iterator=iter(received))
            runner.model.load_weights = load_weights
            received.clear()

    runner.model.load_weights = load_weights


def main(server: str | None = None) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if not os.path.exists("model"):  # noqa: PTH110 - as a user would
        write_model("model")
    where = {"vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.1, "vllm_max_model_length": 64}
    if server is not None:
        where = {"vllm_mode": "server", "vllm_server_base_url": server}
        VLLMClient.init_communicator = lambda self, device=0: None
        VLLMClient.update_named_params = lambda self, metadata, weights: [None for _ in weights]
    settings = GRPOConfig(
        output_dir="out",
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=4,
        num_generations=4,
        gradient_accumulation_steps=2,
        max_steps=3,
        max_completion_length=8,
        save_strategy="no",
        model_init_kwargs={"dtype": "float32"},
        use_vllm=True,
        **where,
    )
    trainer = GRPOTrainer(
        model="model",
        reward_funcs=digits,
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": f"{number}+{number}="} for number in range(10)]),
    )
    if server is None:
        load_on_a_processor(trainer)
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
