"""The lease on a device between real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from stepprof.backends.base import Busy
from stepprof.errors import BackendError
from stepprof.host.device_lease import DeviceLease, lease_folder, physical_device

HOLDER = """
import sys, time
from pathlib import Path
from stepprof.host.device_lease import DeviceLease
lease = DeviceLease("npu-0", Path(sys.argv[1]))
lease.is_shared()
lease.take("actor/rank-3")
print("held", flush=True)
sys.stdin.read()
lease.release()
print("free", flush=True)
sys.stdin.close()
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Start a process that holds the lease until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    with process:
        yield process
        process.kill()


@pytest.fixture
def lease(tmp_path):
    made = DeviceLease("npu-0", tmp_path)
    yield made
    made.release()
    made.forget()


class TestLease:
    def test_taken_by_another_process(self, holder, lease):
        """If another process holds the lease, `take` waits until its timeout and raises an
        error that names the holder.
        """
        began = time.monotonic()
        with pytest.raises(
            Busy, match=rf"npu-0 is recorded by process {holder.pid} \(actor/rank-3, for \d"
        ) as caught:
            lease.take("rollout/rank-0", 0.2)
        assert 0.2 <= time.monotonic() - began < 2
        assert "also after 0.2 s" in str(caught.value)
        assert not lease.held

    def test_a_waiting_process_gets_a_released_lease(self, holder, lease):
        """A process that waits gets the lease when the holder releases it."""
        holder.stdin.close()
        lease.take("rollout/rank-0", 10)
        assert lease.held

    def test_the_holder_is_killed(self, holder, lease):
        holder.send_signal(signal.SIGKILL)
        lease.take("rollout/rank-0", 10)
        assert lease.held

    def test_another_device(self, holder, tmp_path):
        other = DeviceLease("npu-1", tmp_path)
        other.take("rollout/rank-0")
        assert other.held
        other.release()

    def test_a_lease_taken_twice_is_released_once(self, lease):
        """If a process takes the lease twice, one release frees it."""
        lease.take("armed")
        lease.take("actor/rank-0")
        lease.release()
        lease.release()
        assert not lease.held

    def test_a_forked_process_holds_nothing(self, run_script, tmp_path):
        """A forked child holds no lease and cannot release its parent's. The parent can
        release it while the child lives.
        """
        run_script(
            """
            import os, signal, sys, time
            from pathlib import Path
            from stepprof.backends.base import Busy
            from stepprof.host.device_lease import DeviceLease
            lease, other = DeviceLease("npu-0", Path.cwd()), DeviceLease("npu-0", Path.cwd())
            lease.take("actor/rank-0")
            reading, writing = os.pipe()
            child = os.fork()
            if not child:
                lease.release()
                os.write(writing, b"1" if lease.held else b"0")
                time.sleep(60)
                os._exit(0)
            try:
                assert os.read(reading, 1) == b"0"
                try:
                    other.take("rollout/rank-0")
                except Busy:
                    pass
                else:
                    raise AssertionError("two have it")
                lease.release()
                other.take("rollout/rank-0")
                other.release()
            finally:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            """
        ).check()

    def test_other_users_of_the_device_are_seen(self, lease, tmp_path):
        """Another user of the device is seen while its process lives."""
        assert not lease.is_shared()
        other = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with other:
            other.stdout.readline()
            assert lease.is_shared()
            other.kill()
            other.wait()
        assert not lease.is_shared()

    @pytest.mark.parametrize(
        "text", ["{", "[" * 4000, '{"pid": 1, "holder": "x", "since": 1' + "0" * 400 + "}", "7"]
    )
    def test_a_damaged_lease_file_affects_only_the_message(self, holder, lease, tmp_path, text):
        """A damaged lease file does not free the lease. The error does not name the holder then."""
        (tmp_path / "npu-0.lease").write_text(text)
        with pytest.raises(Busy, match="recorded by another process"):
            lease.take("rollout/rank-0")

    def test_a_hostile_holder_name_is_shown_on_one_line(self, holder, lease, tmp_path):
        """Control characters in the holder's name do not appear in the error."""
        reported = {"pid": "1\n[forged]", "holder": "\x1b[2J" + "x" * 3000, "since": 0}
        (tmp_path / "npu-0.lease").write_text(json.dumps(reported))
        with pytest.raises(Busy, match="forged") as failure:
            lease.take("rollout/rank-0")
        assert str(failure.value).isprintable()

    def test_a_link_is_not_followed(self, tmp_path):
        (tmp_path / "npu-2.lease").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(BackendError, match="lease_dir"):
            DeviceLease("npu-2", tmp_path).take("actor/rank-0")
        assert not (tmp_path / "elsewhere").exists()


class TestFolder:
    def test_of_this_user_alone(self, tmp_path):
        assert lease_folder().stat().st_mode & 0o777 == 0o700
        assert lease_folder().name == f"stepprof-{os.getuid()}"

    def test_configured(self, tmp_path):
        folder = lease_folder(tmp_path / "a" / "b")
        assert folder == tmp_path / "a" / "b"
        assert folder.is_dir()

    def test_a_lease_folder_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(BackendError, match="lease_dir"):
            lease_folder(tmp_path / "file")


@pytest.mark.parametrize(
    ("visible", "index", "number"),
    [(None, 1, 1), ("4,6", 1, 6), ("4,6", 0, 4), ("", 2, 2), ("4", 3, 3), ("a,b", 1, 1), (" 5 , 7 ", 1, 7)],
)
def test_physical_device(visible, index, number):
    environ = {} if visible is None else {"ASCEND_RT_VISIBLE_DEVICES": visible}
    assert physical_device(index, environ) == number
