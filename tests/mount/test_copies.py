# beside others
# timeout: 480, takes: 90
# sanitizers: thread
"""One copy of a model in memory (copies=1): patched from version to version, exact on the way back, never under a reader."""
import errno
import mmap
import os
import threading

from one_copy import *


def test_there_and_back():
    "versions take each other's place in memory that was read, and the way back is exact without the source"
    run = Run()
    mount = Mount(run.url, ONE)
    pull(mount, 1)
    same(mount, 1, run.folders[1])
    size = used(mount)
    for _ in range(3):
        line = pull(mount, run.step())
        assert "in place" in line, line
        same(mount, max(run.folders), run.folders[max(run.folders)])
        assert copy_of(mount)["holds"] == str(max(run.folders)) and copy_of(mount)["way-back"] == str(max(run.folders) - 1), copy_of(mount)
        assert used(mount) < 1.1 * size, (used(mount), size)
    kept = int(copy_of(mount)["way-back-bytes"])
    assert 0 < kept < used(mount) - size + 4096 and f'wsync_way_back_bytes{{model="actor"}} {kept}\n' in mount.text("metrics")
    mount.write("verify 4", "actor/ctl")
    run.agent.end()
    for version in (3, 4, 3):
        line = pull(mount, version)
        assert "in place" in line and "moved=0 " in line, line
        same(mount, version, run.folders[version])
        mount.write(f"verify {version}", "actor/ctl")


def test_pages_in_a_pipe_stay():
    "bytes that a reader has spliced into a pipe are the old version's after the copy went on"
    run = Run()
    mount = Mount(run.url, ONE)
    pull(mount, 1)
    want = mount.read("actor/1/model.safetensors")
    ends = os.pipe()
    fd = os.open(mount.file("actor/1/model.safetensors"), os.O_RDONLY)
    places = [0, 4 << 20, 5 << 20, len(want) - 4096]
    for at in places:
        assert os.splice(fd, ends[1], 4096, offset_src=at) == 4096
    os.close(fd)
    for version in (run.step(share=0.5), run.step(share=0.5)):
        assert "in place" in pull(mount, version)
        same(mount, version, run.folders[version])
    for at in places:
        assert os.read(ends[0], 4096) == want[at : at + 4096], at
    os.close(ends[0])
    os.close(ends[1])


def test_reader_keeps_its_version():
    "while a process has the version mapped or open the next one waits, then is refused with who reads; the reader's bytes stay"
    run = Run()
    mount = Mount(run.url, ONE + ",deadline=3")
    pull(mount, 1)
    run.step()
    mount.wait_version("actor", 2)
    path = mount.file("actor/1/model.safetensors")
    fd = os.open(path, os.O_RDONLY)
    mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    os.close(fd)
    want = bytes(mapped)
    for is_mapped in (True, False):
        fails = []

        def switch():
            try:
                mount.write("pull 2", "actor/ctl")
            except OSError as e:
                fails.append(e)

        thread = threading.Thread(target=switch)
        thread.start()

        def is_refused():
            try:
                os.close(os.open(path, os.O_RDONLY))
            except OSError as e:
                assert e.errno == errno.ESTALE, e
                return True
            return False

        wait_for(is_refused, "a new open to be refused", 10)
        assert "another is about to take its place" in mount.text("actor/last_error"), mount.text("actor/last_error")
        thread.join()
        assert fails and fails[0].errno == errno.EBUSY and f"process {os.getpid()} (" in str(fails[0]), fails
        assert bytes(mapped) == want
        same(mount, 1, run.folders[1])  # it can be opened again
        if is_mapped:
            fd = os.open(path, os.O_RDONLY)
    mapped.close()
    os.close(fd)
    assert "in place" in pull(mount, 2)
    same(mount, 2, run.folders[2])


