"""Start a Ray cluster whose workers find the simulated engine, and a session for each test."""

from __future__ import annotations

import sys
import warnings

import pytest
from driven import unmeasured
from driving import Windows, drive, workers_path

import stepprof
from stepprof.remote.ray.kind import RayKind


@pytest.fixture(scope="session", autouse=True)
def driver_alone():
    """Measure the coverage of the driver only: dozens of processes import Ray."""
    with unmeasured():
        yield


@pytest.fixture(scope="session")
def plugin(tmp_path_factory):
    """Return the folder with the entry point of the simulated engine, as an installed package has
    it.
    """
    folder = tmp_path_factory.mktemp("plugin")
    info = folder / "simulated-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: simulated\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stepprof.engines]\nsimulated = actor_engine:SimulatedKind\n")
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def cluster(plugin):
    """Start a cluster of two nodes on this machine, and connect to the first. All tests share it,
    because its start is slow.

    The environment of a node has the import path of its workers, so that workers which Ray has
    started in advance have it, too.
    """
    import ray
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("PYTHONPATH", workers_path(plugin))
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        head = {"num_cpus": 2, "include_dashboard": False, "resources": {"first": 8}}
        made = Cluster(initialize_head=True, head_node_args=head)
        made.add_node(num_cpus=1, resources={"second": 8})
        made.wait_for_nodes()
        try:
            ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


@pytest.fixture
def ray_here(cluster):
    """Return ray, connected to the cluster."""
    import ray

    return ray


@pytest.fixture
def session(request, tmp_path):
    """Start the session of the Ray driver, which records nothing itself. The parameter is the
    backend of the ranks.
    """
    made = stepprof.init(
        {
            "output_dir": str(tmp_path / "runs"),
            "steps": "2, 4",
            "ranks": "all",
            "backend": getattr(request, "param", "torch"),
            "engine_start_timeout_seconds": 4,
            "engine_stop_timeout_seconds": 20,
        },
        run_id="job",
    )
    yield made
    stepprof.shutdown(20)


@pytest.fixture
def windows(session):
    """Return the maker of windows for the tests of drivers."""
    return Windows(session)


@pytest.fixture
def start(ray_here):
    """Return a function that starts an actor of a class, with Ray's options and the arguments of
    its constructor. All actors are killed after the test.
    """
    started = []

    def start(cls, options=None, **arguments):
        started.append(ray_here.remote(num_cpus=0, **(options or {}))(cls).remote(**arguments))
        return started[-1]

    yield start
    for handle in started:
        ray_here.kill(handle)


@pytest.fixture
def connect():
    """Return a function that connects to an actor as `attach` does. The drivers are closed after
    the test.
    """
    made = []

    def connect(handle, **options):
        made.append(RayKind().connect(handle, **options))
        return made[-1]

    yield connect
    for driver in made:
        drive(driver.close(10, 10), timeout=30)
