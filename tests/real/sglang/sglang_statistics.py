"""Windows of an engine that counts, and what SGLang itself returns of their requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from driven import begin
from sglang_scenarios import generate

import stepprof

COUNTED = ("prompt_tokens", "completion_tokens", "num_retractions")


def counted(engine: Any, folder: Path, steps: dict[int, tuple[int, int]]) -> dict[int, list[int]]:
    """Generate so many tokens for so many prompts in each step; return the sums of what SGLang returns of its requests."""
    begin(folder, engine_stop_timeout_seconds=150, rollout={"engine": {"max_iterations": "none"}})
    stepprof.attach(engine, role="rollout")
    found = {}
    for step, (tokens, prompts) in steps.items():
        asked = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        with stepprof.profile_step(step, role="rollout"):
            answers = engine.generate(["abc"] * prompts, asked)
        generate(engine, 2)  # which is not of the window
        found[step] = [sum(answer["meta_info"][name] for answer in answers) for name in COUNTED]
    stepprof.shutdown()
    return found
