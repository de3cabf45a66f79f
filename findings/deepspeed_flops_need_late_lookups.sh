#!/usr/bin/env bash
# DeepSpeed 0.19.8 with torch 2.13.0: the FLOPs profiler (`flops_profiler` in the configuration, `get_model_profile`).
# Guess:   `linear(x, w)`, `F.linear(x, w)`, `torch.matmul(x, w)` and `x @ w` count alike, for they are one operator in the end.
# Seen:    it replaces attributes of `torch`, `torch.nn.functional` and `torch.Tensor` while it counts. A model whose file says `from torch.nn.functional import
#          linear`, or keeps the function in an attribute, has 0 FLOPs, without a word; `F.linear` and `@` count. `x + w` is 0 and `torch.add(x, w)` is not. `einsum`
#          counts its FLOPs (and 12 too many), but no MACs, so that the two columns of one table disagree.
# Matters: the number is a property of how a model's file imports, not of its work: two equal models differ by all of it.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 numpy deepspeed==0.19.8
cat >count.py <<'PY'
import torch
import torch.nn.functional as F
from deepspeed.profiling.flops_profiler import FlopsProfiler
from torch.nn.functional import linear


class Model(torch.nn.Module):
    def __init__(self, run):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 64))
        self.run = run

    def forward(self, x):
        return self.run(x, self.weight)


def count(run):
    profiler = FlopsProfiler(Model(run))
    profiler.start_profile()
    profiler.model(torch.randn(64, 64))
    found = profiler.get_total_flops(), profiler.get_total_macs()
    profiler.end_profile()
    return found


ways = {
    "linear, imported by name": lambda x, w: linear(x, w),
    "F.linear": lambda x, w: F.linear(x, w),
    "torch.mm, kept in an attribute": torch.mm,
    "torch.mm": lambda x, w: torch.mm(x, w),
    "@": lambda x, w: x @ w,
    "einsum": lambda x, w: torch.einsum("ij,jk->ik", x, w),
    "+": lambda x, w: x + w,
    "torch.add": lambda x, w: torch.add(x, w),
}
found = {name: count(way) for name, way in ways.items()}
for name, (flops, macs) in found.items():
    print(f"SEEN {name:32} {flops:>8} FLOPs {macs:>8} MACs")
one = 2 * 64**3
assert found["linear, imported by name"] == found["torch.mm, kept in an attribute"] == (0, 0)
assert found["F.linear"] == found["torch.mm"] == found["@"] == (one, one // 2)
assert found["einsum"] == (one + 12, 0)
assert found["+"] == (0, 0) and found["torch.add"][0] > 0
PY
env/bin/python count.py 2>log.txt >out.txt || { cat log.txt out.txt; exit 1; }
grep SEEN out.txt
