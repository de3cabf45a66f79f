"""Test reading on a cluster: tasks on the nodes make the same timeline and the same report as this
process.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import make_run, record, region, write_spans

from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.ray_workers import Cluster
from stepprof.analysis.timeline.workers import Failed
from stepprof.cli.main import main
from stepprof.errors import ConfigError

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


def trace(number: int) -> bytes:
    """Return a trace of a rank whose events differ from those of every other rank."""
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"op {number}",
            "pid": 7,
            "tid": 7,
            "ts": n * 3.5,
            "dur": 1 + number,
        }
        for n in range(200)
    ]
    return json.dumps({"baseTimeNanoseconds": 1_700_000_000_000_000_000, "traceEvents": events}).encode()


@pytest.fixture
def run(tmp_path):
    """Return a run of six ranks with spans."""
    made = make_run(tmp_path / "runs")
    for rank in range(6):
        record(made, rank=rank, data=trace(rank), pid=100 + rank)
        write_spans(made, rank, region("update", 0.5 + rank / 10))
    return made.path


def where(wanted, fail="") -> tuple[str, int]:
    """Return the node and the process in which a task runs; or fail as requested."""
    import ray

    if fail == "dies":
        os._exit(7)
    if fail == "raises":
        raise ValueError("of no use")
    return ray.get_runtime_context().get_node_id(), os.getpid()


def test_the_timeline_is_the_same(ray_here, run, capsys) -> None:
    """Tasks on the cluster write the same bytes as this process."""
    assert main(["merge", str(run), "--output", str(run / "here")]) == 0
    assert main(["merge", str(run), "--ray"]) == 0
    assert (run / "step-000002" / "timeline.pftrace").read_bytes() == (run / "here").read_bytes()
    assert "1,212 events of 12 sources" in capsys.readouterr().out


def test_the_report_is_the_same(ray_here, run) -> None:
    """The report of the cluster has the same bytes as the report of this process."""
    assert main(["report", str(run), "--json", str(run / "here.json")]) == 0
    assert main(["report", str(run), "--json", str(run / "there.json"), "--ray", "--workers", "1"]) == 0
    assert (run / "there.json").read_bytes() == (run / "here.json").read_bytes()
    assert len(json.loads((run / "here.json").read_bytes())["sources"]) == 12


def test_tasks_import_no_file_of_the_current_folder(ray_here, run) -> None:
    """The command is started in a run that has files of the names of modules. The tasks import none."""
    for name in ("stepprof", "numpy", "msgspec", "isal", "gzip", "bisect"):
        (run / f"{name}.py").write_text(f"open({str(run / 'imported')!r}, 'a').write({name!r} + ' ')")
    address = ray_here.get_runtime_context().gcs_address
    done = subprocess.run(
        [Path(sys.executable).with_name("stepprof"), "report", ".", "--ray", address],
        cwd=run,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, "12 sources" in done.stdout) == (0, True), done.stderr
    assert not (run / "imported").exists()


def test_the_work_is_spread_over_the_nodes_that_see_the_files(ray_here, run) -> None:
    """Tasks run on both nodes and not in this process, and progress is reported."""
    found = find([run], output_dir=run.parent)
    reported = []
    with Cluster() as cluster:
        results = cluster.each(
            where,
            [(wanted,) for wanted in found.inputs],
            sizes=[wanted.bytes for wanted in found.inputs],
            progress=lambda *counts: reported.append(counts),
        )
    assert {node for node, _ in results} == {node["NodeID"] for node in ray_here.nodes() if node["Alive"]}
    assert os.getpid() not in {pid for _, pid in results}
    assert reported == [(number, 12) for number in range(1, 13)]
    assert ray_here.is_initialized()


@pytest.fixture
def disks(cluster, tmp_path):
    """Return two directories of one run. A third node, in its own mount namespace, sees the second
    one at the path of the first, like a host with its own disk.
    """
    for number, place in enumerate((tmp_path / "runs", tmp_path / "there")):
        made = make_run(place)
        for rank in (2 * number, 2 * number + 1):
            record(made, rank=rank, data=trace(rank), pid=100 + rank)
            write_spans(made, rank, region("update", 0.5 + rank / 10))
    inside = (
        f"mount --bind {tmp_path / 'there'} {tmp_path / 'runs'} && "
        f"exec {sys.executable} -m ray.scripts.scripts start --address {cluster.address} --num-cpus 1 --resources '{{\"third\": 1}}' --block"
    )
    namespace = ["unshare", "--mount", "sh", "-c"]
    if subprocess.run([*namespace, "mount --bind /tmp /mnt"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespace for this user")
    log = (tmp_path / "node.log").open("w")
    node = subprocess.Popen([*namespace, inside], stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 180
        while not any("third" in each["Resources"] for each in ray_nodes() if each["Alive"]):
            assert node.poll() is None, (tmp_path / "node.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield tmp_path / "runs" / "r", tmp_path / "there" / "r"
    finally:
        os.killpg(node.pid, signal.SIGTERM)
        node.wait(30)
        while any("third" in each["Resources"] for each in ray_nodes() if each["Alive"]):
            time.sleep(0.2)


def ray_nodes():
    import ray

    return ray.nodes()


def test_sources_on_the_disk_of_another_node_alone(disks, tmp_path) -> None:
    """The sources are found on their node. The result is the same as if both directories had been
    copied here.
    """
    here, there = disks
    for command, name in (("merge", "t.pftrace"), ("report", "t.json")):
        how = ["--output"] if command == "merge" else ["--json"]
        assert main([command, str(here), "--ray", *how, str(tmp_path / f"ray-{name}")]) == 0
        assert main([command, str(here), str(there), *how, str(tmp_path / f"both-{name}")]) == 0
        assert (tmp_path / f"ray-{name}").read_bytes() == (tmp_path / f"both-{name}").read_bytes()
    sources = json.loads((tmp_path / "ray-t.json").read_bytes())["sources"]
    assert sorted((each["kind"], each["rank"]) for each in sources) == [
        (kind, rank) for kind in ("rank", "spans") for rank in range(4)
    ]


def test_another_run_under_the_same_path_is_ignored(tmp_path) -> None:
    """A node may have another run at the same path. It is used only if its id and its evidence are
    those of this run.
    """
    from stepprof.analysis.timeline.ray_workers import gathered_there, steps_there
    from stepprof.run.same_run import evidence_of

    made = make_run(tmp_path)
    record(made)
    ours = ("r", evidence_of(made.path))
    assert steps_there([str(made.path), str(tmp_path / "no")], [ours, ours]) == [2]
    assert steps_there([str(made.path)], [("other", ours[1])]) == []
    assert gathered_there([str(made.path)], [("other", ours[1])], 2) == []
    assert len(gathered_there([str(made.path)], [ours], 2)) == 1
    older = make_run(tmp_path / "older")
    moment = 1_600_000_000_000_000_000
    record(older, start_unix_ns=moment, end_unix_ns=moment + 1)
    assert steps_there([str(older.path)], [ours]) == []


def test_a_failure_affects_one_source(ray_here, run) -> None:
    """A failure affects one source only. A task that raises and a task whose process dies are
    reported as failed.
    """
    found = find([run], output_dir=run.parent)
    tasks = [(wanted, fail) for wanted, fail in zip(found.inputs[:3], ("", "raises", "dies"), strict=True)]
    with Cluster() as cluster:
        fine, raised, died = cluster.each(where, tasks, sizes=[1, 1, 1])
    assert isinstance(fine, tuple)
    assert isinstance(raised, Failed)
    assert "of no use" in raised.reason
    assert isinstance(died, Failed)
    assert re.match("its task on a node of the cluster failed: .*died", died.reason)


def test_a_file_that_no_node_sees_is_read_here(ray_here, run, capsys) -> None:
    """A file that was deleted after the search is reported as a problem, as without a cluster."""
    from stepprof.analysis.report.analyse import analyse

    found = find([run], output_dir=run.parent)
    gone = found.inputs[0]
    Path(gone.paths[0]).unlink()
    with Cluster() as cluster:
        report = analyse(found, cluster=cluster)
    assert any("No such file" in finding.problem for finding in report.problems)
    assert len([source for source in report.sources if source.events]) == 11


def test_no_cluster_is_an_error_that_names_the_option(run, capsys, run_script) -> None:
    """In a process without a connection, an address without a cluster is an error that names the
    option.
    """
    script = "import sys\nfrom stepprof.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    done = run_script(script, "report", str(run), "--ray", "127.0.0.1:1")
    assert done.returncode == 2
    assert '--ray = "127.0.0.1:1": no cluster responds' in done.stderr


def test_without_ray_the_error_says_what_to_install(monkeypatch) -> None:
    """If Ray is not installed, the error says what to install."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="pip install ray"):
        Cluster()
