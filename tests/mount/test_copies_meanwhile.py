# beside others
# timeout: 480, takes: 60
# sanitizers: thread
"""One copy of a model in memory (copies=1), and what else happens at that moment: other readers, sources that end, commands."""
import os
import threading
import time

import pytest

from between import Between, LOADS
from one_copy import *


def read_all(mount, version, folder, fails):
    try:
        same(mount, version, folder)
    except OSError as e:
        fails[version] = errno.errorcode[e.errno]


def test_two_want_it():
    "two newer versions that are opened while a reader holds the copy do not wait for each other: the newest has it when the reader ends"
    run = Run()
    mount = Mount(run.url, ONE + ",deadline=6")
    mount.wait_version("actor", 1)
    fd = os.open(mount.file("actor/1/model.safetensors"), os.O_RDONLY)
    fails, threads = {}, []
    for version in sorted((run.step(), run.step()), reverse=True):
        mount.wait_version("actor", version)
        threads.append(threading.Thread(target=read_all, args=(mount, version, run.folders[version], fails)))
        threads[-1].start()
        wait_for(lambda v=version: f"version {v} waits for readers of 1" in mount.text(), "the line")
    os.close(fd)
    for thread in threads:
        thread.join()
    assert 3 not in fails, (fails, mount.text()[-2000:])
    assert copy_of(mount)["holds"] == "3", copy_of(mount)


@pytest.mark.parametrize("of_files", (0, 5 << 20))
def test_source_ends_without_a_delta(of_files):
    """a source that goes away when it has sent nothing of the next version, or one block of many that come whole, takes nothing: the copy is as it
    was, by what little that block's way back is, and goes on when the source is there again"""
    run = Run(LARGE)
    gate = Cut(run.url, 0, 1 << 60, True)
    mount = Mount(gate.url, ONE + ",streams=1,threads=1,deadline=3")
    pull(mount, 1)
    mount.write("1", "actor/version")
    same(mount, 1, run.folders[1])
    run.step(share=0.03)
    mount.wait_version("actor", 2)
    size, gate.left = used(mount), of_files
    mount.refused("2", "actor/version")
    assert "no way back" not in mount.text(), mount.text()
    assert used(mount) - size < 1 << 20, (used(mount), size)
    same(mount, 1, run.folders[1])
    gate.of_deltas = 1 << 60
    gate.open()
    mount.write("2", "actor/version")
    same(mount, 2, run.folders[2])


