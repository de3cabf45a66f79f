"""The status file of a process: it is written with every field, and read with any content."""

from __future__ import annotations

from stepprof.run.process_status import ProcessStatus

FULL = {
    "run_id": "r",
    "rank": 3,
    "world_size": 8,
    "host": "h",
    "pid": 7,
    "writer": {"host": "h"},
    "started_unix_ns": 1,
    "published_unix_ns": 2,
    "beat_seconds": 5.0,
    "ended": False,
    "failed": False,
    "state": "recording",
    "state_since_unix_ns": 3,
    "recording_step": 2,
    "recording_role": "actor",
    "backend": "torch",
    "health": "ok",
    "engines": {"rollout/0": dict.fromkeys(("kind", "name", "host", "state", "health", "roles"), "x")},
    "last_error": "x",
    "pending_exports": ["actor of step 1"],
    "recorded_steps": [1],
    "resident_bytes": 9,
    "device_bytes": 0,
    "recorded_bytes": 9,
    "roles": ["actor"],
    "requests": {"a": dict.fromkeys(("outcome", "reason", "missed", "steps", "role"), "x")},
    "step": 2,
    "step_since_unix_ns": 4,
    "step_seconds": 0.5,
    "pace_seconds": 0.25,
    "stride": 1,
    "role": "actor",
}


class TestProcessStatus:
    def test_a_status_round_trips(self) -> None:
        """A status with every field is unchanged after writing and reading."""
        assert ProcessStatus(**FULL).to_dict() == FULL
        assert ProcessStatus.from_dict(FULL).to_dict() == FULL

    def test_values_of_another_type(self) -> None:
        """A value of a wrong type counts as missing, and the other fields are read."""
        for key, value in FULL.items():
            wrong = 5 if isinstance(value, str | list | dict | bool) and key != "rank" else ["x"]
            read = ProcessStatus.from_dict({**FULL, key: wrong}).to_dict()
            assert read == {**FULL, key: {} if key in ("engines", "requests") else None}

    def test_a_stride_of_zero(self) -> None:
        """A stride of zero counts as missing."""
        assert ProcessStatus.from_dict({"stride": 0}).stride is None

    def test_keys_of_a_newer_version(self) -> None:
        """A reader ignores unknown keys."""
        assert "of_a_newer_version" not in ProcessStatus.from_dict({"of_a_newer_version": 1}).to_dict()
