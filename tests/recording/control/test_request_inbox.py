"""Live requests in one session: which files it reads, which requests it accepts, and their outcomes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from stepprof.config.config import Config
from stepprof.host.rank import Identity
from stepprof.recording.control.request_inbox import KNOWN, TRIES, Control
from stepprof.recording.selector import Selector
from stepprof.run.requests import Request, place_request, withdraw_request


class Session:
    """A stand-in for a session with a selector, a control and the last step that was entered."""

    def __init__(self, run: Path, *, rank: int = 0, **config: object) -> None:
        self.last: int | None = None
        self.not_here: set[str | None] = set()
        self.probed: list[tuple[str, ...]] = []
        self.selector = Selector(Config(backend="null", **config), Identity(rank, 4, "rank"), lambda: None)  # type: ignore[arg-type]
        self.control = Control(
            run,
            self.selector,
            lambda policy: self.probed.append(policy.backend),
            lambda: self.last,
            lambda request, early: "no such role" if request.role in self.not_here else None,
        )

    def look(self) -> dict[str, str]:
        """Read the folder of requests without the pause between two rounds, and return the outcomes."""
        self.control._looked = -10.0
        self.control.look()
        return {name: seen["outcome"] for name, seen in self.control.outcomes().items()}

    def enter(self, step: int, role: str | None = None) -> bool:
        """Enter a window as a session does, and return whether it is selected."""
        self.last = step
        selected = self.selector.select(step, role) is not None
        if selected:
            self.selector.window(step, role, None)
        return selected


def failing(call: Callable[..., Any], times: int) -> Callable[..., Any]:
    """Return a function that fails as often as `times` with a stale handle, as on a network
    file system, before it works.
    """
    left = [times]

    def fail(*args: Any, **keywords: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return call(*args, **keywords)

    return fail


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


class TestTaking:
    def test_a_run_without_requests(self, session: Session) -> None:
        """A run without a folder for requests has no outcomes."""
        assert session.look() == {}

    def test_the_folder_is_checked_at_most_once_a_second(self, session: Session, tmp_path: Path) -> None:
        """A second look within a second does not read the folder."""
        session.control.look()
        place_request(tmp_path, Request.make(7))
        session.control.look()
        assert session.control.outcomes() == {}

    def test_a_taken_request_has_its_outcome_at_its_last_window(
        self, session: Session, tmp_path: Path
    ) -> None:
        """The control loads the backend ahead. The request is reached when its last window is entered."""
        session.enter(3)
        request = Request.make(7, count=2)
        place_request(tmp_path, request)
        assert session.look() == {request.name: "accepted"}
        assert session.probed == []
        session.control.prepare()
        assert session.probed == [("null",)]
        assert [session.enter(step) for step in (6, 7)] == [False, True]
        assert session.look() == {request.name: "accepted"}
        assert session.enter(8)
        assert session.look() == {request.name: "reached"}

    def test_requests_within_one_tick_of_the_clock_are_both_read(
        self, session: Session, tmp_path: Path
    ) -> None:
        """A folder that has just changed is read again, even if its modification time is the same."""
        one, other = Request.make(7), Request.make(8)
        path = place_request(tmp_path, one)
        session.look()
        changed = path.parent.stat().st_mtime_ns
        place_request(tmp_path, other)
        os.utime(path.parent, ns=(changed, changed))
        assert set(session.look()) == {one.name, other.name}

    def test_a_folder_that_has_not_changed_is_not_read(self, session: Session, tmp_path: Path) -> None:
        """If the modification time of the folder is old and unchanged, its files are not read."""
        place_request(tmp_path, Request.make(7))
        session.look()
        read_ns, read_at = session.control._read_at
        session.control._read_at = read_ns, read_at - 10
        session.control._files.clear()
        session.look()
        assert session.control._files == set()

    def test_a_file_system_without_times_of_folders(self, session: Session, tmp_path: Path) -> None:
        """A file system may not keep the times of folders, as a mounted object store. The
        folder is read again after 40 s.
        """
        one, other = Request.make(7), Request.make(8)
        path = place_request(tmp_path, one)
        os.utime(path.parent, (0, 0))
        session.look()
        place_request(tmp_path, other)
        os.utime(path.parent, (0, 0))
        session.control._read_at = (session.control._read_at[0], session.control._read_at[1] - 40)
        assert set(session.look()) == {one.name, other.name}

    def test_a_folder_that_could_not_be_read(self, session: Session, tmp_path: Path) -> None:
        """If reading the folder fails once, it is read again although it has not changed since."""
        request = Request.make(7)
        place_request(tmp_path, request)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "scandir", failing(os.scandir, times=1))
            assert session.look() == {}
        session.control._read_at = (session.control._read_at[0], session.control._read_at[1] - 10)
        assert session.look() == {request.name: "accepted"}

    def test_a_name_listed_before_its_file_exists(self, session: Session, tmp_path: Path) -> None:
        """If a file is listed but cannot be opened yet, the request is not
        refused. A later round accepts it.
        """
        request = Request.make(7)
        place_request(tmp_path, request)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "open", failing(os.open, times=3))
            session.look()
            session.control._read_at = (session.control._read_at[0], session.control._read_at[1] - 10)
            assert [session.look() for _ in range(3)] == [{}, {}, {request.name: "accepted"}]
        assert session.control._unread == {}

    def test_a_listed_file_that_never_appears_is_refused(self, session: Session, tmp_path: Path) -> None:
        """If a listed file cannot be opened after several tries, its request
        is refused and not read again.
        """
        path = place_request(tmp_path, Request.make(7))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "open", failing(os.open, times=1000))
            found = [session.look() for _ in range(TRIES + 1)]
        assert found[-3:] == [{}, {path.stem: "refused"}, {path.stem: "refused"}]
        assert session.look() == {path.stem: "refused"}

    def test_a_request_deleted_before_it_was_read(self, session: Session, tmp_path: Path) -> None:
        """If a user deletes the file before it can be read, there is no request and no outcome."""
        path = place_request(tmp_path, Request.make(7))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "open", failing(os.open, times=1))
            session.look()
        path.unlink()
        assert session.look() == {}
        assert session.control._unread == {}

    def test_a_step_that_begins_while_the_request_is_accepted(self, tmp_path: Path) -> None:
        """If the first step begins while the request is accepted, it is missed, and
        the remaining step is recorded.
        """
        session = Session(tmp_path)
        steps = iter([6, 7, 7])
        session.control._last_step = lambda: next(steps)
        place_request(tmp_path, request := Request.make(7, count=2))
        session.control._take(tmp_path / "requests" / f"{request.name}.json")
        seen = session.control.outcomes()[request.name]
        assert (seen["outcome"], seen["missed"]) == ("accepted", "7")
        assert [str(left.steps) for left in session.selector.requests] == ["8"]


class TestOutcomes:
    def test_a_request_for_a_past_step_is_missed(self, session: Session, tmp_path: Path) -> None:
        """A request is missed if its step has passed, or if its role has no window in that step."""
        session.enter(9)
        past, coming = Request.make(5), Request.make(20, role="critic")
        for request in (past, coming):
            place_request(tmp_path, request)
        assert session.look() == {past.name: "missed", coming.name: "accepted"}
        for step in (20, 21, 22):
            session.enter(step)
        assert session.look()[coming.name] == "missed"
        assert "no window" in session.control.outcomes()[coming.name]["reason"]

    def test_the_rest_of_a_request(self, session: Session, tmp_path: Path) -> None:
        """Of a request for steps 5 and 6, step 5 has passed and is reported. Step 6 is recorded."""
        session.enter(5)
        place_request(tmp_path, request := Request.make(5, count=2))
        session.look()
        assert [session.enter(step) for step in (6, 7, 8)] == [True, False, False]
        assert session.look() == {request.name: "missed"}
        assert session.control.outcomes()[request.name]["missed"] == "5"

    def test_a_request_for_other_ranks(self, tmp_path: Path) -> None:
        """On a rank that a request does not name, its outcome is "not here"."""
        session = Session(tmp_path, rank=2)
        session.enter(5)
        past, coming = Request.make(3, ranks="0"), Request.make(7, ranks="0")
        for request in (past, coming):
            place_request(tmp_path, request)
        assert session.look() == {past.name: "not here", coming.name: "not here"}
        assert {seen["reason"] for seen in session.control.outcomes().values()} == {"for other ranks"}
        for step in (7, 8, 9):
            assert not session.enter(step)
        assert session.look() == {past.name: "not here", coming.name: "not here"}

    def test_a_request_for_a_role_of_other_processes(self, session: Session, tmp_path: Path) -> None:
        """If a trainer has no role `rollout`, a request for it ends as "not here": at once,
        after its step, or at the end.
        """
        session.not_here = {"rollout"}
        session.enter(5, "actor")
        past, early, late = (Request.make(step, role="rollout") for step in (3, 7, 70))
        for request in (past, early, late):
            place_request(tmp_path, request)
        assert session.look() == {past.name: "not here", early.name: "accepted", late.name: "accepted"}
        for step in (7, 8, 9):
            session.enter(step, "actor")
        assert session.look() == {past.name: "not here", early.name: "not here", late.name: "accepted"}
        session.control.close()
        assert {seen["outcome"] for seen in session.control.outcomes().values()} == {"not here"}

    def test_withdrawn_before_it_was_seen_and_after(self, session: Session, tmp_path: Path) -> None:
        """A withdrawn request selects no step. One that was already reached stays reached."""
        before, after, done = (Request.make(step) for step in (7, 8, 3))
        for request in (before, after, done):
            place_request(tmp_path, request)
        withdraw_request(tmp_path, before.name)
        session.look()
        session.enter(3)
        session.look()
        for request in (after, done):
            withdraw_request(tmp_path, request.name)
        expected = {before.name: "withdrawn", after.name: "withdrawn", done.name: "reached"}
        assert session.look() == expected
        assert not session.enter(8)

    def test_the_session_ends_before(self, session: Session, tmp_path: Path) -> None:
        """If the session ends first, the request is missed, with that reason."""
        place_request(tmp_path, request := Request.make(7))
        session.look()
        session.control.close()
        seen = session.control.outcomes()[request.name]
        assert (seen["outcome"], seen["reason"]) == ("missed", "the session ended before these steps")

    def test_old_requests_are_forgotten(self, session: Session, tmp_path: Path) -> None:
        """A request whose steps have passed is removed from the selector."""
        place_request(tmp_path, Request.make(7))
        session.look()
        for step in (7, 30):
            session.enter(step)
        session.look()
        assert session.selector.requests == ()


class TestRefusing:
    def test_where_every_file_belongs_to_one_user(self, session: Session, tmp_path: Path) -> None:
        """If a volume assigns every file to another user, requests of that user are accepted. The file that
        finds this out is removed.
        """
        session.control._uid = os.getuid() + 1
        place_request(tmp_path, request := Request.make(7))
        assert session.look() == {request.name: "accepted"}
        assert sorted(path.name for path in (tmp_path / "requests").iterdir()) == [f"{request.name}.json"]

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")
    def test_another_user_withdraws_nothing(self, session: Session, tmp_path: Path) -> None:
        """A withdrawal by another user is refused and logged once, before and after the request was read."""
        before, after = Request.make(7), Request.make(8)
        with capture_logs() as logs:
            for request in (before, after):
                path = place_request(tmp_path, request)
                if request is after:
                    session.look()
                withdraw_request(tmp_path, request.name)
                os.chown(path.with_suffix(".withdrawn"), 12345, -1)
            expected = {before.name: "accepted", after.name: "accepted"}
            assert session.look() == expected
            assert session.look() == expected
        refused = [line["reason"] for line in logs if line["event"] == "request.withdrawal_refused"]
        assert len(refused) == 2
        assert all("made by user 12345" in reason for reason in refused)

    def test_a_request_that_conflicts_with_the_configuration(self, tmp_path: Path) -> None:
        """A request that conflicts with the configuration is refused, and the reason names the key."""
        session = Session(tmp_path, join_steps=True)
        place_request(tmp_path, request := Request.make(7, capture_per="region", regions=["a"]))
        assert session.look() == {request.name: "refused"}
        assert "join_steps" in session.control.outcomes()[request.name]["reason"]

    def test_a_flood_of_files_is_refused(self, session: Session, tmp_path: Path) -> None:
        """If there are more files than the limit, no further request is read, and the reason is kept."""
        place_request(tmp_path, Request.make(7))
        session.control._files = {str(number) for number in range(KNOWN)}
        assert session.look() == {}
        assert "files" in str(session.control._failed)

    def test_a_file_in_place_of_the_folder(self, session: Session, tmp_path: Path) -> None:
        """If a file has the name of the folder, there is no request, and the reason is kept."""
        (tmp_path / "requests").write_text("")
        assert session.look() == session.look() == {}
        assert "it is no folder" in str(session.control._failed)

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")
    @pytest.mark.parametrize("attack", ["link", "owner"])
    def test_the_folder_of_another_user(self, session: Session, tmp_path: Path, attack: str) -> None:
        """No request is read from a folder that is a link or another user's, and one line says why."""
        place_request(tmp_path, Request.make(7))
        folder = tmp_path / "requests"
        if attack == "link":
            folder.rename(tmp_path / "elsewhere")
            folder.symlink_to(tmp_path / "elsewhere")
        else:
            os.chown(folder, 12345, -1)
        with capture_logs() as logs:
            assert session.look() == session.look() == {}
        assert [line["event"] for line in logs] == ["request.unreadable"]

    def test_an_unreadable_requests_folder(self, tmp_path: Path) -> None:
        """If the run directory is a file, there is no request, and the reason is kept."""
        (tmp_path / "file").write_text("")
        session = Session(tmp_path / "file")
        assert session.look() == {}
        assert session.control._failed is not None


