"""Test the memory backend with a caching allocator in C++ that runs: that of torch_npu, which is
CUDA's with another library below it.

It keeps its history, calls its observers and makes its snapshots as CUDA's does, by functions with
the same arguments. These tests install them where torch expects CUDA's functions. Its entries have
no time, and it rounds up by a few bytes more. These tests confirm what tests/helpers/cudamemory.py
imitates.
"""

from __future__ import annotations

import pickle
import textwrap

import pytest

from stepprof.formats.memory_snapshot import MemorySnapshot, read_snapshot

MIB = 1 << 20

BRIDGE = """
import torch_npu
C, N = torch._C, torch_npu._C
use_device()
C._cuda_record_memory_history = lambda enabled, context, stacks, entries, *more: N._npu_record_memory_history(enabled, context, stacks, entries)
for name in ("isHistoryEnabled", "memorySnapshot", "memoryStats", "attach_out_of_memory_observer"):
    setattr(C, f"_cuda_{name}", getattr(N, f"_npu_{name}"))
C._cuda_getAllocatorBackend = lambda: "native"
torch.version.cuda, torch.cuda.device_count, torch.cuda._initialized = "12.8", lambda: 1, True
torch.cuda.is_initialized = lambda: True
MIB = 1 << 20

def empty(size):
    return torch.empty(size, dtype=torch.uint8, device="npu")

def memory(**config):
    return init({"backend": "memory", "min_free_memory": "none", **config})

def is_on():
    print("history", N._npu_isHistoryEnabled(), flush=True)
"""
HISTORY_OFF, HISTORY_ON = "history False", "history True"


def ran(npu, script: str) -> list[str]:
    """Return the lines that the script printed."""
    return npu.run(BRIDGE + textwrap.dedent(script)).check().stdout.splitlines()


def snapshot_of(npu, window: dict, step: int = 2) -> MemorySnapshot:
    found = read_snapshot(npu.run_path / f"step-{step:06d}" / window["artifacts"][0]["path"], top=50)
    assert found.finding is None
    return found


def by_place(found: MemorySnapshot) -> dict[str, int]:
    """Return the MiB per function that called `empty`. Allocations without a stack have the key ""
    (empty).
    """
    return {
        place.frames[1].rpartition(" ")[2] if place.frames else "": place.bytes // MIB
        for place in found.top[0]
    }


class TestWindow:
    @pytest.mark.parametrize("stacks", ["python", "all"])
    def test_whole(self, npu, stacks):
        """The history runs from the start of the window to its end. The snapshot has the peak and
        the functions that held it.
        """
        done = ran(
            npu,
            f"""
            before = empty(5 * MIB)
            def forward():
                return empty(64 * MIB)
            def backward():
                return empty(7 * MIB)
            memory(memory={{"stacks": {stacks!r}}})
            with profile_step(1, role="actor"):
                is_on()
            is_on()  # armed
            with profile_step(2, role="actor"):
                is_on()
                held = forward()
                del held
                kept = backward()
            is_on()
            """,
        )
        assert done == [HISTORY_OFF, HISTORY_OFF, HISTORY_ON, HISTORY_OFF]
        window = npu.window()
        assert (window["status"], window["error"]) == ("complete", None)
        found = snapshot_of(npu, window)
        (device,) = found.devices
        assert device.peak_bytes == 69 * MIB
        assert device.active_bytes == 12 * MIB
        assert by_place(found) == {"forward": 64, "": 5}

    def test_a_ring_that_has_lost_its_beginning(self, npu):
        """The ring keeps the latest entries, and the snapshot reports their peak. A free has the
        stack of its allocation.
        """
        ran(
            npu,
            """
            memory(memory={"max_entries": 10})
            def early():
                return empty(32 * MIB)
            def late():
                return empty(2 * MIB), empty(6 * MIB)
            with profile_step(2, role="actor"):
                first = early()
                for _ in range(20):
                    torch.empty(3 * MIB, dtype=torch.uint8, device="npu")
                kept = late()
                del first
            """,
        )
        window = npu.window()
        assert (window["status"], window["artifacts"][0]["events"]) == ("complete", 10)
        found = snapshot_of(npu, window)
        assert found.devices[0].peak_bytes == 40 * MIB
        assert by_place(found) == {"early": 32, "late": 8}

    def test_an_exception_in_the_body(self, npu):
        """The exception reaches the caller, and the history is switched off."""
        done = ran(
            npu,
            """
            memory()
            try:
                with profile_step(2, role="actor"):
                    raise KeyError("theirs")
            except KeyError as error:
                print(error)
            is_on()
            """,
        )
        assert done == ["'theirs'", HISTORY_OFF]
        assert npu.window()["body_error"] == "KeyError: 'theirs'"

    def test_an_end_without_a_window(self, npu):
        """The backend is armed for a step that never begins. The shutdown leaves the history off."""
        done = ran(
            npu,
            """
            memory()
            with profile_step(1, role="actor"):
                pass
            print(stepprof.state().status)
            stepprof.shutdown()
            is_on()
            """,
        )
        assert done == ["armed", HISTORY_OFF]

    def test_a_history_of_another_program_is_not_changed(self, npu):
        """If another program records a history, the window is skipped, and that history keeps
        running with its content.
        """
        done = ran(
            npu,
            """
            torch.cuda.memory._record_memory_history(max_entries=100)
            theirs = empty(MIB)
            memory()
            with profile_step(2, role="actor"):
                pass
            is_on()
            print([entry["action"] for entry in torch.cuda.memory._snapshot()["device_traces"][0]].count("alloc"))
            """,
        )
        assert done == [HISTORY_ON, "1"]
        assert npu.window()["status"] == "skipped"

    def test_a_forked_child(self, npu):
        """A child forked inside the window exits with its own code, and the history of the parent
        is complete.
        """
        ran(
            npu,
            """
            memory()
            with profile_step(2, role="actor"):
                child = os.fork()
                if not child:
                    os._exit(7)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                kept = empty(MIB)
            """,
        )
        window = npu.window()
        assert (window["status"], snapshot_of(npu, window).devices[0].allocations) == ("complete", 1)


