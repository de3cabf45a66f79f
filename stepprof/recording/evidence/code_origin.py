"""Say whose code a stack is in: the job's own, or that of torch's compiler."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from functools import lru_cache
from pathlib import PurePath
from types import CodeType

_LIBRARY = sysconfig.get_path("stdlib")
_INSTALLED = {"site-packages", "dist-packages"}
_COMPILER = (
    *("torch/_dynamo/convert_frame.py", "torch/_dynamo/symbolic_convert.py"),
    *("torch/_subclasses/fake_tensor.py", "torch/fx/experimental/proxy_tensor.py"),
    *(f"torch/_inductor/{name}.py" for name in ("graph", "scheduler", "async_compile")),
)
"""Modules of torch.compile that do nothing when a function that is compiled already is called (torch 2.13).

Calls of compiled functions pass through `eval_frame`, `runtime_wrappers` and `output_code`.
"""


def caller_of(stack: Iterable[tuple[CodeType, int]]) -> tuple[CodeType, int] | None:
    """Return the innermost frame of a file that is neither installed nor of the standard library; None: the stack has none."""
    return next((frame for frame in stack if is_own(frame[0].co_filename)), None)


def is_compiling(stack: Iterable[tuple[CodeType, int]]) -> bool:
    """Return whether torch.compile works on a function, or waits for its C++ or Triton compiler."""
    return any(_is_compiler(code.co_filename) for code, _ in stack)


@lru_cache(maxsize=10_000)
def is_own(file: str) -> bool:
    """Return whether a file is neither installed nor of the standard library."""
    return not (file.startswith(("<", _LIBRARY)) or _INSTALLED.intersection(PurePath(file).parts))


@lru_cache(maxsize=10_000)
def _is_compiler(file: str) -> bool:
    return PurePath(file).as_posix().endswith(_COMPILER)
