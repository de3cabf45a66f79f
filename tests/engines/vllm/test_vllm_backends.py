"""What `engine_args` builds for each backend, taken by the real `ProfilerConfig` of the installed vLLM: it refuses what it does not know, and what does not go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm.config import ProfilerConfig

from stepprof.remote.vllm import engine_args


@pytest.mark.parametrize(
    ("options", "profiler"),
    [
        ({}, "torch"),
        ({"backend": "npu"}, "torch"),
        ({"backend": "nsys"}, "cuda"),
        ({"backend": "nsys", "max_iterations": 3, "with_stack": True}, "cuda"),
    ],
)
def test_vllm_takes_it(options: dict[str, Any], profiler: str, tmp_path: Path) -> None:
    """And means the same by it."""
    config = ProfilerConfig(**engine_args(tmp_path, options)["profiler_config"])
    assert config.profiler == profiler
    assert config.max_iterations == options.get("max_iterations", 0)
    assert config.ignore_frontend
    assert bool(config.torch_profiler_dir) == (profiler == "torch")
