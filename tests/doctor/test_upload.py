"""The test upload of `stepprof doctor --upload`."""

from __future__ import annotations

import pytest

from stepprof.doctor.upload import upload_findings
from stepprof.errors import ConfigError


class TestDoctor:
    def test_doctor_tests_the_upload(self, tmp_path) -> None:
        """`doctor` writes a file to the store and removes it afterwards. A path that
        cannot be a folder is a problem.
        """
        (finding,) = upload_findings(f"file://{tmp_path}/up", 30)
        assert (finding.level, list((tmp_path / "up").iterdir())) == ("ok", [])
        (tmp_path / "file").touch()
        (finding,) = upload_findings(f"file://{tmp_path}/file", 30)
        assert finding.level == "problem"
        with pytest.raises(ConfigError):
            list(upload_findings("s4://x", 1))