def test_reader_outside():
    "a daemon with a PID namespace of its own, as in a container, sees that a process outside reads, and that it maps what it has closed"
    run = Run()

    class Inside(Mount):
        prefix = ("unshare", "--pid", "--fork", "--kill-child")

    mount = Inside(run.url, ONE + ",deadline=2")
    at_end(wsync, "umount", mount.path, check=False)  # unshare passes no signal on
    pull(mount, 1)
    run.step()
    mount.wait_version("actor", 2)
    fd = os.open(mount.file("actor/1/model.safetensors"), os.O_RDONLY)
    mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    want = bytes(mapped)
    for is_open in (True, False):
        if not is_open:
            os.close(fd)
        assert mount.refused("pull 2", "actor/ctl") == "EBUSY"
        assert bytes(mapped) == want
        assert not is_open or "a process of another PID namespace" in mount.text("actor/last_error"), mount.text("actor/last_error")
    mapped.close()
    assert "in place" in pull(mount, 2)
    same(mount, 2, run.folders[2])


def test_waits_for_a_reader():
    "a reader that ends in time holds the next version up, and no more"
    run = Run()
    mount = Mount(run.url, ONE)
    pull(mount, 1)
    run.step()
    mount.wait_version("actor", 2)
    fd = os.open(mount.file("actor/1/model.safetensors"), os.O_RDONLY)
    thread = threading.Thread(target=lambda: mount.write("pull 2", "actor/ctl"))
    thread.start()
    wait_for(lambda: "waits for readers" in mount.text(), "the line")
    os.close(fd)
    thread.join()
    same(mount, 2, run.folders[2])


def test_whole():
    "a version without a delta takes the place whole, and says before that there is no way back"
    run = Run()
    mount = Mount(run.url, ONE)
    pull(mount, 1)
    same(mount, 1, run.folders[1])
    size = used(mount)
    run.agent.publish("actor", 2, checkpoint(THREE, seed=2))
    wait_for(lambda: run.deltas(2) and run.deltas(2)[0]["state"] == "given-up", "the delta")
    line = pull(mount, 2)
    assert "tcp full" in line, line
    assert used(mount) == size and copy_of(mount)["way-back"] == "none"
    assert "there is no way back to 1" in mount.status("actor")["version.1"], mount.status("actor")
    text = mount.text()
    assert "there is no way back to 1" in text and text.index("there is no way back to 1") < text.index("ready model=actor version=2")
    assert "tcp full" in pull(mount, 1)  # the agent has it still
    same(mount, 1, run.folders[1])


class Engines:
    """Two engines of a mount's, one of each kind."""

    def __init__(self, mount, folder, *args):
        self.mount = mount
        self.all = {f"e{i}": Engine(folder, *args, api=api) for i, api in enumerate(("sglang", "vllm"))}
        for name, e in self.all.items():
            mount.write(f"engine add {name} {e.api} {e.url}", "actor/ctl")

    def serve(self, version, folder):
        assert self.mount.text("actor/version") == f"{version}\n"
        for e in self.all.values():
            with scope():
                want = Engine(folder, api=e.api).checksum()
            assert e.serves() == str(version) and e.checksum() == want, version
            e.generate()


def test_switch_there_and_back():
    "engines are switched to and fro through the one copy; the old version is refused by name"
    run = Run()
    mount = Mount(run.url, ONE + ",keep=3")
    pull(mount, 1)
    engines = Engines(mount, run.folders[1])
    for version in (1, 2, 3, 2, 3, 2, 1, 3):
        if version not in run.folders:
            run.step()
        mount.wait_version("actor", version)
        mount.write(version, "actor/version")
        engines.serve(version, run.folders[version])
        assert copy_of(mount)["holds"] == str(version)
        for other in set(run.folders) - {version}:
            try:
                mount.read("actor", other, "model.safetensors")
                raise AssertionError(f"{other} was read")
            except OSError as e:
                assert e.errno == errno.ESTALE, e
            assert f"that is {version}, which the engines serve" in mount.text("actor/last_error"), mount.text("actor/last_error")
        same(mount, version, run.folders[version])


def test_failed_switch():
    "an engine that refuses the version has all brought back to the one before, whose bytes are the copy's again"
    run = Run()
    mount = Mount(run.url, ONE)
    pull(mount, 1)
    engines = Engines(mount, run.folders[1], "--refuse", "3", "--realistic")
    mount.write("1", "actor/version")
    run.step()
    mount.wait_version("actor", 2)
    mount.write("2", "actor/version")
    engines.serve(2, run.folders[2])
    run.step()
    mount.wait_version("actor", 3)
    for _ in range(3):
        try:
            mount.write("3", "actor/version")
            raise AssertionError("it was loaded")
        except OSError as e:
            assert "every engine was brought back" in str(e), e
        engines.serve(2, run.folders[2])
        assert copy_of(mount)["holds"] == "2", copy_of(mount)
        same(mount, 2, run.folders[2])


