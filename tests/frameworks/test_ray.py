# timeout: 900, takes: 60
"""wsync.ray in a real cluster of Ray's on this host, on its CPU: two actors that train by FSDP, two that receive. What each receives equals
what the trainers gather, bit for bit. `make test-frameworks ARGS=ray`."""
import importlib.util
import os
import shutil
import sys
import tempfile

import pytest

import world
from package import package

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: PyPI could not be reached, or `.ci/deps ray` has not run", allow_module_level=True)
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [package(), HERE]

import ray  # noqa: E402
from ray.exceptions import ActorDiedError, RayTaskError  # noqa: E402

from ray_actors import Rollout, Trainer  # noqa: E402
from ray_cluster import environment  # noqa: E402

GET_SECONDS = 300


@pytest.fixture(autouse=True, scope="module")
def cluster(module_scope):
    """Ray's, whose own folder has a short path, as it has sockets in it."""
    world.need_fuse()
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment(world.unique("home")).items():
                patch.setenv(name, value)
            ray.init(num_cpus=4, include_dashboard=False, object_store_memory=80 << 20, _temp_dir=folder)
            yield
            ray.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Run:
    """Two trainers and two receivers."""

    def __init__(self):
        self.agent = world.Agent()
        self.path = world.unique("mnt")
        self.trainers, self.rollouts = self.new_trainers(), [self.new_rollout() for _ in range(2)]

    def new_trainers(self):
        options = dict(agent=f"unix:{self.agent.sock}")
        group = world.unique("group")
        return [ray.remote(num_cpus=0)(Trainer).remote(rank, 2, group, **options) for rank in range(2)]

    def new_rollout(self):
        return ray.remote(num_cpus=0)(Rollout).remote(source=f"unix:{self.agent.sock}", path=self.path)

    def updated(self, how="sync", load="load"):
        """Trains, publishes, loads; returns what the trainers gathered."""
        expected, other = get([t.step.remote() for t in self.trainers])
        assert expected == other
        told = [getattr(t, how).remote() for t in self.trainers]
        got = get([getattr(r, load).remote(told[0]) for r in self.rollouts])
        assert got == [expected] * 2 and get(told[1]) is None
        return expected


def get(refs):
    return ray.get(refs, timeout=GET_SECONDS)


@pytest.fixture(scope="module")
def run(cluster):
    """One for all tests, as each actor imports torch anew; a test replaces those that it kills."""
    run = Run()
    yield run
    pids = get([r.pid.remote() for r in run.rollouts])
    get([r.close.remote() for r in run.rollouts])
    assert not os.path.ismount(run.path)
    for actor in run.trainers + run.rollouts:
        ray.kill(actor)
    world.wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "Ray to end its actors", GET_SECONDS)


def test_updates(run):
    "what ranks gather, three times; then a gather that fails: no one loads, and the next update is whole"
    seen = [run.updated() for _ in range(3)]
    assert all(a.keys() == b.keys() and a != b for a, b in zip(seen, seen[1:]))
    told = [t.fail.remote() for t in run.trainers]
    with pytest.raises(RayTaskError, match="a gather failed"):
        get(run.rollouts[0].load.remote(told[0]))
    assert get([r.serves.remote() for r in run.rollouts]) == [seen[-1]] * 2
    run.updated()


def test_shards(run):
    "a lineage of another kind: ranks write their shards without a gather; receivers take tensors, then a path"
    get([t.close_publisher.remote() for t in run.trainers])
    first = run.updated("sync_shards")
    assert run.updated("sync_shards", load="load_path") != first
    get([t.close_publisher.remote() for t in run.trainers])


def test_receiver_is_killed(run):
    "the other one goes on, and a new one has the version that is there and the next one"
    expected = run.updated()
    ray.kill(run.rollouts[0])
    with pytest.raises(ActorDiedError):
        get(run.rollouts[0].pid.remote())
    told = [t.sync.remote() for t in run.trainers]
    assert get(run.rollouts[1].load.remote(told[0])) == expected
    run.rollouts[0] = run.new_rollout()
    assert get(run.rollouts[0].load.remote(told[0])) == expected
    run.updated()


def test_trainer_is_killed(run):
    "in the middle of a gather: the load that waits for it fails at once, by Ray; receivers keep what they have, and load what new trainers publish"
    before = run.updated()
    said = world.unique("said")
    told = run.trainers[0].sync.remote(stops_at="2.weight", said=said)
    _rest = run.trainers[1].sync.remote(stops_at="2.weight", said=world.unique("said"))
    load = run.rollouts[0].load.remote(told)
    world.wait_for(lambda: os.path.exists(said), "the gather", GET_SECONDS)
    ray.kill(run.trainers[0])
    with pytest.raises((ActorDiedError, RayTaskError), match="died|killed"):
        get(load)
    assert get([r.serves.remote() for r in run.rollouts]) == [before] * 2
    ray.kill(run.trainers[1])
    run.trainers = run.new_trainers()
    run.updated()


