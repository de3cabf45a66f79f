"""The run directory: names, claims, atomic writes, and the errors if it cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepprof.errors import ConfigError
from stepprof.host import atomic_files
from stepprof.host.atomic_files import publish, write_atomically
from stepprof.run.layout import open_run, step_folder, step_number


def make_run(output_dir, **given):
    arguments = {"run_id": "r", "rank": 0, "world_size": 1, "environ": {}, "description": {}}
    return open_run(output_dir, **{**arguments, **given})


def hidden(folder):
    return [path.name for path in Path(folder).rglob(".*") if path.is_file()]


@pytest.fixture
def tmpfs(tmp_path):
    """Return a function that mounts a small file system. The test is skipped if mounting is not permitted."""
    mounted = []

    def mount(options):
        target = tmp_path / f"mount-{len(mounted)}"
        target.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", target],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
        mounted.append(target)
        return target

    yield mount
    for target in mounted:
        subprocess.run(["umount", "-l", target], check=False)


@pytest.fixture
def without_links(mocker):
    """Make `os.link` fail, as on a file system without hard links, such as exFAT or FUSE."""
    mocker.patch.object(os, "link", side_effect=PermissionError(1, "Operation not permitted"))


class TestPublish:
    def test_takes_the_name_when_it_is_free(self, tmp_path):
        """The temporary file is renamed to the free name."""
        tmp = tmp_path / ".x"
        tmp.write_bytes(b"1")
        assert publish(tmp, tmp_path / "rank-0.trace.json.gz") == tmp_path / "rank-0.trace.json.gz"
        assert not tmp.exists()

    @pytest.mark.parametrize(
        ("name", "second"),
        [
            ("rank-0.trace.json.gz", "rank-0.2.trace.json.gz"),
            ("actor-rank-0.json", "actor-rank-0.2.json"),
            ("v1.b-rank-0.json", "v1.b-rank-0.2.json"),
            ("rank-0.nsys-rep", "rank-0.2.nsys-rep"),
            ("rank-0.2.json", "rank-0.2.2.json"),
            ("rank-0", "rank-0.2"),
        ],
    )
    def test_never_overwrites(self, tmp_path, name, second):
        """A file with the name is not overwritten. The new file gets a number before the extension."""
        (tmp_path / name).write_bytes(b"old")
        tmp = tmp_path / ".x"
        tmp.write_bytes(b"new")
        assert publish(tmp, tmp_path / name).name == second
        assert (tmp_path / name).read_bytes() == b"old"
        assert (tmp_path / second).read_bytes() == b"new"

    def test_without_hard_links_names_are_still_unique(self, tmp_path, without_links):
        """Without hard links each file still gets its own name, and no temporary file remains."""
        for content in (b"1", b"2", b"3"):
            tmp = tmp_path / ".x"
            tmp.write_bytes(content)
            publish(tmp, tmp_path / "a.json")
        assert [(tmp_path / name).read_bytes() for name in ("a.json", "a.2.json", "a.3.json")] == [
            b"1",
            b"2",
            b"3",
        ]
        assert hidden(tmp_path) == []

    def test_a_name_reserved_by_a_dead_process_is_passed_over(self, tmp_path, without_links):
        """If a process was killed between reservation and rename, the next process uses the next number."""
        (tmp_path / ".a.json.taken").touch()
        tmp = tmp_path / ".x"
        tmp.write_bytes(b"1")
        assert publish(tmp, tmp_path / "a.json").name == "a.2.json"

    def test_a_lost_reply_is_recognised(self, tmp_path, mocker):
        """If NFS makes a link and answers "exists", the file still gets the name."""
        link = os.link

        def link_twice(source, target):
            link(source, target)
            link(source, target)

        mocker.patch.object(os, "link", side_effect=link_twice)
        tmp = tmp_path / ".x"
        tmp.write_bytes(b"1")
        assert publish(tmp, tmp_path / "a.json").name == "a.json"
        assert hidden(tmp_path) == []

    def test_a_temporary_file_that_vanished_is_an_error(self, tmp_path):
        """Publishing a missing temporary file raises FileNotFoundError. Placing a
        file on its own name succeeds.
        """
        (tmp_path / "a.json").touch()
        with pytest.raises(FileNotFoundError):
            publish(tmp_path / ".gone", tmp_path / "b.json")
        assert atomic_files.place(tmp_path / "a.json", tmp_path / "a.json") is True

    def test_a_name_that_was_taken_and_is_free_again(self, tmp_path, mocker):
        """If `link` says that the name exists but no file has it, the name is not
        ours. The temporary file stays.
        """
        mocker.patch.object(os, "link", side_effect=FileExistsError(17, "File exists"))
        tmp = tmp_path / ".x"
        tmp.write_bytes(b"1")
        assert atomic_files.place(tmp, tmp_path / "a.json") is False
        assert tmp.exists()

    def test_a_vanished_target_folder_is_an_error(self, tmp_path):
        """If the target folder is missing, the caller gets the error, and the temporary file stays."""
        tmp = tmp_path / ".x"
        tmp.write_bytes(b"1")
        with pytest.raises(FileNotFoundError):
            publish(tmp, tmp_path / "gone" / "a.json")
        assert tmp.exists()


class TestWriteAtomically:
    def test_replaces_the_whole_file(self, tmp_path):
        """The file has the new content, and no temporary file remains."""
        path = tmp_path / "a.json"
        write_atomically(path, b"old")
        write_atomically(path, b"new")
        assert path.read_bytes() == b"new"
        assert hidden(tmp_path) == []

    def test_a_full_disk_keeps_the_old_version(self, tmpfs):
        """If the new content does not fit on the disk, the error is raised, and the old content stays."""
        folder = tmpfs("size=64k")
        path = folder / "a.json"
        write_atomically(path, b"old")
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, b"x" * 200_000)
        assert path.read_bytes() == b"old"
        assert hidden(folder) == []

    def test_a_target_that_is_a_folder(self, tmp_path):
        """If the target is a folder, an error is raised, and no temporary file remains."""
        (tmp_path / "a.json").mkdir()
        with pytest.raises(IsADirectoryError):
            write_atomically(tmp_path / "a.json", b"x")
        assert hidden(tmp_path) == []

    def test_a_temporary_name_left_by_a_dead_process_is_passed_over(self, tmp_path, monkeypatch):
        """The temporary file of a dead process with the same process id is neither used nor removed."""
        monkeypatch.setattr(atomic_files, "_numbers", iter([1, 2]))
        left = tmp_path / f".a.json.{os.getpid()}-1.tmp"
        left.write_bytes(b"half")
        write_atomically(tmp_path / "a.json", b"x")
        assert left.read_bytes() == b"half"
        assert (tmp_path / "a.json").read_bytes() == b"x"


class TestWriteExclusively:
    def test_only_the_first_writer_succeeds(self, tmp_path):
        """The second call returns False, and the content of the first one stays."""
        path = tmp_path / "a.json"
        assert [atomic_files.write_exclusively(path, content) for content in (b"1", b"2")] == [True, False]
        assert path.read_bytes() == b"1"
        assert hidden(tmp_path) == []

    def test_an_error_leaves_nothing(self, tmp_path, mocker):
        """If `link` fails with an I/O error, the error is raised, and no temporary file remains."""
        mocker.patch.object(os, "link", side_effect=OSError(5, "Input/output error"))
        with pytest.raises(OSError, match="Input/output"):
            atomic_files.write_exclusively(tmp_path / "a.json", b"1")
        assert hidden(tmp_path) == []


class TestStepFolder:
    def test_folder_names_round_trip(self):
        """The step is read back from the folder's name, also beyond six digits."""
        assert [step_number(step_folder(step)) for step in (0, 2, 1_234_567)] == [0, 2, 1_234_567]

    @pytest.mark.parametrize("name", ["spans", "step-", "step-12", "step-000002.bak", "xstep-000002"])
    def test_other_names_are_not_steps(self, name):
        """Names that `step_folder` would not make are no steps."""
        assert step_number(name) is None


