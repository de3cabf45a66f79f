"""`stepprof run` reaches the workers of a Ray that the job starts itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

JOB = """
import ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)

@ray.remote
def look():
    import sys
    return "stepprof_autoload" in sys.modules

print(ray.get(look.remote()))
"""


class TestRay:
    def test_a_worker_has_the_adapters(self, tmp_path: Path) -> None:
        """A worker inherits the path and the variables; its framework is patched as soon as it is imported."""
        (tmp_path / "job.py").write_text(JOB)
        done = subprocess.run(
            [sys.executable, "-m", "stepprof", "run", "--steps", "2", "--", sys.executable, "job.py"],
            cwd=tmp_path,
            env=dict(os.environ),
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.stdout.split()[-1:] == ["True"], done.stderr
