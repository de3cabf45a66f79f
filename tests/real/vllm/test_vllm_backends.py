"""Pass the result of `engine_args` for each backend to the real `ProfilerConfig` of the installed vLLM,
which refuses unknown keys and conflicting options.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm.config import ProfilerConfig
from vllm.platforms import current_platform

from stepprof.errors import ConfigError
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
def test_vllm_accepts_the_profiler_configuration(
    options: dict[str, Any], profiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with CUDA, vLLM accepts the result and has the same settings."""
    monkeypatch.setattr(type(current_platform), "device_type", "cuda")
    config = ProfilerConfig(**engine_args(tmp_path, options)["profiler_config"])
    assert config.profiler == profiler
    assert config.max_iterations == options.get("max_iterations", 32 if profiler == "torch" else 0)
    assert config.ignore_frontend
    assert bool(config.torch_profiler_dir) == (profiler == "torch")


def test_a_profiler_that_this_machine_does_not_support(tmp_path: Path) -> None:
    """A profiler that would end vLLM's workers on this machine is refused before an engine is
    built.
    """
    with pytest.raises(ConfigError, match=r'options\.backend = "nsys": this vLLM runs on cpu') as caught:
        engine_args(tmp_path, {"backend": "nsys"})
    assert 'did you mean "torch"?' in str(caught.value)
