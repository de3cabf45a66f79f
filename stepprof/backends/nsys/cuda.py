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
from stepprof.interrupts import ours

_LOADER_NAMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")
_USUAL_HOME = "/usr/local/cuda"
_MAPPED = re.compile(r"\S*/libcudart[^/\s]*\.so[^/\s]*")


class CudaProfiler:
    """The two calls, from torch or libcudart. Any thread may make them: they apply to the process."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        self._tried: list[str] = []

    def missing(self) -> str | None:
        """Return why the calls cannot be made here, or None."""
        if _torch_with_cuda() is not None or self._load() is not None:
            return None
        return (
            f"no libcudart was found (looked for: {', '.join(self._tried)}); "
            "pip install nvidia-cuda-runtime, or set CUDA_HOME"
        )

    def start(self) -> None:
        """Begin a range. Raises BackendError."""
        self._call("cudaProfilerStart")

    def stop(self) -> None:
        """End it. Raises BackendError."""
        self._call("cudaProfilerStop")

    def _call(self, name: str) -> None:
        torch = _torch_with_cuda()
        if torch is not None:
            code, text = int(getattr(torch.cuda.cudart(), name)()), ""
        else:
            library = self._load()
            if library is None:
                raise BackendError(self.missing() or f"{name} cannot be called")
            code = int(getattr(library, name)())
            text = _error_text(library, code) if code else ""
        if code:
            raise BackendError(f"{name} answered {code}{text and f' ({text})'}")

    def _load(self) -> ctypes.CDLL | None:
        if self._library is None:
            self._tried = []
            for path in libraries(os.environ):
                self._tried.append(path)
                try:
                    self._library = ctypes.CDLL(path)
                except ours(OSError):
                    continue
                break
        return self._library


def libraries(environ: Mapping[str, str]) -> Iterator[str]:
    """Return where libcudart may be, the likeliest first: already loaded, in the wheels, known to the loader, below CUDA_HOME."""
    yield from dict.fromkeys([*_mapped(), *_in_wheels(), *_LOADER_NAMES, *_below_cuda_home(environ)])


def _torch_with_cuda() -> Any:
    torch = sys.modules.get("torch")
    try:
        return torch if torch is not None and torch.cuda.is_initialized() else None
    except (
        AttributeError,
        RuntimeError,
        AssertionError,
    ):  # half imported, or a build that reports its absence in its own way
        return None


def _mapped() -> list[str]:
    try:
        return list(dict.fromkeys(_MAPPED.findall(Path("/proc/self/maps").read_text(errors="replace"))))
    except ours(OSError):
        return []


def _in_wheels() -> list[str]:
    """Return those of nvidia-cuda-runtime (``nvidia/cu13/lib``) and nvidia-cuda-runtime-cu12
    (``nvidia/cuda_runtime/lib``), torch's own version first, then the newest.
    """
    try:
        spec = find_spec("nvidia")
    except ours(ImportError, ValueError):
        return []
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    found = [path for place in places for path in Path(place).glob("cu*/lib/libcudart.so.*")]
    version = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None) or ""
    wanted = version.partition(".")[0]

    def rank(path: Path) -> tuple[bool, int]:
        major = path.name.removeprefix("libcudart.so.").partition(".")[0]
        return major == wanted, int(major) if major.isdigit() else 0

    return [str(path) for path in sorted(found, key=rank, reverse=True)]


def _below_cuda_home(environ: Mapping[str, str]) -> list[str]:
    homes = [environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    return [
        str(path)
        for home in [*homes, _USUAL_HOME]
        if home
        for folder in ("lib64", "lib", "targets/x86_64-linux/lib")
        for path in sorted(Path(home, folder).glob("libcudart.so*"))
    ]


def _error_text(library: ctypes.CDLL, code: int) -> str:
    try:
        ask = library.cudaGetErrorString
    except ours(AttributeError):
        return ""
    ask.restype, ask.argtypes = ctypes.c_char_p, (ctypes.c_int,)
    return (ask(code) or b"").decode(errors="replace")
