# beside others
# timeout: 900, takes: 110
# sanitizers: address
"""One copy of a model in memory (copies=1) whose versions come in parts: all parts are patched where they lie, exact on the way back."""
import os
import threading

from one_copy import *
from span import Span

SLOWLY = ",streams=1,threads=1"
WITHOUT_DELTAS = ("--delta-cache", "0")


def same(span, mount, version):
    got, want = mount.read("actor", version, "model.safetensors"), span.bytes[version]
    assert got == want, (version, len(got), len(want), [i for i in range(0, len(want), 4096) if got[i : i + 4096] != want[i : i + 4096]][:9])


def in_place(line, n=2):
    assert line.count("in place") == n and "rest whole" not in line, line


def test_there_and_back():
    "the parts of a version take the place of those before, in memory that was read; the way back is exact without any source"
    span = Span()
    span.publish()
    mount = Mount(span.urls, ONE)
    pull(mount, 1)
    same(span, mount, 1)
    size = used(mount)
    for _ in range(3):
        version = span.step()
        line = pull(mount, version)
        in_place(line)
        assert "tcp delta from" in line, line
        same(span, mount, version)
        assert copy_of(mount)["holds"] == str(version) and copy_of(mount)["way-back"] == str(version - 1), copy_of(mount)
        assert int(copy_of(mount)["way-back-bytes"]) > 0 and used(mount) < 1.1 * size, (used(mount), size, copy_of(mount))
        mount.write(f"verify {version}", "actor/ctl")
    span.end()
    for version in (3, 4, 3):
        line = pull(mount, version)
        in_place(line)
        assert "moved=0 " in line, line
        same(span, mount, version)
        mount.write(f"verify {version}", "actor/ctl")


def test_pages_in_a_pipe_stay():
    "bytes that a reader has spliced into a pipe are the old version's after all parts were patched"
    span = Span()
    span.publish()
    mount = Mount(span.urls, ONE + ",threads=4")
    pull(mount, 1)
    want = mount.read("actor/1/model.safetensors")
    ends = os.pipe()
    fd = os.open(mount.file("actor/1/model.safetensors"), os.O_RDONLY)
    places = [0, 4 << 20, 5 << 20, 9 << 20, len(want) - 4096]
    for at in places:
        assert os.splice(fd, ends[1], 4096, offset_src=at) == 4096
    os.close(fd)
    for _ in range(2):
        version = span.step(0.3)
        in_place(pull(mount, version))
        same(span, mount, version)
    for at in places:
        assert os.read(ends[0], 4096) == want[at : at + 4096], at
    os.close(ends[0])
    os.close(ends[1])


def test_switches():
    "engines are switched to and fro through the one copy of a version in parts; the others are refused by name"
    span = Span(SIDECARS=checkpoint({}, files={}))
    span.publish()
    mount = Mount(span.urls, ONE + ",keep=3")
    pull(mount, 1)
    folder = mount.file("actor/1")
    engines = [Engine(folder, api=api) for api in ("sglang", "vllm")]
    for i, e in enumerate(engines):
        mount.write(f"engine add e{i} {e.api} {e.url}", "actor/ctl")
    sums = {}
    for version in (1, 2, 3, 2, 3, 1, 3):
        if version > span.newest:
            span.step()
        mount.wait_version("actor", version)
        mount.write(version, "actor/version")
        assert [e.serves() for e in engines] == [str(version)] * 2
        now = [e.checksum() for e in engines]
        assert sums.setdefault(version, now) == now and len({tuple(s) for s in sums.values()}) == len(sums)
        assert copy_of(mount)["holds"] == str(version)
        for other in set(span.bytes) - {version}:
            try:
                mount.read("actor", other, "model.safetensors")
                raise AssertionError(f"{other} was read")
            except OSError as e:
                assert e.errno == errno.ESTALE, e
            assert f"that is {version}, which the engines serve" in mount.text("actor/last_error"), mount.text("actor/last_error")
        same(span, mount, version)


