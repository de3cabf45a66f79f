"""The lease of an engine on the NPUs that it shares: only one process at a time records such a device."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from simulated import read_entries

import stepprof
from stepprof import Config
from stepprof.backends.base import Busy
from stepprof.errors import ConfigError
from stepprof.host.device_lease import DeviceLease

HOLDER = """
import sys
from pathlib import Path
from stepprof.host.device_lease import DeviceLease
lease = DeviceLease("npu-4", Path(sys.argv[1]))
lease.take("actor/rank-3")
print("held", flush=True)
sys.stdin.read()
lease.release()
"""


@pytest.fixture
def leases(tmp_path):
    return tmp_path / "leases"


@pytest.fixture
def recording(start, leases):
    """Return a function that starts a session that records rollouts with engines on the devices 4 and 5."""

    def recording(wait=0.2, **options):
        rollout = {
            "ranks": "all",
            "backend": "null",
            "engine": {"backend": "npu", "devices": [5, 4], **options},
        }
        npu = {"lease_dir": str(leases), "lease_wait_seconds": wait}
        return start(steps="2-3", backend="null", roles={"rollout": rollout}, npu=npu)

    return recording


@pytest.fixture
def holder(leases):
    """Start another process that holds the lease of device 4 until its stdin is closed."""
    leases.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(leases)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    with process:
        yield process
        process.kill()


def taken_by(leases, number):
    """Return the holder of a device, as another process sees it, or None if the device is free."""
    lease = DeviceLease(f"npu-{number}", leases)
    try:
        lease.take("test")
    except Busy as error:
        return str(error)
    finally:
        lease.release()
        lease.forget()
    return None


def settled(session, step=2, count=1):
    """Return the manifest of a step once it is final."""
    deadline = time.monotonic() + 10
    while True:
        session.background.round()
        entries = read_entries(session, step)
        if len(entries) == count and all(entry.status != "lost" for entry in entries):
            return entries
        assert time.monotonic() < deadline, entries
        time.sleep(0.01)


class TestLeases:
    def test_a_lease_is_held_from_start_to_stop(self, recording, engine, leases):
        """While the engine records, another process finds the devices leased and learns the holder. After
        the stop they are free.
        """
        session = recording()
        stepprof.attach(engine(), role="rollout")
        with stepprof.profile_step(2, role="rollout"):
            for number in (4, 5):
                assert "rollout/0 of step 2" in taken_by(leases, number)
        (entry,) = settled(session)
        assert entry.status == "complete"
        assert [taken_by(leases, number) for number in (4, 5)] == [None, None]

    def test_an_engine_marks_its_devices_as_shared(self, recording, engine, leases):
        """After a window of the engine, other processes see that its device is shared."""
        recording()
        stepprof.attach(engine(), role="rollout")
        with stepprof.profile_step(2, role="rollout"):
            pass
        lease = DeviceLease("npu-4", leases)
        try:
            assert lease.is_shared()
        finally:
            lease.forget()

    def test_replicas_share(self, recording, engine, leases):
        """Two engines of one driver share the lease of a device, which is released when the last one has
        stopped.
        """
        session = recording()
        stepprof.attach([engine(), engine(delays={"stop": 0.2})], role="rollout")
        with stepprof.profile_step(2, role="rollout"):
            assert taken_by(leases, 4) is not None
        assert [entry.status for entry in settled(session, count=2)] == ["complete", "complete"]
        assert taken_by(leases, 4) is None

    def test_a_device_leased_by_another_process_skips_the_engine(self, recording, engine, leases, holder):
        """No start is sent to the engine, and its entry is skipped and names the holder. The next window
        is recorded.
        """
        one, session = engine(), recording()
        stepprof.attach(one, role="rollout")
        with stepprof.profile_step(2, role="rollout"):
            pass
        (entry,) = settled(session)
        assert entry.status == "skipped"
        assert f"npu-4 is recorded by process {holder.pid} (actor/rank-3" in entry.error
        assert one.asked("start") == 0
        holder.stdin.close()
        holder.wait(10)
        with stepprof.profile_step(3, role="rollout"):
            pass
        assert [entry.status for entry in settled(session, 3)] == ["complete"]

    def test_the_start_waits_for_the_lease(self, recording, engine, holder):
        session = recording(wait=10)
        stepprof.attach(engine(), role="rollout")
        threading.Timer(0.3, holder.stdin.close).start()
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert [entry.status for entry in settled(session)] == ["complete"]

    def test_a_start_that_fails(self, recording, engine, leases):
        """After a failed start the lease is released."""
        session = recording()
        stepprof.attach(engine(failing={"start": ValueError("no")}), role="rollout")
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert [entry.status for entry in settled(session)] == ["failed"]
        assert taken_by(leases, 4) is None

    def test_a_lease_folder_that_cannot_be_used(self, recording, engine, leases):
        leases.write_text("")
        one, session = engine(), recording()
        stepprof.attach(one, role="rollout")
        with stepprof.profile_step(2, role="rollout"):
            pass
        (entry,) = settled(session)
        assert entry.status == "skipped"
        assert "lease_dir" in entry.error

    def test_without_devices_no_lease_is_taken(self, recording, engine, leases, holder):
        """An engine without devices records without a lease."""
        session = recording(devices=[])
        stepprof.attach(engine(), role="rollout")
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert [entry.status for entry in settled(session)] == ["complete"]


@pytest.mark.parametrize(
    ("engine", "meant"),
    [
        ({"devices": [-1]}, "did you mean 0?"),
        ({"devices": "4"}, "did you mean 4?"),
        ({"devices": [0.5]}, "an integer"),
    ],
)
def test_invalid_devices_are_refused(engine, meant):
    with pytest.raises(ConfigError) as caught:
        Config(steps="2", roles={"rollout": {"engine": engine}})
    assert meant in str(caught.value)


def test_devices_for_nothing():
    """`devices` of an engine that does not record NPUs cause a warning."""
    by = {backend: Config(steps="2", roles={"rollout": {"backend": "null", "engine": {"backend": backend, "devices": 3}}}) for backend in ("npu", "torch")}  # fmt: skip
    assert by["npu"].warnings() == ()
    (warning,) = by["torch"].warnings()
    assert warning.startswith("roles.rollout: engine.devices are NPUs")
