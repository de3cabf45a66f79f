"""Wrap the installed torch_npu: which options it supports, whether its calls succeeded, and which
other profilers run in this process.

Features are found by signature, never by version, because they do not follow the order of versions:
2.1.0.post13 samples the device's links, 2.5.1 does not. Return values are not trusted either: each
public method of its profiler swallows exceptions, prints them to stdout and returns None. Failures
in CANN below it are only in CANN's own log.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepprof.backends.npu.output import PrintedLines, capture_output
from stepprof.backends.npu.ranges import DOMAIN, MstxRanges
from stepprof.backends.other_npu_profiler import foreign_profile
from stepprof.config.options.npu import METRICS, NpuOptions
from stepprof.errors import BackendError
from stepprof.interrupts import ignored, ours
from stepprof.log import logger

NO_OP_VARIABLES = ("PROFILER_SAMPLECONFIG", "PROFILING_MODE")
"""Under msprof, torch_npu's profiler silently does nothing."""

_LEVELS = {"none": "Level_none", "level0": "Level0", "level1": "Level1", "level2": "Level2"}


class NpuApi:
    """The parts of torch_npu that the backend uses; making one pays the imports.

    Raises:
        Exception: torch or torch_npu cannot be imported here; CANN's absence is an ImportError, an incomplete one a plain Exception.
    """

    def __init__(self) -> None:
        import torch
        import torch.autograd.profiler
        import torch.profiler

        with capture_output():  # it prints warnings of its own to stdout
            import torch_npu
            import torch_npu.profiler
            import torch_npu.profiler.profiler

        self.torch: Any = torch
        self.torch_npu: Any = torch_npu
        self.profiler: Any = torch_npu.profiler
        self.ranges = MstxRanges(getattr(getattr(torch_npu, "npu", None), "mstx", None))
        self._warned: set[str] = set()

    @property
    def version(self) -> str:
        """What torch_npu calls itself."""
        return str(self.torch_npu.__version__)

    def problem(self) -> str | None:
        """Return why nothing can be recorded in this process."""
        for name in NO_OP_VARIABLES:
            if os.environ.get(name):
                return f"${name} is set: msprof records this process, and torch_npu's profiler does nothing then; unset it, or leave the recording to msprof"
        if not self.torch.npu.is_available():
            return f"torch_npu {self.version} sees no NPU; check the driver (npu-smi info) and $ASCEND_RT_VISIBLE_DEVICES"
        return None

    # the device

    @property
    def in_use(self) -> bool:
        """Return whether this process already uses a device. Before that, preparing a recording
        would create a context on the wrong one.
        """
        return bool(self.torch.npu.is_initialized())

    def device(self) -> int:
        """The current device, as this process counts."""
        return int(self.torch.npu.current_device())

    # sessions

    def profile(self, options: NpuOptions, folder: Path) -> Any:
        """Return a profile that has not been started. It fixes the profile folder of the whole
        process, so it is made right before its start. Raises BackendError: this torch_npu cannot
        record what was requested.
        """
        profiler = self.profiler
        accepted = _parameters(profiler.profile.__init__)
        wanted = {
            "activities": self._activities(options),
            "schedule": profiler.schedule(wait=0, warmup=1, active=1, repeat=1),
            "record_shapes": options.record_shapes,
            "profile_memory": options.profile_memory,
            "with_stack": options.with_stack,
            "with_modules": options.with_modules,
            "with_flops": options.with_flops,
            "experimental_config": self.experimental(options),
        }
        for name, value in list(wanted.items()):
            if name not in accepted:
                if value:
                    self._lacks(name)
                del wanted[name]
        handler = self.call(profiler.tensorboard_trace_handler, str(folder), None, analyse_flag=False)
        return self.call(profiler.profile, on_trace_ready=handler, **wanted)

    def experimental(self, options: NpuOptions) -> Any:
        """Return the experimental configuration with the requested options that this torch_npu
        supports; warn once about the others.
        """
        make = self.profiler._ExperimentalConfig
        accepted = _parameters(make.__init__)
        wanted: dict[str, Any] = {
            "profiler_level": self._level(options.level),
            "data_simplification": options.data_simplification,
            "export_type": self._export_type(options),
            **self._metrics(options),
        }
        for name in ("l2_cache", "record_op_args", "op_attr", "sys_io", "sys_interconnection"):
            if getattr(options, name):
                wanted[name] = True
        if options.gc_detect_threshold is not None:
            wanted["gc_detect_threshold"] = options.gc_detect_threshold
        if options.host_sys:
            wanted["host_sys"] = list(options.host_sys)
        if options.ranges:
            # before it had its own name, the switch was called msprof_tx
            wanted["msprof_tx" if "mstx" not in accepted and "msprof_tx" in accepted else "mstx"] = True
            if options.mstx_domain_exclude:
                wanted["mstx_domain_exclude"] = list(options.mstx_domain_exclude)
            elif options.mstx_domain_include or "mstx_domain_include" in accepted:
                wanted["mstx_domain_include"] = list(
                    dict.fromkeys([*(options.mstx_domain_include or ()), DOMAIN])
                )
        for name in [name for name in wanted if name not in accepted]:
            if name != "data_simplification" or not options.data_simplification:
                self._lacks(name)
            del wanted[name]
        with capture_output() as heard:
            config = make(**wanted)
        for line in heard.warnings:
            self._warn(line)
        return config

    def _activities(self, options: NpuOptions) -> list[Any]:
        there = self.profiler.ProfilerActivity
        names = [name for name, wanted in (("CPU", options.on_host), ("NPU", options.on_device)) if wanted]
        missing = [name.lower() for name in names if not hasattr(there, name)]
        if missing:
            raise BackendError(f"npu.activities: torch_npu {self.version} cannot record {', '.join(missing)}")
        return [getattr(there, name) for name in names]

    def _level(self, level: str) -> Any:
        found = getattr(self.profiler.ProfilerLevel, _LEVELS[level], None)
        if found is None:
            raise BackendError(f'npu.level: torch_npu {self.version} has no "{level}"; use another level')
        return found

    def _metrics(self, options: NpuOptions) -> dict[str, Any]:
        kinds = self.profiler.AiCMetrics
        if options.aic_metrics is not None:
            found = getattr(kinds, METRICS[options.aic_metrics], None)
            if found is None:
                raise BackendError(
                    f'npu.aic_metrics: torch_npu {self.version} has no "{options.aic_metrics}"'
                )
            return {"aic_metrics": found}
        # below level1 there are none, and requesting the default ones causes a warning
        none = getattr(kinds, "AiCoreNone", None)
        return {"aic_metrics": none} if options.level in ("none", "level0") and none is not None else {}

    def _export_type(self, options: NpuOptions) -> Any:
        kinds = getattr(self.profiler, "ExportType", None)
        found = [getattr(kinds, name.capitalize(), name) for name in options.export_type]
        return found[0] if len(found) == 1 else found

    def _lacks(self, name: str) -> None:
        self._warn(f"torch_npu {self.version} does not support {name}: the capture is made without it")

    def _warn(self, reason: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            logger.warning("npu.option_ignored", reason=reason)

    def call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a public function of torch_npu, and raise the errors that it swallows.

        The decorator that swallows exceptions keeps the wrapped function, which is called directly.
        Errors that are swallowed deeper inside are read from stdout. Raises BackendError: it
        failed.
        """
        name = getattr(method, "__name__", str(method))
        inner = getattr(method, "__wrapped__", None)
        owner = getattr(method, "__self__", None)
        try:
            with capture_output() as heard:
                if inner is None:
                    result = method(*arguments, **options)
                elif owner is None:
                    result = inner(*arguments, **options)
                else:
                    result = inner(owner, *arguments, **options)
        except ours(Exception) as error:
            raise BackendError(f"torch_npu's {name} failed: {_first_line(error)}") from error
        finally:
            _log(heard, name)
        if heard.errors:
            raise BackendError(f"torch_npu's {name} failed: {heard.errors[0]}")
        return result

    def recording_this_thread(self) -> bool:
        """Return whether a profiler of torch or torch_npu records this thread: only one can have its operations."""
        return bool(self.torch._C._autograd._profiler_enabled())

    def cann_complaint(self) -> str | None:
        """Return CANN's error of its last failed call on this thread, if any, and clear it.
        torch_npu ignores the return codes of its profiler's calls.
        """
        ask = _error_message_function()
        if ask is None:
            return None
        reported: bytes | None = ask()
        return " ".join(reported.decode(errors="replace").split())[:500] or None if reported else None

    def foreign(self, ours: Any = None) -> str | None:
        """Describe a profiler of torch or torch_npu that is not `ours`, or return None."""
        if (ours is None and self.recording_this_thread()) or getattr(
            self.torch.autograd.profiler, "_is_profiler_enabled", False
        ):
            return "another torch profiler is running in this process"
        kind = self.torch.autograd.profiler.profile
        return foreign_profile(ours, kind)


def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _first_line(error: BaseException) -> str:
    """Return the message without torch_npu's error code and time, which are on further lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _log(heard: PrintedLines, name: str) -> None:
    for line in [*heard.warnings, *heard.notes]:
        logger.debug("npu.message", call=name, text=line)


_asked = threading.Lock()
_error_message: list[Any] = []


def _error_message_function() -> Any:
    """Return CANN's aclGetRecentErrMsg from the library that torch_npu has loaded."""
    with _asked:
        if not _error_message:
            function = None
            with ignored(OSError, AttributeError):
                function = ctypes.CDLL("libascendcl.so").aclGetRecentErrMsg
                function.restype, function.argtypes = ctypes.c_char_p, ()
            _error_message.append(function)
    return _error_message[0]
