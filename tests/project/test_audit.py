"""Test the search for versions with known faults: only an answer that names one is a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / ".ci" / "audit.py"


def audit(folder: Path, answer: str) -> subprocess.CompletedProcess[str]:
    """Run the search with a pip-audit that gives this answer for each of the two lists."""
    (folder / "pip_audit.py").write_text(f"print({answer!r})")
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, str(PROGRAM)], env=environ, capture_output=True, text=True, check=False
    )


def answer(**more: object) -> str:
    return json.dumps({"dependencies": [{"name": "pyarrow", **more}], "fixes": []})


def test_a_known_fault(tmp_path: Path) -> None:
    """A fault of a pinned version, or of a lower bound, is named, and the exit status is 1."""
    ran = audit(tmp_path, answer(version="14.0.0", vulns=[{"id": "CVE-2023-47248"}]))
    assert ran.stdout.splitlines() == [
        "constraints.txt: pyarrow 14.0.0: CVE-2023-47248",
        "pyproject.toml: pyarrow 14.0.0: CVE-2023-47248",
    ]
    assert ran.returncode == 1


@pytest.mark.parametrize(
    "given", ["", "no route to host", "{}", answer(skip_reason="not found on PyPI")], ids=str.__len__
)
def test_no_answer(tmp_path: Path, given: str) -> None:
    """Without an answer for any version, the search says so and succeeds."""
    ran = audit(tmp_path, given)
    assert ran.stdout.splitlines() == ["constraints.txt: no answer", "pyproject.toml: no answer"]
    assert ran.returncode == 0


def test_no_fault(tmp_path: Path) -> None:
    """An answer without a fault is a success."""
    ran = audit(tmp_path, answer(version="25.0", vulns=[]))
    assert (ran.stdout.strip(), ran.returncode) == ("", 0)
