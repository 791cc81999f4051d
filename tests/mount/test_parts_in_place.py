# beside others
# timeout: 300, takes: 30
# sanitizers: address
"""Versions in parts of which nobody reads the older ones: the next one is made in their memory, with two copies, too."""
import os
import random
import threading
import time

from span import Span
from world import *

ROUNDS = 12


def pull(mount, version):
    mount.wait_version("actor", version)
    mount.write(f"pull {version}", "actor/ctl")
    return mount.status("actor")[f"version.{version}"]


def same(span, mount, version):
    assert mount.read("actor", version, "model.safetensors") == span.bytes[version], version


def in_place(line):
    return line.count(" in place") == 2 and "rest whole" not in line


def test_unread():
    "all parts of a version are patched where those of an older version lie that no process has read; one that was read is copied"
    span = Span()
    span.publish()
    mount = Mount(span.urls, "keep=2")
    pull(mount, 1)
    for _ in range(4):
        line = pull(mount, span.step())
    assert in_place(line), line
    mount.write("verify 5", "actor/ctl")
    same(span, mount, 5)
    same(span, mount, 4)
    for _ in range(2):  # 4 and 5 were read
        line = pull(mount, span.step())
        assert " in place" not in line and line.count("tcp delta from") == 2, line
    same(span, mount, 7)


def test_cut():
    "a pull in place that is cut at any moment leaves nothing half: what is read afterwards is the version"
    seed = int(os.environ.get("PARTS_SEED", time.time_ns() % 1_000_000))
    print(f"PARTS_SEED={seed}")
    chance = random.Random(seed)
    span = Span()
    span.publish()
    mount = Mount(span.urls, "keep=2,streams=1,threads=1")
    pull(mount, 1)
    pull(mount, span.step())
    begun = 0
    for i in range(ROUNDS):
        version = span.step(chance.choice((0.001, 0.01, 0.3)))
        mount.wait_version("actor", version)
        ended = threading.Event()

        def begin(version=version, ended=ended):
            try:
                mount.write(f"pull {version}", "actor/ctl")
            except OSError:
                pass  # it was dropped
            ended.set()

        if i % 2:
            puller = threading.Thread(target=begin)
            puller.start()
            time.sleep(chance.random() * 0.05)
            try:
                mount.write(f"drop {version}", "actor/ctl")
            except OSError:
                pass  # it is not here yet
            puller.join()
        begun += in_place(pull(mount, version))
        mount.write(f"verify {version}", "actor/ctl")
        if i % 4 == 3:
            same(span, mount, version)
    same(span, mount, span.newest)
    assert begun, "no pull was in place"
