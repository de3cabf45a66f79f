"""Say whose code a stack is in: the job's own, a library's, or that of torch's compiler."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from types import CodeType

from stepprof.recording.evidence.stacks import Stack

_PACKAGE = str(Path(__file__).parents[2])
_EXAMPLES = str(Path(_PACKAGE, "examples"))
_LIBRARY = sysconfig.get_path("stdlib")
_SCRIPTS = f"{sysconfig.get_path('scripts')}/"
_INSTALLED = {"site-packages", "dist-packages"}
_LAUNCHERS = {"ray", "torch", "accelerate", "cloudpickle"}
"""Installed packages that start the code of others, and are not the job themselves."""
_TYPED = ("<string>", "<stdin>", "<python-input")
"""Files of code that has none, of `python -c` and of an interactive interpreter. Libraries compile code by the same names."""
_CELLS = ("<ipython-input", "<ipykernel")
_COMPILER = (
    *("torch/_dynamo/convert_frame.py", "torch/_dynamo/symbolic_convert.py"),
    *("torch/_subclasses/fake_tensor.py", "torch/fx/experimental/proxy_tensor.py"),
    *(f"torch/_inductor/{name}.py" for name in ("graph", "scheduler", "async_compile")),
)
"""Modules of torch.compile that do nothing when a function that is compiled already is called (torch 2.13).

Calls of compiled functions pass through `eval_frame`, `runtime_wrappers` and `output_code`.
"""


def own_frames(stack: Stack) -> list[bool]:
    """Return for each frame whether it is the job's own code.

    That is code which is neither installed nor of the standard library. A stack without any has the job's code in an
    installed package, the one that its outermost frame is in, or else in an installed script.
    """
    found = [_is_own(code) for code, *_ in stack]
    if not any(found):
        packages = [_package(code.co_filename) for code, *_ in stack]
        outermost = next((package for package in reversed(packages) if package), None)
        found = [package is not None and package == outermost for package in packages]
    return found if any(found) else [code.co_filename.startswith(_SCRIPTS) for code, *_ in stack]


def library_calls(
    stack: Stack, own: Sequence[bool], name_of: Callable[[CodeType, int], str | None]
) -> Iterator[tuple[str | None, str]]:
    """Yield the calls that frames of the job make, the innermost first, other than that of the innermost frame.

    A call of the job's own functions is left out. It has its name as the source writes it, and the file of the library's
    function; "" if that is a function in C, which has called a function of the job.
    """
    for at in range(1, len(stack)):
        if not own[at]:
            continue
        (code, _, instruction), callee = stack[at], stack[at - 1][0]
        name = name_of(code, instruction)
        if not own[at - 1]:
            yield name, PurePath(callee.co_filename).name
        elif name is not None and name.rpartition(".")[2] != callee.co_name:
            yield name, ""


def is_compiling(stack: Stack) -> bool:
    """Return whether torch.compile works on a function, or waits for its C++ or Triton compiler."""
    return any(_is_compiler(code.co_filename) for code, *_ in stack)


def is_stepprof(file: str) -> bool:
    """Return whether a file is of stepprof, and not one of its examples."""
    return file.startswith(_PACKAGE) and not file.startswith(_EXAMPLES)


def _is_own(code: CodeType) -> bool:
    """Return whether code is neither installed nor of the standard library."""
    file = code.co_filename
    if file.startswith(_TYPED):  # a dataclass has such functions too
        return getattr(sys.modules.get("__main__"), "__file__", None) is None and "__create_fn__" not in str(
            getattr(code, "co_qualname", "")
        )
    return _is_own_file(file)


@lru_cache(maxsize=10_000)
def _is_own_file(file: str) -> bool:
    if file.startswith("<"):
        return file.startswith(_CELLS)
    installed = file.startswith((_LIBRARY, _SCRIPTS)) or _INSTALLED.intersection(PurePath(file).parts)
    return not installed and not is_stepprof(file)


@lru_cache(maxsize=10_000)
def _package(file: str) -> str | None:
    """Return the installed package of a file; None: it is in none, or in one that starts the code of others."""
    parts = PurePath(file).parts
    at = next((at for at, part in enumerate(parts[:-1]) if part in _INSTALLED), None)
    if at is None or parts[at + 1] in _LAUNCHERS:
        return None
    return str(PurePath(*parts[: at + 2]))


@lru_cache(maxsize=10_000)
def _is_compiler(file: str) -> bool:
    return PurePath(file).as_posix().endswith(_COMPILER)
