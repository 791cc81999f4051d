# sanitizers: address thread
# timeout: 300, takes: 40
"""A mount that makes a view, and serves, makes the deltas from one version of it to the next. tests/fs/test_derived_delta.c has when it makes none."""
import re
import signal

import pytest

from derived import *
from relay import Relay
from world import *


@pytest.fixture
def agent():
    need_fuse()
    return Agent()


def rack_of(agent, options="", **size):
    """(a serving mount that makes the view and has version 1, the trainer's checkpoint)"""
    folder = llama(files=2, **size)
    agent.publish("actor", 1, folder, "--run", "a")
    rack = Relay(agent.url, f"derive={VIEW}{options}")
    pull(rack, 1)
    return rack, folder


def way_of(mount, version):
    return re.search(r' how="([^"]*)"', said_of(mount, version)).group(1)


def lists(rack, version):
    """The deltas to it: [(base, state)]."""
    return [(d["base"], d["state"]) for d in rack.get(f"/v1/{VIEW}/{version}/deltas")["deltas"]]


def said_of_deltas(mount):
    """Each delta that it made or gave up: (what, base, version)."""
    return [(what, int(a), int(b)) for what, a, b in re.findall(rf"store (delta made|no delta) model={VIEW} base=(\d+) version=(\d+) ", mount.text())]


def test_the_next_version_comes_by_a_delta_below_the_mount_that_makes_it(agent):
    rack, folder = rack_of(agent)
    middle = Relay(rack.url, DELTAS)
    leaf = Mount(middle.url, DELTAS)
    pull(leaf)
    for version in (2, 3):
        folder = stepped(folder, version, 0.001)
        agent.publish("actor", version, folder, "--run", "a")
        pull(middle, version)  # which passes a version on once it has a digest
        pull(leaf, version)
        for mount in (leaf, middle):
            assert way_of(mount, version).startswith("tcp delta from 1" if version == 2 else ("tcp delta from 2", "tcp chain of 2 from 1")), said_of(mount, version)
            check(mount, version, folder)
            assert digest(mount, VIEW, version) == digest(rack, VIEW, version)
    wait_for(lambda: len(said_of_deltas(rack)) == 2, "the deltas")
    assert said_of_deltas(rack) == [("delta made", 1, 2), ("delta made", 2, 3)]
    assert lists(rack, 3) == [(2, "whole"), (1, "whole")]
    # what is dropped and made once more has its delta already
    rack.write("drop 3", VIEW, "ctl")
    rack.write("pull 3", VIEW, "ctl")
    assert lists(rack, 3) == [(2, "whole"), (1, "whole")]
    late = Mount(rack.url, DELTAS)
    pull(late, 3)
    check(late, 3, folder)


def test_a_version_that_another_lineage_is_before_has_no_delta(agent):
    rack, folder = rack_of(agent)
    leaf = Mount(rack.url, DELTAS)
    pull(leaf)
    again = stepped(folder, 2, 0.001)
    agent.publish("actor", 2, again, "--run", "b", "--new-run")
    pull(leaf, 2)
    assert way_of(leaf, 2).startswith("tcp full"), said_of(leaf, 2)
    check(leaf, 2, again)
    assert lists(rack, 2) == []
    newer = stepped(again, 3, 0.001)
    agent.publish("actor", 3, newer, "--run", "b")
    pull(leaf, 3)
    assert way_of(leaf, 3).startswith("tcp delta from 2"), said_of(leaf, 3)
    check(leaf, 3, newer)
    wait_for(lambda: said_of_deltas(rack), "the delta")
    assert said_of_deltas(rack) == [("delta made", 2, 3)]


@pytest.mark.parametrize("options, serves", [("delta-cache=0", True), ("keep=2", False)])
def test_no_delta_is_made_where_none_is_kept_or_nobody_can_fetch_it(agent, options, serves):
    folder = llama(files=2)
    agent.publish("actor", 1, folder)
    rack = (Relay if serves else Mount)(agent.url, f"derive={VIEW},{options}")
    pull(rack)
    newer = stepped(folder, 2, 0.001)
    agent.publish("actor", 2, newer)
    pull(rack, 2)
    if serves:
        leaf = Mount(rack.url, DELTAS)
        pull(leaf, 1)
        pull(leaf, 2)
        assert way_of(leaf, 2).startswith("tcp full"), said_of(leaf, 2)
        check(leaf, 2, newer)
        assert lists(rack, 2) == []
    rack.end()  # which waits for what was begun
    assert said_of_deltas(rack) == []


@pytest.mark.parametrize("options, share", [("", 0.9), ("delta-cache=1K", 0.001)])
def test_a_delta_that_is_too_large_is_given_up(agent, options, share):
    rack, folder = rack_of(agent, options and "," + options)
    leaf = Mount(rack.url, DELTAS)
    pull(leaf)
    newer = llama(seed=2, files=2) if share > 0.5 else stepped(folder, 2, share)
    agent.publish("actor", 2, newer, "--run", "a")
    pull(leaf, 2)
    check(leaf, 2, newer)
    wait_for(lambda: said_of_deltas(rack), "what becomes of the delta")
    assert said_of_deltas(rack) == [("no delta", 1, 2)]
    wait_for(lambda: not options or lists(rack, 2) == [], "the room that it took")


@pytest.mark.parametrize("dropped", [(1,), (2,), (2, 1)])
def test_versions_that_are_dropped_while_they_are_compared(agent, dropped):
    """The base, the target, both: where they are dropped in time, the delta is given up. Nothing is lost in either case."""
    rack, folder = rack_of(agent, ",threads=1", hidden=1024)
    leaf = Mount(rack.url, DELTAS)
    pull(leaf)
    newer = stepped(folder, 2, 0.01)
    agent.publish("actor", 2, newer, "--run", "a")
    pull(rack, 2)
    for version in dropped:
        rack.write(f"drop {version}", VIEW, "ctl")
    pull(leaf, 2)
    check(leaf, 2, newer)
    wait_for(lambda: said_of_deltas(rack), "what becomes of the delta")
    for version in (1, 2):
        for model in (VIEW, "actor"):
            if said_of(rack, version, model).startswith("ready "):
                rack.write(f"drop {version}", model, "ctl")
    wait_for(lambda: used(rack) == 0, "the memory of all versions")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_daemon_that_ends_while_it_compares(agent, how):
    rack, folder = rack_of(agent, ",threads=1", hidden=1024)
    leaf = Mount(f"{rack.url},{agent.url}", f"derive={VIEW},{DELTAS}")
    pull(leaf)
    newer = stepped(folder, 2, 0.01)
    agent.publish("actor", 2, newer, "--run", "a")
    pull(rack, 2)
    rack.process.send_signal(how)
    rack.process.wait(10 * SLOW)
    rack.end()
    pull(leaf, 2)
    check(leaf, 2, newer)