def begin(span, gate_of, **kw):
    """A mount that holds version 1 as its current one, behind gates; and a thread in which it is switched to 2, of whose parts some are cut."""
    gates = [Cut(a.url, 0, 1 << 60, **kw) for a in span.agents]
    mount = Mount(",".join(g.url for g in gates), ONE + SLOWLY + ",deadline=10")
    pull(mount, 1)
    mount.write("1", "actor/version")
    same(span, mount, 1)
    span.step(0.1)
    mount.wait_version("actor", 2)
    for i, gate in enumerate(gates):
        gate.of_deltas, gate.left = gate_of(i)
    fails = []

    def switch():
        try:
            mount.write("2", "actor/version")
        except OSError as e:
            fails.append(e)

    thread = threading.Thread(target=switch)
    thread.start()
    return gates, mount, thread, fails


OPEN, CLOSED = (1 << 60, 1 << 60), (0, 0)


@pytest.mark.parametrize("late, cuts, of_late", [(0, False, ()), (0, True, ()), (1, False, ()), (1, True, ()), (1, False, WITHOUT_DELTAS)])
def test_cut_in_the_middle(late, cuts, of_late):
    """a switch that is cancelled when one part is patched and the other is not, or is half there, has all as it was, without any source; then it
    goes on"""
    span = Span(own=((), of_late))
    span.publish()
    gates, mount, thread, fails = begin(span, lambda i: (200000, 5 << 20 if of_late else 1 << 20) if i == late else OPEN, cuts=cuts)
    wait_for(lambda: f"ready model=actor@{1 - late}.2 version=2" in mount.text(), "the other part")
    if cuts:
        wait_for(lambda: gates[late].left <= 0, "a part of a block")
    assert copy_of(mount)["holds"] == "2", copy_of(mount)
    try:
        fd = os.open(mount.file("actor/1/model.safetensors"), os.O_RDONLY | os.O_NONBLOCK)
        raise AssertionError(fd)
    except OSError:
        pass
    for g in gates:
        g.of_deltas = g.left = 0
    mount.write("cancel", "actor/ctl")
    thread.join()
    assert fails
    same(span, mount, 1)
    mount.write("verify 1", "actor/ctl")
    assert copy_of(mount)["holds"] == "1", copy_of(mount)
    for g in gates:
        g.of_deltas = 1 << 60
        g.open()
    mount.write("2", "actor/version")
    same(span, mount, 2)


def test_node_dies_in_the_middle():
    "a trainer node that dies while its part is half there costs nothing: the current version is there again; so does the whole trainer's death"
    span = Span()
    span.publish()
    gates, mount, thread, fails = begin(span, lambda i: (200000, 0) if i else OPEN, cuts=False)
    wait_for(lambda: "ready model=actor@0.2 version=2" in mount.text(), "the other part")
    span.agents[1].kill()
    gates[1].end()
    thread.join()
    assert fails and fails[0].errno in (errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ESTALE, errno.ECONNREFUSED), fails
    same(span, mount, 1)
    span.agents[0].kill()
    gates[0].end()
    mount.write("verify 1", "actor/ctl")
    same(span, mount, 1)
    assert copy_of(mount)["holds"] == "1", copy_of(mount)


def test_killed_in_the_middle():
    "after a daemon was killed while one part was patched and the other half, the next one serves the current version and then the new one"
    span = Span()
    span.publish()
    gates, mount, thread, _ = begin(span, lambda i: (200000, 0) if i else OPEN, cuts=False)
    wait_for(lambda: "ready model=actor@0.2 version=2" in mount.text(), "the other part")
    mount.kill()
    thread.join()
    for g in gates:
        g.of_deltas = 1 << 60
        g.open()
    mount = Mount(",".join(g.url for g in gates), ONE, path=mount.path)
    wait_for(lambda: os.path.exists(mount.file("actor/version")) and mount.text("actor/version") == "1\n", "version 1")
    same(span, mount, 1)
    mount.write("2", "actor/version")
    same(span, mount, 2)


