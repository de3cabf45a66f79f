"""The three lines that a loop needs, around a small regression.

    python minimal.py

Step 2 is recorded: `stepprof ls` lists the run, `stepprof show --step 2` the recording.
"""

from __future__ import annotations

import torch
from torch import nn

import stepprof

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
inputs = torch.randn(256, 16)
targets = inputs.sum(dim=1, keepdim=True).sin()

stepprof.init({"steps": "2"})

for step in range(1, 6):
    with stepprof.profile_step(step):
        with stepprof.region("forward", batch=len(inputs)):  # optional: more detail
            loss = nn.functional.mse_loss(model(inputs), targets)
        with stepprof.region("backward"):
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
    print(f"step {step}  loss {loss.item():.3f}  {stepprof.state()}")
