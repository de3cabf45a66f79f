#!/usr/bin/env bash
# torch 2.13.0: `torch.utils.flop_counter.FlopCounterMode`, which Lightning's `measure_flops` and many MFU figures use.
# Guess:   it counts the multiplications of a model alike on every device, and in training and evaluation alike.
# Seen:    `scaled_dot_product_attention` on a CPU counts as 0, with a mask and with its backward too; on the device `meta`, or with the backend MATH, it counts
#          in full. `MultiheadAttention` and `TransformerEncoderLayer` in evaluation without gradients count as 0 as a whole (their fused path is one
#          operator that no formula knows): 17,956,864 in training, 0 in evaluation, and 17,956,864 in both on `meta`. An LSTM is 0. There is no warning.
# Matters: an MFU whose FLOPs were counted in a dry run on a CPU leaves attention out, which is most of a long sequence; count on `meta`.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 numpy
cat >count.py <<'PY'
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention
from torch.utils.flop_counter import FlopCounterMode


def count(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def of_attention(device, **options):
    q = torch.randn(1, 8, 16, 32, device=device, requires_grad=True)
    return count(lambda: attention(q, q, q, **options)), count(lambda: attention(q, q, q, **options).sum().backward())


def of_encoder(device, training):
    layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True, device=device).train(training)
    with torch.no_grad():
        return count(lambda: layer(torch.randn(2, 16, 64, device=device)))


cpu, masked, meta = of_attention("cpu"), of_attention("cpu", attn_mask=torch.zeros(16, 16)), of_attention("meta")
with sdpa_kernel(SDPBackend.MATH):
    plain = of_attention("cpu")
print("attention, forward and with its backward: CPU", cpu, "with a mask", masked, "MATH on the CPU", plain, "meta", meta)
encoder = {(device, training): of_encoder(device, training) for device in ("cpu", "meta") for training in (True, False)}
print("encoder layer by (device, training):", encoder)
lstm = torch.nn.LSTM(64, 64)
recurrent = count(lambda: lstm(torch.randn(8, 2, 64)))
print("LSTM:", recurrent)
assert cpu == masked == (0, 0)
assert plain == meta == (2 * 2 * 8 * 16 * 16 * 32, 3 * 2 * 2 * 8 * 16 * 16 * 32)
assert encoder["cpu", False] == 0
assert encoder["cpu", True] == encoder["meta", True] == encoder["meta", False] == 17_956_864
assert recurrent == 0
PY
env/bin/python count.py 2>/dev/null