class TestManyFilesOfOthers:
    def test_many_refused_files_share_one_line(self, session: Session, tmp_path: Path) -> None:
        """The first 8 of 4,000 refused files have a log line each. One line counts the rest, and
        one at the end the later file.
        """
        place_request(tmp_path, Request.make(7))
        for number in range(2000):
            (tmp_path / "requests" / f"x{number}.json").write_text("{")
            (tmp_path / "requests" / f"y{number}.withdrawn").symlink_to("/dev/zero")
        with capture_logs() as logs:
            session.look()
            (tmp_path / "requests" / "late.json").write_text("{")
            session.control._read_at = (0, 0.0)
            session.look()
            session.control.close()
        refused = [
            line for line in logs if line["event"] in ("request.refused", "request.withdrawal_refused")
        ]
        assert len(refused) == 8
        counted = [
            (line["files"], line["in_all"]) for line in logs if line["event"] == "request.more_refused"
        ]
        assert counted == [(3992, 4000), (1, 4001)]

    def test_a_few_refused_files_have_a_line_each(self, session: Session, tmp_path: Path) -> None:
        """Each of three refused files has its own log line, and no line counts them."""
        (tmp_path / "requests").mkdir()
        for number in range(3):
            (tmp_path / "requests" / f"x{number}.json").write_text("{")
        with capture_logs() as logs:
            session.look()
            session.control.close()
        assert [line["event"] for line in logs] == ["request.refused"] * 3
