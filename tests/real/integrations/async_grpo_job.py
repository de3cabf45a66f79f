"""Run an asynchronous GRPO job of TRL on the CPU. A thread of this process makes the samples, and
an attention of torch replaces the GPU kernel that TRL loads.
"""

import hashlib
import json
import os
import queue
import types

import numpy as np
import torch
from datasets import Dataset
from grpo_job import small_model, tokenizer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, packing
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample


class Samples:
    """A rollout worker with ready samples that implements TRL's `RolloutWorkerProtocol`."""

    def __init__(self) -> None:
        self.rollout_buffer: queue.Queue = queue.Queue()
        self.metrics_queue: queue.Queue = queue.Queue()

    def start(self) -> None:
        rng = np.random.default_rng(0)
        for number in range(64):
            self.rollout_buffer.put(
                RolloutSample(
                    prompt=[],
                    completion=[],
                    input_ids=rng.integers(3, 15, 8),
                    completion_mask=np.array([0, 0, 0, 1, 1, 1, 1, 1]),
                    old_log_probs=np.full(8, -2.7, dtype=np.float32),
                    advantage=float(number % 3 - 1),
                    model_version=1,
                    group_id=number // 4,
                    metrics={"reward": 1.0},
                )
            )

    def stop(self) -> None: ...
    def update_model_version(self, model_version: int) -> None: ...
    def check_health(self, stale_after_s: float) -> None: ...


class NoTransfer:
    """A weight transfer without a server that implements TRL's `WeightTransferProtocol`."""

    def init_weight_transfer(self) -> None: ...
    def pause(self) -> None: ...
    def send_weights(self, iterator) -> None:
        for _ in iterator:
            pass

    def resume(self) -> None: ...
    def destroy(self) -> None: ...


def varlen(query, key, value, cu_q, cu_k, max_q, max_k, softmax_scale=None, **_):
    """Attend within each sequence, as FlashAttention's function of this name does."""
    parts = []
    for q0, q1, k0, k1 in zip(cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:], strict=True):
        q, k, v = (each.transpose(0, 1) for each in (query[q0:q1], key[k0:k1], value[k0:k1]))
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        parts.append(
            torch.nn.functional.scaled_dot_product_attention(
                q, k, v, mask, scale=softmax_scale, enable_gqa=True
            ).transpose(0, 1)
        )
    return torch.cat(parts)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    small_model().save_pretrained("model")
    torch.cuda.get_device_name = lambda *_: "CPU"  # TRL looks up its peak speed
    packing._flash_attn = lambda: types.SimpleNamespace(flash_attn_varlen_func=varlen)
    args = AsyncGRPOConfig(
        output_dir="out",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        max_steps=4,
        save_strategy="no",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        token_budget=0,
        max_staleness=100,
        dtype="float32",
        gradient_checkpointing=False,
    )
    trainer = AsyncGRPOTrainer(
        model="model",
        args=args,
        processing_class=tokenizer(),
        rollout_worker=Samples(),
        weight_transfer=NoTransfer(),
        train_dataset=Dataset.from_list([{"prompt": "1+1="}] * 8),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
    )
    trainer.train()
    weights = b"".join(each.detach().numpy().tobytes() for each in trainer.model.parameters())
    rank = os.environ.get("RANK", "0")
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    with open(f"result-{rank}.json", "w") as file:  # noqa: PTH123 - as a user would
        json.dump({"losses": losses, "weights": hashlib.sha256(weights).hexdigest()}, file)


if __name__ == "__main__":
    main()
