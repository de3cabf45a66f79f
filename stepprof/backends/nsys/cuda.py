"""Call cudaProfilerStart and cudaProfilerStop, which mark a window for nsys.

The calls go through torch if torch uses CUDA already, else through libcudart itself:
``torch.cuda.cudart()`` would create a context on a device that the process may not use. torch is
never imported for them. Without a driver both return an error (35, libcudart 12.9 and 13.5) and
have no other effect.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepprof.errors import BackendError
from stepprof.interrupts import ignored, ours

_LOADER_NAMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")
_USUAL_HOME = "/usr/local/cuda"
_MAPPED = re.compile(r"\S*/libcudart[^/\s]*\.so[^/\s]*")


class CudaProfiler:
    """The two calls, from torch or libcudart. Any thread may make them: they apply to the process."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None

    def missing(self) -> str | None:
        """Return why the calls cannot be made here, or None."""
        if _torch_with_cuda() is not None or self._load() is not None:
            return None
        return (
            f"no libcudart was found (looked for: {', '.join(libraries(os.environ))}); "
            "pip install nvidia-cuda-runtime, or set CUDA_HOME"
        )

    def start(self) -> None:
        """Begin a range. Raises BackendError."""
        self._call("cudaProfilerStart")

    def stop(self) -> None:
        """End it. Raises BackendError."""
        self._call("cudaProfilerStop")

    def _call(self, name: str) -> None:
        missing = self.missing()
        if missing is not None:
            raise BackendError(missing)
        torch = _torch_with_cuda()
        code = int(getattr(self._library if torch is None else torch.cuda.cudart(), name)())
        if code and torch is None:
            raise BackendError(f"{name} answered {code} ({self._meaning(code)})")
        if code:
            raise BackendError(f"{name} answered {code}")

    def _load(self) -> ctypes.CDLL | None:
        for path in () if self._library else libraries(os.environ):
            with ignored(OSError):
                self._library = ctypes.CDLL(path)
                break
        return self._library

    def _meaning(self, code: int) -> str:
        ask = getattr(self._library, "cudaGetErrorString")  # noqa: B009 - a function of the library
        ask.restype, ask.argtypes = ctypes.c_char_p, (ctypes.c_int,)
        return str(ask(code) or b"", errors="replace")


def libraries(environ: Mapping[str, str]) -> Iterator[str]:
    """Return where libcudart may be, the likeliest first: already loaded, in the wheels, known to the loader, below CUDA_HOME."""
    maps = ""
    with ignored(OSError):
        maps = Path("/proc/self/maps").read_text(errors="replace")
    yield from dict.fromkeys(_MAPPED.findall(maps))
    yield from _in_wheels()
    yield from _LOADER_NAMES
    for home in (environ.get("CUDA_HOME"), environ.get("CUDA_PATH"), _USUAL_HOME):
        if home:
            yield from map(str, sorted(Path(home).glob("lib*/libcudart.so*")))


def _torch_with_cuda() -> Any:
    torch = sys.modules.get("torch")
    try:
        return torch if torch is not None and torch.cuda.is_initialized() else None
    except (AttributeError, RuntimeError, AssertionError):  # half imported, or a build without CUDA
        return None


def _in_wheels() -> list[str]:
    """Return those of nvidia-cuda-runtime (``nvidia/cu13/lib``) and nvidia-cuda-runtime-cu12
    (``nvidia/cuda_runtime/lib``), torch's own version first, then the newest.
    """
    try:
        spec = find_spec("nvidia")
    except ours(ImportError, ValueError):
        return []
    places = [] if spec is None else spec.submodule_search_locations or []
    found = [path for place in places for path in Path(place).glob("cu*/lib/libcudart.so.*")]
    version = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None) or ""
    wanted = f".so.{version.partition('.')[0]}"
    return [
        str(path) for path in sorted(found, key=lambda path: (wanted in path.name, path.name), reverse=True)
    ]