def test_pinned():
    "a pinned version is not replaced; what is refused changes nothing"
    run = Run()
    mount = Mount(run.url, ONE)
    pull(mount, 1)
    mount.write("pin 1", "actor/ctl")
    run.step()
    mount.wait_version("actor", 2)
    assert mount.refused("pull 2", "actor/ctl") == "EBUSY"
    assert "which is pinned" in mount.text("actor/last_error")
    same(mount, 1, run.folders[1])
    mount.write("unpin 1", "actor/ctl")
    assert "in place" in pull(mount, 2)
    same(mount, 2, run.folders[2])


def test_drop():
    "dropping what only the way back leads to frees its memory; what is in memory is not dropped from under the current version"
    run = Run()
    mount = Mount(run.url, ONE)
    pull(mount, 1)
    engines = Engines(mount, run.folders[1])
    mount.write("1", "actor/version")
    size = used(mount)
    pull(mount, run.step())
    assert used(mount) > size
    assert mount.refused("drop 2", "actor/ctl") == "EBUSY" and "1, which the engines serve" in mount.text("actor/last_error")
    mount.write("1", "actor/version")
    engines.serve(1, run.folders[1])
    mount.write("drop 2", "actor/ctl")
    wait_for(lambda: used(mount) == size, "the memory")
    mount.write("2", "actor/version")
    mount.write("drop 1", "actor/ctl")
    assert used(mount) == size and copy_of(mount)["way-back"] == "none"


def test_refusals():
    "what does not go with one copy is refused by name"
    need_fuse()
    at = unique("mnt")
    os.makedirs(at)
    for options, why in (("copies=1,reads=link", "reads=link"), ("copies=1,serve=127.0.0.1:0,serve-insecure", "serve"),
                         ("copies=auto,serve=127.0.0.1:0,serve-insecure", "serve"), ("copies=3", "1|2|auto")):
        r = wsync("mount", "-f", "-o", f"{options},state={TESTDIR}/state", "http://127.0.0.1:1", at, check=False)
        assert r.returncode and why in r.stderr, (options, r.stderr)
    r = wsync("export", "-o", "copies=1", "http://127.0.0.1:1", unique("none"), check=False)
    assert r.returncode and "copies=1" in r.stderr, r.stderr


def test_auto():
    "where two versions do not fit, auto keeps one and says so once; where they do there are two; with two copies the error names the option"
    run = Run()
    mount, roomy, two = Mount(run.url, f"copies=auto,cache=16M,{DELTAS}"), Mount(run.url, f"copies=auto,cache=64M,{DELTAS}"), \
        Mount(run.url, f"cache=16M,keep=1,{DELTAS}")
    pull(two, 1)
    for version in (1, 2, 3, 2):
        if version not in run.folders:
            run.step()
        for m in (mount, roomy):
            pull(m, version)
            same(m, version, run.folders[version])
    assert mount.text().count("copies=auto says") == 1, mount.text()
    assert copy_of(mount)["holds"] == "2" and "copies" not in roomy.status("actor")
    two.write("pin 1", "actor/ctl")
    assert two.refused("pull 3", "actor/ctl") == "ENOSPC"
    assert "copies=1" in two.text("actor/last_error"), two.text("actor/last_error")


