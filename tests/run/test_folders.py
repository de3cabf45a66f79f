"""Folders of a run whose names are taken by a file, a pipe or a link."""

from __future__ import annotations

import os
import threading

import pytest
from other_user import as_other_user, needs_root, python_as_other_user, shared  # noqa: F401 - a fixture
from runs import make_run, record

import stepprof
from stepprof.analysis.verify import verify_run
from stepprof.cli.main import main
from stepprof.run.folders import make_folder

TRAPS = {
    "a file": lambda path: path.write_text("precious"),
    "a pipe": os.mkfifo,
    "a broken link": lambda path: path.symlink_to("nowhere"),
}


@pytest.fixture(params=TRAPS)
def trap(request):
    return TRAPS[request.param]


class TestMakeFolder:
    @pytest.mark.parametrize("place", ["step-000002", "step-000002/manifest"])
    def test_a_file_with_the_folders_name_is_moved_aside(self, tmp_path, trap, place):
        """The file is moved aside with its content, and the folder is made. A second call changes nothing."""
        (tmp_path / place).parent.mkdir(exist_ok=True)
        trap(tmp_path / place)
        make_folder(tmp_path, tmp_path / "step-000002" / "manifest")
        make_folder(tmp_path, tmp_path / "step-000002" / "manifest")
        assert (tmp_path / "step-000002" / "manifest").is_dir()
        aside = tmp_path / f"{place}.aside-1"
        assert os.path.lexists(aside)
        assert trap is not TRAPS["a file"] or aside.read_text() == "precious"

    def test_many_ranks_at_once_make_one_folder(self, tmp_path):
        """Four threads make one folder at the same time, and none moves a
        folder that another one has made.
        """
        for number in range(20):
            run = tmp_path / str(number)
            run.mkdir()
            (run / "step-000002").write_text("x")
            barrier = threading.Barrier(4)
            failed = []

            def make(run=run, barrier=barrier, failed=failed):
                barrier.wait()
                try:
                    make_folder(run, run / "step-000002" / "manifest")
                    (run / "step-000002" / "manifest" / str(threading.get_ident())).touch()
                except OSError as error:
                    failed.append(error)

            threads = [threading.Thread(target=make) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert failed == []
            assert len(list((run / "step-000002" / "manifest").iterdir())) == 4
            assert [path.read_text() for path in run.iterdir() if path.is_file()] == ["x"]

    def test_files_outside_of_the_run_stay(self, tmp_path):
        """If the run directory is a file, an error is raised, and the file stays."""
        (tmp_path / "run").write_text("x")
        with pytest.raises(OSError, match="Not a directory"):
            make_folder(tmp_path / "run", tmp_path / "run" / "step-000002")
        assert (tmp_path / "run").read_text() == "x"

    @needs_root
    def test_a_folder_of_another_user(self, shared):  # noqa: F811
        """If the folder of the step belongs to another user, the error names both owners."""
        as_other_user('mkdir "$1"', shared / "run")
        (shared / "run" / "step-000002").mkdir(mode=0o755)
        script = (
            "run = pathlib.Path(sys.argv[1])\n"
            "try: make_folder(run, run / 'step-000002' / 'manifest')\n"
            "except OSError as error: print(error)"
        )
        said = python_as_other_user(
            "pathlib, sys\nfrom stepprof.run.folders import make_folder", script, shared / "run"
        )
        assert "step-000002 belongs to user 0, and the run to user 65534" in said


@pytest.mark.parametrize("place", ["step-000002", "step-000002/manifest", "step-000002/actor"])
def test_a_job_records_all_the_same(tmp_path, trap, place, capsys):
    """The job records into a new folder, and `check` succeeds. If the step's file
    was moved, `check` notes it.
    """
    session = stepprof.init({"steps": "2", "output_dir": str(tmp_path), "backend": "null"}, run_id="r")
    run = tmp_path / "r"
    (run / place).parent.mkdir(exist_ok=True)
    trap(run / place)
    with stepprof.profile_step(2, role="actor"):
        pass
    stepprof.shutdown()
    assert session is not None
    assert main(["check", str(run)]) == 0
    assert ("step-000002.aside-1: is not a folder: it was moved aside" in capsys.readouterr().out) == (
        place == "step-000002"
    )


class TestCheck:
    def test_a_file_where_a_step_should_be(self, tmp_path):
        """`check` reports a file that has the name of a step's folder."""
        run = make_run(tmp_path)
        record(run)
        record(run, rank=1)
        (run.path / "step-000003").touch()
        assert [(each.step, each.where, each.problem) for each in verify_run(run.path).problems] == [
            (3, "step-000003", "is not a folder: nothing can be recorded there")
        ]

    @needs_root
    def test_a_folder_of_another_user(self, shared):  # noqa: F811
        """The problem names the owner of the folder and of the run."""
        run = make_run(shared)
        record(run)
        record(run, rank=1)
        run.path.chmod(0o777)
        as_other_user('mkdir "$1"', run.path / "step-000003")
        problems = [(each.where, each.problem) for each in verify_run(run.path).problems]
        assert ("step-000003", "belongs to user 65534, and the run to user 0") in problems
