"""Summarise which backends can record here: one line per backend, from the related findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepprof.config.plugins import BUILT_IN, backend_names
from stepprof.doctor.finding import Finding
from stepprof.doctor.torch_stages import MEMORY


@dataclass(frozen=True, slots=True)
class BackendLine:
    """One backend: whether it can record here (None: not tested), with the result or the reason."""

    name: str
    records: bool | None
    reason: str


def backend_lines(findings: Sequence[Finding]) -> list[BackendLine]:
    """Return a line for every backend, the package's own first."""
    found = {finding.name: finding for finding in findings}
    checks = {"torch": _torch, "npu": _npu, "nsys": _nsys, "memory": _memory}
    lines = []
    for name in backend_names():
        if name in checks:
            records, reason = checks[name](found)
            lines.append(BackendLine(name, records, reason))
        elif name in BUILT_IN:
            lines.append(BackendLine(name, True, "windows and spans only"))
        else:
            lines.append(BackendLine(name, None, "provided by another package; not tested"))
    return lines


Verdict = tuple[bool, str]


def _torch(found: dict[str, Finding]) -> Verdict:
    capture = found.get("cpu capture")
    if capture is None or capture.level == "problem":
        return False, next(
            _reasons(found, "torch", "torch extension", "torch_npu", "cpu capture"), "not tested"
        )
    kernels = found.get("kernel capture")
    if kernels is not None and kernels.level == "problem":
        return True, f"CPU operations only: {kernels.detail}"
    return (
        True,
        "operations and kernels" if kernels is not None else "CPU operations; this machine has no GPU",
    )


def _npu(found: dict[str, Finding]) -> Verdict:
    own = [finding for name, finding in found.items() if name == "torch_npu" or name.startswith("npu")]
    if "torch_npu" not in found:
        return False, "torch_npu is not installed"
    bad = next((finding for finding in own if finding.level != "ok"), None)
    return (True, found["torch_npu"].detail) if bad is None else (False, bad.detail)


def _nsys(found: dict[str, Finding]) -> Verdict:
    window = found.get("nsys window")
    if window is None:
        return False, next(_reasons(found, "nsys"), "not tested")
    return window.level == "ok" and window.applies, window.detail


def _memory(found: dict[str, Finding]) -> Verdict:
    finding = found.get(MEMORY)
    if finding is None:
        return False, next(_reasons(found, "torch", "torch extension"), "not tested")
    return finding.level == "ok" and finding.applies, finding.detail


def _reasons(found: dict[str, Finding], *names: str) -> Iterator[str]:
    return (found[name].detail for name in names if name in found and found[name].level != "ok")
