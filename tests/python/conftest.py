"""Agents, mounts and checkpoints of tests/world.py for pytest; they end with the test."""
import contextlib
import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import world  # noqa: E402


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def mounted(stack):
    """(mount, {version: checkpoint folder}) of a model `actor` with versions 1 and 2."""
    try:
        world.need_fuse()
    except world.Skip as why:
        pytest.skip(str(why))
    agent = world.Agent(stack)
    folders = {v: world.checkpoint(world.SMALL, seed=v) for v in (1, 2)}
    for version, folder in folders.items():
        agent.publish("actor", version, folder)
    mount = world.Mount(stack, agent.url)
    mount.wait_version("actor", 2)
    return mount, folders
