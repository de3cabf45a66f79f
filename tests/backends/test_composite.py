"""Several backends in one capture, as plug-ins of two packages: their order, and failures of one that do
not affect the other.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faulty import ended

import stepprof
from stepprof.backends.base import Backend, Busy, ExportError, Incomplete
from stepprof.backends.composite import Together
from stepprof.errors import BackendError
from stepprof.run.model import Artifact, Capture, Window

account: list[str] = []
raising: dict[str, BaseException] = {}


class Part(Backend):
    """A backend that records its calls, and raises as configured."""

    size: int | None = 1
    mode = "fork"

    def __init__(self, options: object = None) -> None:
        self.options = options

    def _call(self, what: str) -> None:
        account.append(f"{self.name} {what}")
        if f"{self.name} {what}" in raising:
            raise raising.pop(f"{self.name} {what}")

    def probe(self) -> str | None:
        return None

    def arm(self) -> None:
        self._call("arm")

    def start(self, capture: Capture) -> None:
        self._call("start")

    def stop(self, capture: Capture, annotations: object) -> Any:
        self._call("stop")
        return lambda: self._export(capture)

    def _export(self, capture: Capture) -> tuple[Artifact, ...]:
        path = f"{capture.stem}.{self.name}.json"
        data = json.dumps(capture.metadata).encode()
        (capture.folder / path).write_bytes(data)
        artifact = Artifact(path=path, kind=self.name, bytes=len(data))
        self._call("export")
        return (artifact,)

    def abort(self) -> None:
        self._call("abort")

    @contextmanager
    def _mark(self, name: str):
        self._call(f"enters {name}")
        try:
            yield
        finally:
            self._call(f"leaves {name}")

    def mark(self, name: str) -> Any:
        return self._mark(name)

    def bytes_so_far(self) -> int | None:
        return self.size

    def export_mode(self) -> str:
        return self.mode


class First(Part):
    name = "first"


class Second(Part):
    name = "second"
    thread_bound = True
    size = None
    mode = "inline"


class Silent(Second):
    name = "silent"
    marks = False

    def mark(self, name: str) -> Any:
        raise AssertionError("it said that it marks nothing")


@pytest.fixture(autouse=True)
def fresh() -> None:
    account.clear()
    raising.clear()


@pytest.fixture
def place(tmp_path: Path) -> Capture:
    (tmp_path / "actor").mkdir()
    return Capture(Window(2, "actor"), tmp_path, "actor/rank-0", {"step": 2})


def both() -> Together:
    return Together([First(), Second()])


class TestOrder:
    def test_starts_in_order_and_stops_the_other_way_round(self, place: Capture) -> None:
        """Backends start in the order of the configuration and stop in the reverse order. Each writes its
        own file with the same stem.
        """
        together = both()
        together.arm()
        together.start(place)
        artifacts = together.stop(place, ())()
        assert account == [
            "first arm", "second arm", "first start", "second start",
            "second stop", "first stop", "first export", "second export",
        ]  # fmt: skip
        assert [artifact.path for artifact in artifacts] == [
            "actor/rank-0.first.json",
            "actor/rank-0.second.json",
        ]

    def test_the_most_careful_backend_decides(self) -> None:
        """The composite is bound to a thread, or exports in place, if one backend is or does. An unknown
        size is left out of its size.
        """
        together = both()
        assert together.name == "first+second"
        assert together.thread_bound
        assert together.export_mode() == "inline"
        assert together.bytes_so_far() == 1
        assert not Together([First(), First()]).thread_bound
        assert Together([First(), First()]).export_mode() == "fork"
        assert Together([Second()]).bytes_so_far() is None

    def test_the_first_that_cannot_record_here_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If a backend cannot record here, the reason names that backend."""
        assert both().probe() is None
        monkeypatch.setattr(Second, "probe", lambda self: "no such device")
        assert both().probe() == "second: no such device"


class TestFailures:
    @pytest.mark.parametrize("call", ["arm", "start"])
    def test_if_one_fails_to_start_none_records(self, place: Capture, call: str) -> None:
        """The backends that have started are stopped again, the last one first. The error names its backend
        and keeps its type.
        """
        raising[f"second {call}"] = Busy("somebody records")
        together = both()
        with pytest.raises(Busy, match="second: somebody records"):
            together.arm() if call == "arm" else together.start(place)
        assert account == [f"first {call}", f"second {call}", "second abort", "first abort"]

    def test_an_interrupt_stops_all_and_continues(self, place: Capture) -> None:
        """Ctrl-C during the start of the second backend aborts both, and KeyboardInterrupt is raised on."""
        raising["second start"] = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            both().start(place)
        assert account[-2:] == ["second abort", "first abort"]

    @pytest.mark.parametrize("failing", ["first", "second"])
    def test_a_failed_stop_keeps_the_other_capture(self, place: Capture, failing: str) -> None:
        """The artifact of the other backend is written, and the error names the missing part."""
        raising[f"{failing} stop"] = RuntimeError("the device is gone")
        together = both()
        together.start(place)
        export = together.stop(place, ())
        with pytest.raises(Incomplete, match=f"^{failing}: RuntimeError: the device is gone$") as caught:
            export()
        assert f"{failing} abort" in account
        other = "second" if failing == "first" else "first"
        assert [artifact.kind for artifact in caught.value.artifacts] == [other]

    def test_where_none_can_be_stopped(self, place: Capture) -> None:
        """If both backends fail to stop, the error has both reasons."""
        raising["first stop"], raising["second stop"] = BackendError("one"), BackendError("two")
        with pytest.raises(BackendError, match=r"^first: one; second: two$"):
            both().stop(place, ())

    def test_a_failed_export_keeps_the_other_artifact(self, place: Capture) -> None:
        """The artifacts of the other backend are kept, and so are those that the failing backend has
        written.
        """
        kept = Artifact("actor/rank-0.half.json", "first", 1)
        raising["first export"] = ExportError("the disk is full", (kept,))
        with pytest.raises(Incomplete, match=r"^first: the disk is full$") as caught:
            both().stop(place, ())()
        assert [artifact.kind for artifact in caught.value.artifacts] == ["first", "second"]

    def test_where_no_export_succeeds(self, place: Capture) -> None:
        """If all exports fail, the window is failed, not partial."""
        raising["first export"], raising["second export"] = ExportError("one"), ExportError("two")
        with pytest.raises(ExportError, match=r"^first: one; second: two$") as caught:
            both().stop(place, ())()
        assert not isinstance(caught.value, Incomplete)

    def test_a_failed_abort_still_aborts_the_other(self) -> None:
        """If one abort raises, the other backend is aborted all the same."""
        raising["second abort"] = RuntimeError("against the contract")
        both().abort()
        assert account == ["second abort", "first abort"]