class TestOpenRun:
    def test_describes_the_job(self, tmp_path):
        """`run.json` has the run id and its source, the writing process, and the caller's fields."""
        run = make_run(tmp_path / "a" / "b", description={"config": {"steps": "2"}})
        content = json.loads((run.path / "run.json").read_text())
        assert run.path == tmp_path / "a" / "b" / "r"
        assert (content["schema_version"], content["run_id"], content["run_id_from"]) == (1, "r", "run_id")
        assert content["config"] == {"steps": "2"}
        assert content["writer"]["pid"] == os.getpid()
        assert str(run.path) in repr(run)

    def test_the_first_description_is_kept(self, tmp_path):
        """A later rank does not change `run.json`, and leaves no temporary file."""
        make_run(tmp_path, description={"n": 1})
        run = make_run(tmp_path, rank=1, description={"n": 2})
        assert json.loads((run.path / "run.json").read_text())["n"] == 1
        assert hidden(tmp_path) == []

    def test_relative_to_the_folder_at_that_time(self, tmp_path, monkeypatch):
        """A relative `output_dir` is resolved when the run is opened."""
        monkeypatch.chdir(tmp_path)
        assert make_run(Path("runs")).path == tmp_path / "runs" / "r"

    def test_a_path_under_a_file(self, tmp_path):
        """The error names the key, the value, the path and the cause."""
        (tmp_path / "file").touch()
        with pytest.raises(
            ConfigError,
            match=r'output_dir = ".*file/runs": cannot be made or written: .*Not a directory; name',
        ):
            make_run(tmp_path / "file" / "runs")

    def test_a_file_in_place_of_the_folder(self, tmp_path):
        """If `output_dir` is a device or file, such as `/dev/full`, the error names it."""
        with pytest.raises(
            ConfigError, match=r'output_dir = "/dev/full": cannot be made or written: /dev/full'
        ):
            make_run(Path("/dev/full"), run_id=None)

    def test_a_read_only_mount(self, tmpfs):
        """On a read-only mount, opening the run fails, also for root."""
        folder = tmpfs("ro")
        with pytest.raises(ConfigError, match=r"output_dir = .*Read-only file system"):
            make_run(folder / "runs")

    def test_a_full_disk(self, tmpfs):
        """On a full disk, opening the run fails."""
        folder = tmpfs("size=64k")
        with pytest.raises(OSError, match="No space left"):
            (folder / "filler").write_bytes(b"x" * 200_000)
        with pytest.raises(ConfigError, match=r"output_dir = .*No space left on device"):
            make_run(folder, description={"x": "y" * 10_000})

    def test_a_later_rank_that_cannot_write_fails(self, tmpfs):
        """A rank that cannot write gets an error, even if `run.json` of another rank exists."""
        folder = tmpfs("size=64k")
        make_run(folder)
        with pytest.raises(OSError, match="No space left"):
            (folder / "filler").write_bytes(b"x" * 200_000)
        with pytest.raises(ConfigError, match=r"No space left on device"):
            make_run(folder, rank=1)