class TestOutOfMemory:
    @pytest.mark.parametrize(("entries", "who"), [(0, {"": 40}), (100, {"weights": 40})])
    def test_outside_a_window(self, npu, entries, who):
        """The thread that ran out gets the allocator's own error. A snapshot of that moment is kept
        for the first two errors.
        """
        done = ran(
            npu,
            f"""
            memory(memory={{"on_oom": True, "on_oom_entries": {entries}}})
            def weights():
                return empty(40 * MIB)
            def run_out():
                try:
                    empty(1 << 45)
                except torch.OutOfMemoryError as error:
                    print(str(error)[:17], threading.current_thread().name, flush=True)
            is_on()
            held = weights()
            with profile_step(7, role="actor"):
                run_out()
                thread = threading.Thread(target=run_out, name="another")
                thread.start()
                thread.join()
                run_out()  # the third is one too many
            stepprof.shutdown()
            is_on()
            """,
        )
        ran_out = [f"NPU out of memory {name}" for name in ("MainThread", "another", "MainThread")]
        assert done == [HISTORY_ON if entries else HISTORY_OFF, *ran_out, HISTORY_OFF]
        windows = npu.windows(7)
        assert [(window["role"], window["status"]) for window in windows] == [("actor", "complete")] * 2
        found = snapshot_of(npu, windows[0], 7)
        assert found.out_of_memory is not None
        assert found.out_of_memory["asked_bytes"] >= 1 << 45
        assert by_place(found) == who
        path = npu.run_path / "step-000007" / windows[0]["artifacts"][0]["path"]
        actions = [entry["action"] for entry in pickle.loads(path.read_bytes())["device_traces"][0]]
        assert ("oom" in actions) == bool(entries)

    def test_inside_a_window(self, npu):
        """Two snapshots exist: that of the window, and that of the moment when memory ran out."""
        done = ran(
            npu,
            """
            memory(memory={"on_oom": True})
            try:
                with profile_step(2, role="actor"):
                    empty(1 << 45)
            except torch.OutOfMemoryError:
                print("theirs")
            is_on()
            """,
        )
        assert done == ["theirs", HISTORY_OFF]
        window, moment = npu.windows()
        assert window["body_error"].startswith("OutOfMemoryError: NPU out of memory")
        assert [window["status"], moment["status"]] == ["complete", "complete"]
        assert snapshot_of(npu, window).devices[0].ooms == snapshot_of(npu, moment).devices[0].ooms == 1