@pytest.mark.parametrize("late", [False, True])
def test_auto_of_two_models(late):
    "where two versions of one model fit, but not of both models, auto keeps one of each, also of a model that had two before the other came"
    run = Run()
    mount = Mount(run.url, f"copies=auto,cache=32M,{DELTAS}")
    if late:
        pull(mount, 1)
        pull(mount, run.step())
        assert "copies" not in mount.status("actor")
    run.agent.publish("critic", 1, run.folders[1])
    pull(mount, run.step())
    for version in (1, 2):
        if version > 1:
            run.agent.publish("critic", version, run.folders[version])
        wait_for(lambda v=version: os.path.isdir(mount.file("critic", v)), "the other model")
        mount.write(f"pull {version}", "critic/ctl")
        assert tensors_of(mount.file("critic", version, "model.safetensors")) == tensors_of(os.path.join(run.folders[version], "model.safetensors"))
    newest = max(run.folders)
    same(mount, newest, run.folders[newest])
    pull(mount, run.step())
    same(mount, newest + 1, run.folders[newest + 1])
    assert mount.text().count("copies=auto says") == 1, mount.text()
    assert copy_of(mount)["holds"] == str(newest + 1) and "copies" in mount.status("critic")


def test_no_room_for_the_way_back():
    "where the cache has no room for what changed, the copy goes on all the same and says that there is no way back"
    run = Run()
    mount = Mount(run.url, f"cache=10500K,{ONE}")
    pull(mount, 1)
    pull(mount, run.step(share=0.3))
    same(mount, 2, run.folders[2])
    assert "no way back to 1" in mount.text() and copy_of(mount)["way-back"] == "none"
    assert "no way back to 1" in mount.status("actor")["version.1"]
    assert used(mount) <= 10500 << 10
    pull(mount, 1)
    same(mount, 1, run.folders[1])


def test_cut_in_the_middle():
    """a switch that is cancelled while the copy is half patched, by a delta or with blocks that are fetched whole, has it as it was, without the
    source; what is half patched is not shown"""
    for cuts in (False, True):
        run = Run(LARGE)
        gate = Cut(run.url, 0, 1 << 60, cuts)
        mount = Mount(gate.url, ONE + ",streams=1,threads=1,deadline=10")
        pull(mount, 1)
        mount.write("1", "actor/version")
        same(mount, 1, run.folders[1])
        run.step(share=0.03)
        mount.wait_version("actor", 2)
        gate.of_deltas, gate.left = 330000, 1 << 20
        thread = threading.Thread(target=lambda: mount.refused("2", "actor/version"))
        thread.start()
        wait_for(lambda: int(progress(mount, 2).get("have_bytes", 0)) > 0, "a block")
        if cuts:
            wait_for(lambda: gate.left <= 0, "a part of another")
        assert "pulling" in mount.status("actor")["version.2"] and copy_of(mount)["holds"] == "2", mount.status("actor")
        for version in (1, 2):
            with contextlib.suppress(OSError):
                fd = os.open(mount.file("actor", version, "model.safetensors"), os.O_RDONLY | os.O_NONBLOCK) if version == 1 else -1
                assert fd < 0, "version 1 was opened"
        mount.write("cancel", "actor/ctl")
        thread.join()
        run.agent.kill()
        gate.end()
        same(mount, 1, run.folders[1])
        mount.write("verify 1", "actor/ctl")
        assert copy_of(mount)["holds"] == "1", copy_of(mount)


def test_again_on_the_way_back():
    "a switch that is asked for again while the copy is on its way back is not refused because of the current version's layout"
    run = Run(LARGE)
    gate = Cut(run.url, 0, 1 << 60, True)
    mount = Mount(gate.url, ONE + ",streams=1,threads=1,deadline=10")
    pull(mount, 1)
    mount.write("1", "actor/version")
    run.step(share=0.03)
    mount.wait_version("actor", 2)

    def switch():
        with contextlib.suppress(OSError):
            mount.write("2", "actor/version")

    def switched():
        try:
            mount.write("2", "actor/version")
        except OSError as e:  # it met the version just when its memory went on, or its source was cut off
            assert e.errno == errno.ESTALE, e
            return False
        return True

    for _ in range(8):
        gate.of_deltas, gate.left = 330000, 1 << 20
        thread = threading.Thread(target=switch)
        thread.start()
        wait_for(lambda t=thread: int(progress(mount, 2).get("have_bytes", 0)) > 0 or not t.is_alive(), "a block")
        with contextlib.suppress(OSError):  # it may have come through
            mount.write("cancel", "actor/ctl")
        gate.of_deltas = 1 << 50
        gate.open()
        thread.join()
        wait_for(switched, "the switch")
        same(mount, 2, run.folders[2])
        mount.write("1", "actor/version")
    same(mount, 1, run.folders[1])


