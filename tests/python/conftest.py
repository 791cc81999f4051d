# timeout: 480, takes: 75
"""Fixtures of the Python package's tests, which run on its wheel."""
import pytest

import installed_wheel
import world

if installed_wheel.LACKING:
    collect_ignore_glob = ["test_[!w]*.py"]


@pytest.fixture
def mounted():
    """(mount, {version: checkpoint folder}) of a model `actor` with versions 1 and 2."""
    world.need_fuse()
    agent = world.Agent()
    folders = {v: world.checkpoint(world.SMALL, seed=v) for v in (1, 2)}
    for version, folder in folders.items():
        agent.publish("actor", version, folder)
    mount = world.Mount(agent.url)
    mount.wait_version("actor", 2)
    return mount, folders