def test_cut_where_there_are_deltas_only():
    "a version that is half here, and at its sources as a delta only, goes on by that delta from the blocks that are still the version before's"
    archive = unique("archive")
    run = Run(LARGE, "--archive", archive, "--archive-every", "64")
    run.step(share=0.05)
    delta = f"{archive}/v1/actor/2/delta"
    wait_for(lambda: os.path.exists(f"{archive}/v1/models") and '"version":2' in open(f"{archive}/v1/models").read(), "the archive", 60)
    run.agent.end()
    mount = Mount(f"dir:{archive}", ONE + ",streams=1,threads=1")
    pull(mount, 1)
    same(mount, 1, run.folders[1])
    with open(delta, "rb") as f:
        whole = f.read()
    os.truncate(delta, len(whole) // 2)
    assert mount.refused("pull 2", "actor/ctl") == "EBADMSG", mount.text("actor/last_error")
    assert 0 < int(progress(mount, 2)["have_bytes"]) and copy_of(mount)["holds"] == "2", mount.text("actor/2/.wsync/progress")
    with open(delta, "r+b") as f:
        f.write(whole)
    line = pull(mount, 2)
    assert "delta from 1 in place" in line and "rest whole" not in line, line
    same(mount, 2, run.folders[2])
    pull(mount, 1)
    same(mount, 1, run.folders[1])


class Follower:
    """A mount with one copy that follows releases, with an engine behind `between`; 1 is released."""

    def __init__(self, url, run):
        self.run, self.mount = run, Mount(url, ONE)
        self.mount.wait_version("actor", 1)
        self.engine = Engine(run.folders[1])
        self.between = Between(self.engine, *LOADS)
        self.mount.write(f"engine add e sglang {self.between.url}", "actor/ctl")
        self.mount.write("follow-released", "actor/policy")
        wait_for(lambda: any(m["engines"] and m["follows"] for m in run.agent.get("/v1/actor/mounts")), "its registration")
        assert self.released(run.agent.ask("/v1/actor/1/release")) and self.serves("1")

    def released(self, release):
        wait_for(lambda: self.run.agent.get(f"/v1/releases/{release['id']}")["settled"], "the release", 60)
        release = self.run.agent.get(f"/v1/releases/{release['id']}")
        assert release["phase"] == "committed", (release["why"], self.mount.text()[-1500:])
        return release

    def serves(self, version):
        return self.mount.text("actor/version") == version + "\n" and self.engine.serves() == version

    def restart_engine(self):
        self.engine.end()
        self.engine = Engine(self.run.folders[1], port=self.engine.port)


def stays_preparing(run, release, seconds):
    """Also with a sanitizer no longer: what is held back is given up some time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert run.agent.get(f"/v1/releases/{release['id']}")["phase"] == "preparing"
        time.sleep(0.1)


def test_release_while_an_engine_comes_back():
    "a release waits until an engine that came back has what it is brought to, and goes on then"
    run = Run()
    follower = Follower(run.url, run)
    run.step()
    follower.mount.wait_version("actor", 2)
    follower.between.hold = True
    follower.restart_engine()
    wait_for(lambda: follower.between.held, "it to be brought along")
    release = run.agent.ask("/v1/actor/2/release")
    stays_preparing(run, release, 2)
    follower.between.hold = False
    follower.released(release)
    assert follower.serves("2")


def test_engine_comes_back_in_a_release():
    "an engine that comes back while the copy becomes what is released is not brought to what it was"
    run = Run()
    gate = Cut(run.url, 0, 1 << 30, False)
    follower = Follower(gate.url, run)
    run.step()
    follower.mount.wait_version("actor", 2)
    release = run.agent.ask("/v1/actor/2/release")
    wait_for(lambda: copy_of(follower.mount)["holds"] == "2", "the copy on its way")
    follower.restart_engine()
    wait_for(lambda: follower.mount.engines()["e"].startswith("stale"), "the engine's state")
    stays_preparing(run, release, 6)
    gate.of_deltas = 1 << 60
    gate.open()
    follower.released(release)
    assert follower.serves("2")


def test_left_behind_while_it_prepares():
    "an engine that a release with a quorum leaves behind is held while its mount's one copy still becomes what was released"
    run = Run()
    gate = Cut(run.url, 0, 1 << 30, False)
    follower = Follower(gate.url, run)
    other, engine = Mount(run.url, "host=n1"), Engine(run.folders[1])
    other.wait_version("actor", 1)
    other.write(f"engine add e sglang {engine.url}", "actor/ctl")
    other.write("follow-released", "actor/policy")
    wait_for(lambda: sum(m["engines"] for m in run.agent.get("/v1/actor/mounts") if m["follows"]) == 2, "both")
    wait_for(lambda: other.text("actor/version") == "1\n", "its release")
    run.step()
    follower.mount.wait_version("actor", 2)
    release = run.agent.ask("/v1/actor/2/release", {"quorum": 50, "prepare_s": 5})
    wait_for(lambda: copy_of(follower.mount)["holds"] == "2", "the copy on its way")
    wait_for(lambda: run.agent.get(f"/v1/releases/{release['id']}")["phase"] == "committed", "the quorum", 30)
    wait_for(lambda: other.text("actor/version") == "2\n", "the other")
    wait_for(lambda: follower.mount.status("actor")["quarantined"] == "yes" and not follower.engine.is_ready(), "it to be held", 15)
    gate.of_deltas = 1 << 60
    gate.open()
    wait_for(lambda: follower.serves("2") and follower.engine.is_ready(), "it to be brought along", 30)
    assert follower.mount.status("actor")["quarantined"] == "no"


def test_release_after_another():
    "a release that comes while the copy still becomes what one before it released, which it ends, is prepared and served"
    run = Run()
    gate = Cut(run.url, 0, 1 << 30, False)
    follower = Follower(gate.url, run)
    run.step()
    follower.mount.wait_version("actor", 2)
    run.agent.ask("/v1/actor/2/release")
    wait_for(lambda: copy_of(follower.mount)["holds"] == "2", "the copy on its way")
    run.step()
    follower.mount.wait_version("actor", 3)
    release = run.agent.ask("/v1/actor/3/release")
    gate.of_deltas = 1 << 60
    gate.open()
    follower.released(release)
    assert follower.serves("3")


def test_pull_after_another():
    "a pull by command that takes the copy from one before it has it, and only that one fails"
    run = Run()
    gate = Cut(run.url, 0, 1 << 30, False)
    mount, fails = Mount(gate.url, ONE), []
    pull(mount, 1)
    mount.write("1", "actor/version")
    run.step()
    mount.wait_version("actor", 2)
    first = threading.Thread(target=lambda: fails.append(mount.refused("pull 2", "actor/ctl")))
    first.start()
    wait_for(lambda: copy_of(mount)["holds"] == "2", "the copy on its way")
    run.step()
    mount.wait_version("actor", 3)

    def let_on():
        first.join()
        gate.of_deltas = 1 << 60
        gate.open()
    then = threading.Thread(target=let_on)
    then.start()
    pull(mount, 3)
    then.join()
    assert fails[0] in ("ECANCELED", "ESTALE"), fails
    same(mount, 3, run.folders[3])
