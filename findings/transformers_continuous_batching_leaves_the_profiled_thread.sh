#!/usr/bin/env bash
# transformers 5.24.0, torch 2.13.0: one model generates with `generate` and with `generate_batch` (continuous batching), each inside `torch.profiler`.
# Guess:   both calls block until the tokens are there, so both profiles have the model's operators.
# Seen:    the profile of `generate` has 60 linear layers; that of `generate_batch` has none. The batch is computed in a thread that the call starts,
#          and the profiler records the thread that began it. With `profile_all_threads=True` (experimental) the linear layers are there.
# Matters: rollouts of TRL and others can use `generate_batch`. Their profile shows a rollout in which the host and, without a device, everything is idle.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 transformers==5.24.0 numpy
cat >job.py <<'PY'
import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=128, **shape)).eval()
settings = GenerationConfig(max_new_tokens=4, min_new_tokens=4, do_sample=False, eos_token_id=63, pad_token_id=0)
prompts = [[1, 2, 3], [4, 5, 6, 7]]


def generate():
    return len(model.generate(torch.tensor([prompts[0]]), generation_config=settings)[0]) - len(prompts[0])


def generate_batch():
    made = model.generate_batch(prompts, generation_config=settings)
    return min(len(each.generated_tokens) for each in made.values())


def recorded(work, everywhere=False):
    with profile(activities=[ProfilerActivity.CPU], experimental_config=_ExperimentalConfig(profile_all_threads=everywhere)) as profiler:
        tokens = work()
    linear = sum(event.count for event in profiler.key_averages() if event.key == "aten::linear")
    print(f"{work.__name__}, all threads: {everywhere}: {tokens} new tokens, {linear} linear layers")
    return tokens, linear


assert recorded(generate) == (4, 60)
assert recorded(generate_batch) == (4, 0)
tokens, linear = recorded(generate_batch, everywhere=True)
assert tokens == 4 and linear > 0
print("as stated")
PY
env/bin/python job.py 2>errors.txt || { cat errors.txt; exit 1; }
