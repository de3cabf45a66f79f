"""The distinct values of a column, without the modules of numpy that need more memory than a small trace."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from stepprof.analysis.timeline.distinct import distinct


class TestDistinct:
    @pytest.mark.parametrize("columns", [([],), ([3],), ([2, 1, 2, 1, 9],), ([5, 1], [1, 7]), ([], [4, 4])])
    @pytest.mark.parametrize("kind", [np.int32, np.int64])
    def test_as_numpy(self, columns, kind):
        arrays = [np.array(column, kind) for column in columns]
        made = distinct(*arrays)
        assert made.tolist() == np.unique(np.concatenate(arrays)).tolist()
        assert made.dtype == kind

    def test_a_report_does_not_import_masked_arrays(self, tmp_path):
        """They would be an eighth of its memory."""
        slices = [
            {"ph": "X", "cat": cat, "name": name, "ts": at, "dur": 9, "pid": pid, "tid": 7, "args": {}}
            for at in range(0, 1000, 10)
            for cat, name, pid in (
                ("cpu_op", "aten::mm", 9),
                ("user_annotation", "forward", 9),
                ("kernel", "gemm", 0),
            )
        ]
        (tmp_path / "a.json").write_text(json.dumps({"traceEvents": slices}))
        code = (
            "import sys; from stepprof.cli.main import main; "
            "assert main(['report', 'a.json', '--workers', '1']) == 0; sys.exit('numpy.ma' in sys.modules)"
        )
        subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60, capture_output=True
        )