class TestMarks:
    def test_entered_in_order_and_left_the_other_way_round(self) -> None:
        """Ranges are entered in order and exited in the reverse order, also if the body raises."""
        mark = both().mark("update")
        assert mark is not None
        with pytest.raises(ValueError, match="theirs"), mark:
            raise ValueError("theirs")
        assert account == [
            "first enters update", "second enters update", "second leaves update", "first leaves update",
        ]  # fmt: skip

    def test_a_failed_enter_leaves_no_range_open(self) -> None:
        """If the second backend fails to enter its range, the first one exits its own."""
        raising["second enters update"] = RuntimeError("no")
        mark = both().mark("update")
        assert mark is not None
        with pytest.raises(RuntimeError, match="no"):
            mark.__enter__()
        assert account[-1] == "first leaves update"

    def test_a_failed_exit_still_closes_the_other_range(self) -> None:
        """If the second backend fails to exit its range, the first one exits its own, and the error is
        raised.
        """
        raising["second leaves update"] = RuntimeError("no")
        mark = both().mark("update")
        assert mark is not None
        mark.__enter__()
        with pytest.raises(RuntimeError, match="no"):
            mark.__exit__(None, None, None)
        assert account[-1] == "first leaves update"

    def test_a_single_marking_backend_is_called_directly(self) -> None:
        """If only one backend marks regions, its range is used directly, without additional cost."""
        first = First()
        together = Together([first, Silent()])
        assert type(together.mark("update")) is type(first.mark("update"))

    def test_open_ranges_are_left_before_the_stop(self) -> None:
        """Each backend exits its own open ranges, with its own `leave` if it has one."""
        first, second = First(), Second()
        left: list[object] = []
        second.leave = left.extend  # type: ignore[attr-defined]
        together = Together([first, second])
        marks = [together.mark("outer"), together.mark("inner")]
        for mark in marks:
            assert mark is not None
            mark.__enter__()
        account.clear()
        together.leave(marks)  # type: ignore[arg-type]
        assert account == ["first leaves outer", "first leaves inner"]
        assert len(left) == 2


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that starts a session over both plug-ins, which declare that they can record
    together.
    """
    info = tmp_path / "plugin" / "stepprof_two-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stepprof-two\nVersion: 1.0\n")
    points = "".join(f"{kind.name} = {__name__}:{kind.__name__}\n" for kind in (First, Second, Silent))
    (info / "entry_points.txt").write_text(
        f"[stepprof.backends]\n{points}[stepprof.backends.together]\n{points}"
    )
    monkeypatch.syspath_prepend(tmp_path / "plugin")

    def start(**config: object) -> stepprof.Session:
        values = {"backend": ["first", "second"], "steps": "2,3", "output_dir": str(tmp_path / "runs")}
        return stepprof.init({"min_free_memory": "none", **values, **config}, run_id="run", rank=0)

    yield start
    stepprof.shutdown()


class TestInASession:
    def test_the_manifest_and_the_state_name_both(self, session) -> None:
        """One capture has one entry with two artifacts, and a region is a range of both backends."""
        run = session()
        with stepprof.profile_step(2, role="actor"):
            assert str(stepprof.state()).startswith("recording step=2 role=actor rank=0 backend=first+second")
            with stepprof.region("update"):
                pass
        (window,) = ended(run)
        assert (window["backend"], window["status"], window["error"]) == ("first+second", "complete", None)
        assert [artifact["kind"] for artifact in window["artifacts"]] == ["first", "second"]
        assert account.index("second leaves update") < account.index("first leaves update")

    @pytest.mark.parametrize("export", ["inline", "fork", "thread"])
    def test_a_partial_loss_keeps_the_other_artifact(self, session, export: str) -> None:
        """If one stop fails, the window is partial and has the other backend's artifact. The next step is
        complete.
        """
        run = session(export=export)
        raising["first stop"] = RuntimeError("the device is gone")
        for step in (2, 3):
            with stepprof.profile_step(step):
                pass
        broken, whole = ended(run)
        assert (broken["status"], whole["status"]) == ("partial", "complete")
        assert broken["error"] == "export: Incomplete: first: RuntimeError: the device is gone"
        assert [artifact["kind"] for artifact in broken["artifacts"]] == ["second"]
        assert (run.path / "step-000002" / broken["artifacts"][0]["path"]).is_file()

    def test_a_failed_start_is_reported_and_the_body_runs(self, session) -> None:
        """If one backend fails to start, the window is failed with that backend's name, and the body runs."""
        run = session()
        raising["second start"] = BackendError("no device")
        ran = []
        with stepprof.profile_step(2):
            ran.append(2)
        (window,) = ended(run)
        assert ran == [2]
        assert (window["status"], window["error"]) == ("failed", "BackendError: second: no device")
