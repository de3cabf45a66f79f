"""Describe the job for `run.json`: its command line, its versions and its configuration."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

from stepprof.config.config import Config
from stepprof.host.command_line import command_line
from stepprof.host.git_commit import git_commit
from stepprof.instrument.context import cell

__all__ = ["describe"]

_PACKAGES = (
    "stepprof", "torch", "torch_npu", "ray", "vllm", "sglang", "transformers", "trl", "verl", "accelerate",
    "deepspeed", "lightning", "megatron", "openrlhf", "peft",
)  # fmt: skip


def describe(config: Config) -> dict[str, object]:
    """Return the description of the job for `run.json`. Only packages that are already imported have a version."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        found = getattr(sys.modules.get(name), "__version__", None)
        if found is not None:
            versions[name] = str(found)
    torch = sys.modules.get("torch")
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    if isinstance(cuda, str):
        versions["cuda"] = cuda
    return {
        "created_unix_ns": time.time_ns(),
        "command": _command(),
        "commit": _commit(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": versions,
        "adapters": dict(cell.adapters),
        "config": config.to_dict(),
    }


def _command() -> list[str] | None:
    """Return the command line; None in a worker of Ray: that is not the job's."""
    if Path(sys.argv[0] if sys.argv else "").name == "default_worker.py":
        return None
    return command_line(sys.orig_argv, os.environ)


def _commit() -> str | None:
    try:
        return git_commit(Path.cwd())
    except OSError:  # the working directory was removed
        return None