def test_whole():
    "where no part has a delta the version is pulled whole into the one copy, which is said before it begins"
    span = Span("--delta-cache", "0")
    span.publish()
    mount = Mount(span.urls, ONE)
    pull(mount, 1)
    same(span, mount, 1)
    size = used(mount)
    line = pull(mount, span.step())
    assert line.count("tcp full") == 2, line
    same(span, mount, 2)
    assert used(mount) == size and copy_of(mount)["way-back"] == "none", copy_of(mount)
    text = mount.text()
    why = "pulled whole (no delta leads to part 1 of 2): there is no way back to 1"
    assert why in text and text.index(why) < text.index("ready model=actor version=2"), text
    assert "there is no way back to 1" in mount.status("actor")["version.1"], mount.status("actor")
    pull(mount, 1)
    same(span, mount, 1)


@pytest.mark.parametrize("copies", [1, 2])
def test_part_without_a_delta(copies):
    "where one part has no delta its blocks alone are pulled whole, and the others are patched; the way back is exact without any source"
    span = Span(own=((), WITHOUT_DELTAS))
    span.publish()
    mount = Mount(span.urls, f"copies={copies},keep=3,{DELTAS}")
    pull(mount, 1)
    same(span, mount, 1)
    size = used(mount)
    for version in (2, 3):
        line = pull(mount, span.step())
        assert line.count("tcp delta from") == 1 and line.count("tcp full") == 1, line
        same(span, mount, version)
        mount.write(f"verify {version}", "actor/ctl")
    if copies == 1:
        assert copy_of(mount)["way-back"] == "1,2" and used(mount) < 1.1 * size, (copy_of(mount), used(mount), size)
    span.end()
    for version in (1, 3, 2):
        line = pull(mount, version)
        assert copies == 2 or "moved=0 " in line, line
        same(span, mount, version)
        mount.write(f"verify {version}", "actor/ctl")


def test_unchanged_blocks_stay():
    "a part that has no delta, and no change either, is not pulled again"
    span = Span(own=((), WITHOUT_DELTAS))
    span.publish()
    mount = Mount(span.urls, ONE)
    pull(mount, 1)
    span.publish()
    wait_for(lambda: span.deltas(2, 0) not in (None, "growing"), "the delta")
    line = pull(mount, 2)
    assert "in place: 0 B" in line and "was there" in line and "moved=0 " in line, line
    same(span, mount, 2)


@pytest.mark.parametrize("of_one", [(), WITHOUT_DELTAS])
def test_no_room_for_the_way_back(of_one):
    "where the cache has no room for what changed, the copy goes on all the same and says that there is no way back"
    span = Span(own=((), of_one))
    span.publish()
    size = os.path.getsize(span.reference.file("actor/1/model.safetensors"))
    mount = Mount(span.urls, f"cache={size + (300 << 10)},{ONE}")
    pull(mount, 1)
    line = pull(mount, span.step(0.3))
    assert line.count("in place") == 2, line
    same(span, mount, 2)
    assert "no way back to 1" in mount.text() and copy_of(mount)["way-back"] == "none", copy_of(mount)
    assert "no way back to 1" in mount.status("actor")["version.1"], mount.status("actor")
    pull(mount, 1)
    same(span, mount, 1)


def test_drop_and_pin():
    "a pinned version in parts stays; dropping what only the way back leads to frees the memory of all parts"
    span = Span()
    span.publish()
    mount = Mount(span.urls, ONE)
    pull(mount, 1)
    size = used(mount)
    mount.write("pin 1", "actor/ctl")
    span.step()
    mount.wait_version("actor", 2)
    assert mount.refused("pull 2", "actor/ctl") == "EBUSY" and "which is pinned" in mount.text("actor/last_error")
    same(span, mount, 1)
    mount.write("unpin 1", "actor/ctl")
    in_place(pull(mount, 2))
    assert used(mount) > size
    mount.write("drop 1", "actor/ctl")
    wait_for(lambda: used(mount) == size, "the memory")
    assert copy_of(mount)["way-back"] == "none"
    same(span, mount, 2)
    mount.write("drop 2", "actor/ctl")
    wait_for(lambda: used(mount) == 0, "the memory")
    pull(mount, 2)
    same(span, mount, 2)


