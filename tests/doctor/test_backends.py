"""The backends that can record on this machine, according to the probes."""

from __future__ import annotations

import json

import pytest

from stepprof.cli.commands import doctor
from stepprof.cli.main import main
from stepprof.doctor import torch_child
from stepprof.doctor.backends import backend_lines
from stepprof.doctor.finding import Finding
from stepprof.doctor.torch_stages import stage_findings


def lines(*findings: Finding) -> dict[str, tuple[bool | None, str]]:
    return {line.name: (line.records, line.reason) for line in backend_lines(findings)}


CUDA = {"build": True, "devices": 2, "allocator": "native", "entries": 3, "observer": True}


class TestMemory:
    @pytest.mark.parametrize(
        ("found", "level", "detail", "records"),
        [
            (CUDA, "ok", "a small history has 3 entries", True),
            ({**CUDA, "observer": False}, "ok", "this torch does not support on_oom", True),
            ({**CUDA, "entries": 0}, "problem", "is empty", False),
            (
                {**CUDA, "allocator": "cudaMallocAsync"},
                "warning",
                "cudaMallocAsync, which keeps no history",
                False,
            ),
            ({"build": True, "devices": 0}, "ok", "no CUDA device is visible", False),
            ({"build": False}, "ok", "this torch is not built for CUDA", False),
            ({"error": "RuntimeError: no"}, "problem", "fails: RuntimeError: no", False),
        ],
    )
    def test_the_result_of_the_probe_is_described(
        self, found: dict, level: str, detail: str, records: bool
    ) -> None:
        """A finding that is not ok has a remedy. The finding decides whether the backend can record."""
        (finding,) = stage_findings({"memory": found})
        assert finding.level == level
        assert detail in finding.detail
        assert bool(finding.remedy) == (level != "ok")
        assert lines(finding)["memory"] == (records, finding.detail)

    def test_a_failed_torch_import_is_repeated_for_its_backends(self) -> None:
        """The finding about torch has the reason, and the lines of its backends repeat it."""
        assert list(stage_findings({})) == []
        broken = Finding("torch", "problem", "import torch fails", "install it")
        assert lines(broken)["memory"] == (False, "import torch fails")
        assert lines(broken)["torch"] == (False, "import torch fails")

    @pytest.mark.torch
    def test_the_probe_itself(self, cuda, monkeypatch: pytest.MonkeyPatch) -> None:
        """The probe records with a stand-in for the allocator and switches the history off again."""
        import torch

        monkeypatch.setattr(torch.cuda, "init", lambda: None)
        monkeypatch.setattr(torch, "ones", lambda *shape, device: cuda.alloc(4096))
        found = torch_child.memory({"torch": torch})
        assert found == {**CUDA, "devices": 1, "entries": 1}
        assert not cuda.on

    @pytest.mark.torch
    def test_the_probe_of_a_build_without_cuda(self) -> None:
        """The probe runs on the installed torch."""
        torch = pytest.importorskip("torch")
        if torch.version.cuda is None:
            assert torch_child.memory({"torch": torch}) == {"build": False}


class TestLines:
    def test_torch(self) -> None:
        """The line of torch distinguishes a CPU, a GPU, and a GPU whose kernels another tool records."""
        cpu = Finding("cpu capture", "ok", "2 operations")
        kernels = Finding("kernel capture", "ok", "1 kernels")
        taken = Finding("kernel capture", "problem", "a small capture on cuda has no kernel", "look")
        assert lines(cpu)["torch"] == (True, "CPU operations; this machine has no GPU")
        assert lines(cpu, kernels)["torch"] == (True, "operations and kernels")
        assert lines(cpu, taken)["torch"] == (
            True,
            "CPU operations only: a small capture on cuda has no kernel",
        )
        assert lines(Finding("cpu capture", "problem", "is empty", "anew"))["torch"] == (False, "is empty")
        assert lines()["torch"] == (False, "not tested")

    def test_npu(self) -> None:
        """The line of npu distinguishes not installed, without a device, blocked and working."""
        there = Finding("torch_npu", "ok", "2.7.1")
        assert lines()["npu"] == (False, "torch_npu is not installed")
        assert lines(Finding("torch_npu", "warning", "no NPU is there", "look"))["npu"] == (
            False,
            "no NPU is there",
        )
        assert lines(there, Finding("npu device", "problem", "taken", "wait"))["npu"] == (False, "taken")
        assert lines(there)["npu"] == (True, "2.7.1")

    def test_nsys(self) -> None:
        """The line of nsys says whether the process runs under nsys."""
        assert lines(Finding("nsys window", "ok", "under nsys, 3 windows"))["nsys"] == (
            True,
            "under nsys, 3 windows",
        )
        outside = Finding("nsys window", "ok", "not under nsys", applies=False)
        assert lines(outside)["nsys"] == (False, "not under nsys")
        assert lines(Finding("nsys", "warning", "does not run", "anew"))["nsys"] == (False, "does not run")

    def test_null_can_record_and_plugins_are_untested(self, faulty) -> None:
        """The null backend can always record. Backends of other packages are not tested."""
        assert lines()["null"] == (True, "windows and spans only")
        assert lines()["faulty"] == (None, "provided by another package; not tested")

    def test_in_the_command(self, monkeypatch: pytest.MonkeyPatch, tmp_path, capsys) -> None:
        """The command prints a table for people and a list for programs."""
        found = [Finding("cpu capture", "ok", "2 operations")]
        monkeypatch.setattr(doctor, "torch_findings", lambda environ, timeout: found)
        monkeypatch.setattr(doctor, "machine_findings", lambda folder, environ: [])
        assert main(["doctor", "--output-dir", str(tmp_path)]) == 0
        assert "torch    records  CPU operations; this machine has no GPU" in capsys.readouterr().out
        assert main(["doctor", "--output-dir", str(tmp_path), "--json"]) == 0
        reported = json.loads(capsys.readouterr().out)["backends"]
        assert [line["name"] for line in reported][:5] == ["torch", "npu", "nsys", "memory", "null"]
        assert reported[0] == {
            "name": "torch",
            "records": True,
            "reason": "CPU operations; this machine has no GPU",
        }