def test_source_ends_in_the_middle():
    "a source that goes away while the copy is half patched costs nothing: the current version is there again"
    run = Run(LARGE)
    gate = Cut(run.url, 0, 1 << 60, False)
    mount = Mount(gate.url, ONE + ",streams=1,threads=1,deadline=3")
    pull(mount, 1)
    mount.write("1", "actor/version")
    run.step(share=0.03)
    mount.wait_version("actor", 2)
    gate.of_deltas, gate.left = 330000, 0
    assert mount.refused("2", "actor/version") == "ETIMEDOUT", mount.text("actor/last_error")
    same(mount, 1, run.folders[1])
    gate.of_deltas = 1 << 60
    gate.open()
    mount.write("2", "actor/version")
    same(mount, 2, run.folders[2])


def test_killed_in_the_middle():
    "after a daemon was killed while the copy was half patched, the next one serves the current version and then the new one"
    run = Run()
    gate = Cut(run.url, 0, 1 << 60, False)
    mount = Mount(gate.url, ONE + ",streams=1,threads=1,deadline=10")
    pull(mount, 1)
    mount.write("1", "actor/version")
    run.step(share=0.03)
    mount.wait_version("actor", 2)
    gate.of_deltas, gate.left = 160000, 1 << 20
    thread = threading.Thread(target=lambda: mount.refused("2", "actor/version"))
    thread.start()
    wait_for(lambda: int(progress(mount, 2).get("have_bytes", 0)) > 0, "a block")
    mount.kill()
    thread.join()
    gate.of_deltas = 1 << 60
    gate.open()
    mount = Mount(gate.url, ONE, path=mount.path)
    wait_for(lambda: mount.engines() is not None and os.path.exists(mount.file("actor/version")) and mount.text("actor/version") == "1\n", "version 1")
    same(mount, 1, run.folders[1])
    mount.write("2", "actor/version")
    same(mount, 2, run.folders[2])


def test_signed():
    "signed versions go on by proven records, back without the agent, and a mount never takes what was not signed"
    need_fuse()
    key = unique("run") + ".key"
    wsync("key", "new", "--out", key, "--name", "run")
    run = Run(THREE, "--sign-key", key)
    mount = Mount(run.url, f"{ONE},keep=3,verify-key={key}.pub")
    pull(mount, 1)
    same(mount, 1, run.folders[1])
    for _ in range(2):
        assert "in place" in (line := pull(mount, run.step())) and "rest whole" not in line, line
        same(mount, max(run.folders), run.folders[max(run.folders)])
    run.agent.end()
    for version in (2, 1, 3):
        assert "in place" in pull(mount, version)
        same(mount, version, run.folders[version])


def test_streamed():
    "with open=stream a version can be read while it takes the place, and its bytes are its own"
    run = Run()
    gate = Cut(run.url, 1 << 60, 1 << 60, False)
    mount = Mount(gate.url, ONE + ",open=stream,streams=1,threads=1")
    pull(mount, 1)
    same(mount, 1, run.folders[1])
    run.step(share=0.03)
    mount.wait_version("actor", 2)
    gate.of_deltas, gate.left = 160000, 1 << 20
    got = {}
    thread = threading.Thread(target=lambda: got.update(tensors_of(mount.file("actor/2/model.safetensors"))))
    thread.start()
    wait_for(lambda: int(progress(mount, 2).get("have_bytes", 0)) > 0, "a block")
    gate.open()
    thread.join()
    assert got == tensors_of(os.path.join(run.folders[2], "model.safetensors"))
    same(mount, 2, run.folders[2])


def test_sizes():
    "the mount says once what takes how much memory"
    need_fuse()
    agent = Agent()
    one, two = Mount(agent.url, "copies=1,cache=1G"), Mount(agent.url, "cache=1G,delta-cache=0")
    line = next(l for l in one.text().splitlines() if "memory: cache=" in l)
    assert "cache=1.07 GB for versions (copies=1)" in line and "leads back" in line and "stays free" in line, line
    line = next(l for l in two.text().splitlines() if "memory: cache=" in l)
    assert "(copies=2); beside it deltas of each model, nothing;" in line, line