def test_streamed():
    "with open=stream a version in parts can be read while it takes the place, and its bytes are its own"
    span = Span()
    span.publish()
    gates = [Cut(a.url, 1 << 60, 1 << 60, False) for a in span.agents]
    mount = Mount(",".join(g.url for g in gates), ONE + SLOWLY + ",open=stream")
    pull(mount, 1)
    same(span, mount, 1)
    span.step(0.1)
    mount.wait_version("actor", 2)
    gates[1].of_deltas, gates[1].left = 200000, 0
    got = []
    thread = threading.Thread(target=lambda: got.append(mount.read("actor/2/model.safetensors")))
    thread.start()
    wait_for(lambda: "ready model=actor@0.2 version=2" in mount.text(), "the other part")
    gates[1].of_deltas = 1 << 60
    gates[1].open()
    thread.join()
    assert got == [span.bytes[2]]
    same(span, mount, 2)


def test_signed():
    "parts that each agent signs go on by proven records, and back without the agents"
    keys = [unique("node") + ".key" for _ in range(2)]
    for key in keys:
        wsync("key", "new", "--out", key)
    span = Span(own=[("--sign-key", k) for k in keys])
    span.publish()
    mount = Mount(span.urls, f"{ONE},keep=3,verify-key={keys[0]}.pub:{keys[1]}.pub")
    pull(mount, 1)
    same(span, mount, 1)
    for _ in range(2):
        in_place(pull(mount, span.step()))
        same(span, mount, span.newest)
    span.end()
    for version in (2, 1, 3):
        in_place(pull(mount, version))
        same(span, mount, version)


def test_auto():
    "where two versions in parts do not fit, auto keeps one, and says so once"
    span = Span()
    span.publish()
    size = os.path.getsize(span.reference.file("actor/1/model.safetensors"))
    mount, roomy = Mount(span.urls, f"copies=auto,cache={3 * size // 2},{DELTAS}"), Mount(span.urls, f"copies=auto,cache={4 * size},{DELTAS}")
    for version in (1, 2, 3, 2):
        if version > span.newest:
            span.step() if version > 1 else span.publish()
        for m in (mount, roomy):
            pull(m, version)
            same(span, m, version)
    assert mount.text().count("copies=auto says") == 1, mount.text()
    assert copy_of(mount)["holds"] == "2" and "copies" not in roomy.status("actor")


@pytest.mark.parametrize("copies", [1, 2])
def test_part_of_another_placement(copies):
    "a part of a version that was placed otherwise, or split otherwise, is refused with an agent's name, and nothing is lost"
    run = "0123456789abcdef"
    span = Span(RUN=run)
    span.publish()
    mount = Mount(span.urls, f"copies={copies},{DELTAS}")
    pull(mount, 1)
    for env, code, why in (({"SIDECARS": checkpoint({}, files={})}, "EPROTO", "different placements"), ({"UNEVEN": "1"}, "EBADMSG", "different placements of one")):
        with scope():
            other = Span(RUN=run, **env)
            other.publish("step 0.01")
            mixed = Mount(f"{span.agents[0].url},{other.agents[1].url}", f"copies={copies},{DELTAS}")
            mixed.wait_version("actor", 1)
            assert mixed.refused("pull 1", "actor/ctl") == code, mixed.text("actor/last_error")
            said = mixed.text("actor/last_error")
            assert why in said and any(f"127.0.0.1:{a.port}" in said for a in span.agents + other.agents), said
            mount.write(f"add actor {other.agents[1].url}", "ctl")
            wait_for(lambda: "disagree" in mount.text(), "what the sources say of it")
            same(span, mount, 1)
            mount.write("verify 1", "actor/ctl")
            other.publish("step 0.01")  # of which the first trainer has no part
            wait_for(lambda: "actor/2 lacks part 1 of 2" in mount.text("actor/status"), "what lacks")
            assert mount.refused("pull 2", "actor/ctl") == "ENOENT"
            same(span, mount, 1)