class TestClaim:
    def test_layout(self, tmp_path):
        """A claim makes the fragment in `manifest/`, and the folder and stem of the artifacts."""
        run = make_run(tmp_path)
        claim = run.claim(2, "actor", 3, {"status": "lost"})
        assert claim.folder == run.path / "step-000002"
        assert claim.fragment == claim.folder / "manifest" / "actor-rank-3.json"
        assert claim.stem == "actor/rank-3"
        assert (claim.folder / "actor").is_dir()
        assert json.loads(claim.fragment.read_text()) == {"status": "lost"}
        assert str(claim.fragment) in repr(claim)

    @pytest.mark.parametrize(
        ("role", "rank", "fragment", "stem"),
        [
            (None, 0, "step-rank-0.json", "step/rank-0"),
            ("rollout", "driver", "rollout-rank-driver.json", "rollout/rank-driver"),
            ("manifest", 0, "manifest-rank-0.json", "manifest-artifacts/rank-0"),
            ("a", "../x", "a-rank-x-", "a/rank-x-"),
            ("a", "/", "a-rank-unnamed.json", "a/rank-unnamed"),
        ],
    )
    def test_names(self, tmp_path, role, rank, fragment, stem):
        """Names of fragments and stems for a missing role, for a driver, and for
        ranks that are no file names.
        """
        claim = make_run(tmp_path).claim(2, role, rank, {})
        assert claim.fragment.name.startswith(fragment)
        assert claim.stem.startswith(stem)

    def test_the_same_again_gets_a_number(self, tmp_path):
        """A second claim of the same step, role and rank gets a number, and the first one stays unchanged."""
        run = make_run(tmp_path)
        claims = [run.claim(2, "actor", 0, {"n": n}) for n in (1, 2, 3)]
        assert [claim.stem for claim in claims] == ["actor/rank-0", "actor/rank-0.2", "actor/rank-0.3"]
        assert [json.loads(claim.fragment.read_text())["n"] for claim in claims] == [1, 2, 3]
        assert hidden(tmp_path) == []

    def test_write_replaces_ours_alone(self, tmp_path):
        """Writing the second claim changes its own fragment only."""
        run = make_run(tmp_path)
        first, second = run.claim(2, "actor", 0, {"n": 1}), run.claim(2, "actor", 0, {"n": 2})
        second.write({"n": 3})
        assert [json.loads(claim.fragment.read_text())["n"] for claim in (first, second)] == [1, 3]

    def test_a_vanished_folder_is_made_again(self, tmp_path):
        """If another process has removed the manifest folder, `write` makes it again."""
        run = make_run(tmp_path)
        claim = run.claim(2, "actor", 0, {"n": 1})
        claim.fragment.unlink()
        claim.fragment.parent.rmdir()
        claim.write({"n": 2})
        assert json.loads(claim.fragment.read_text()) == {"n": 2}

    def test_errors_reach_the_caller(self, tmpfs):
        """On a full disk the caller gets the error. The old content stays, and no temporary file remains."""
        folder = tmpfs("size=64k")
        run = make_run(folder)
        claim = run.claim(2, "actor", 0, {"n": 1})
        with pytest.raises(OSError, match="No space"):
            claim.write({"n": "x" * 200_000})
        with pytest.raises(OSError, match="No space"):
            run.claim(2, "actor", 0, {"n": "x" * 200_000})
        assert json.loads(claim.fragment.read_text()) == {"n": 1}
        assert hidden(folder) == []

    def test_a_link_that_fails_leaves_nothing(self, tmp_path, mocker):
        """If `link` fails, neither a new claim nor a repeated one leaves a temporary file."""
        run = make_run(tmp_path)
        claim = run.claim(2, "actor", 0, {"n": 1})
        claim.fragment.unlink()
        mocker.patch.object(os, "link", side_effect=OSError(5, "Input/output error"))
        with pytest.raises(OSError, match="Input/output"):
            claim.write({})
        with pytest.raises(OSError, match="Input/output"):
            run.claim(2, "actor", 0, {})
        assert hidden(tmp_path) == []

    def test_names_stay_unique_with_a_frozen_clock(self, tmp_path):
        """Six processes with one frozen clock get six different runs, claims and span files."""
        script = tmp_path / "one.py"
        script.write_text(
            "import sys, time, pathlib\n"
            "for name in ('time', 'time_ns', 'monotonic', 'monotonic_ns', 'perf_counter', 'perf_counter_ns'):\n"
            "    setattr(time, name, lambda value=1_700_000_000: value)\n"
            "frozen = time.gmtime(1_700_000_000)\n"
            "time.strftime = lambda form, _=None, strftime=time.strftime: strftime(form, frozen)\n"
            "from stepprof.run.layout import open_run\n"
            "root = pathlib.Path(sys.argv[1])\n"
            "alone = open_run(root, run_id=None, rank=0, world_size=1, environ={}, description={})\n"
            "run = open_run(root, run_id='r', rank=0, world_size=1, environ={}, description={})\n"
            "claim = run.claim(2, 'actor', 0, {'run': alone.run_id})\n"
            "print(alone.run_id, claim.stem, run.spans_path(0).name)\n"
        )
        processes = [
            subprocess.Popen([sys.executable, script, tmp_path / "runs"], stdout=subprocess.PIPE, text=True)
            for _ in range(6)
        ]
        lines = [process.communicate(timeout=200)[0].split() for process in processes]
        assert [process.returncode for process in processes] == [0] * 6
        for column in zip(*lines, strict=True):
            assert len(set(column)) == 6
        fragments = (tmp_path / "runs" / "r" / "step-000002" / "manifest").glob("*.json")
        assert {json.loads(path.read_text())["run"] for path in fragments} == {line[0] for line in lines}


class TestSpansPath:
    def test_a_new_file_each_time(self, tmp_path):
        """Each call makes a new empty file with the next number."""
        run = make_run(tmp_path)
        paths = [run.spans_path(0), run.spans_path(0), run.spans_path("driver")]
        assert [path.name for path in paths] == [
            "rank-0.000001.jsonl",
            "rank-0.000002.jsonl",
            "rank-driver.000001.jsonl",
        ]
        assert all(path.read_bytes() == b"" for path in paths)
