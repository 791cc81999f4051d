# beside others
# timeout: 300, takes: 40
"""What changed between two versions, as a mount shows it to programs that hold the older one: .wsync/changes-from-BASE, by one delta, by
several, of versions that came whole, of one copy in memory, of views and of versions in parts, forwards and back."""
import concurrent.futures
import errno
import struct

import one_copy
import xxhash
from between import Between
from derived import VIEW, llama, stepped
from patching import Changes, Refused
from span import Span
from world import *


class Run(one_copy.Run):
    def __init__(self, options=DELTAS, *args):
        super().__init__(one_copy.THREE, *args)
        self.mount = Mount(self.url, options)

    def pull(self, *versions):
        return [one_copy.pull(self.mount, v) for v in versions]

    def tensors(self, version):
        return tensors_of(os.path.join(self.folders[version], "model.safetensors"))

    def path(self, version):
        return self.mount.file("actor", str(version))

    def shows(self, target):
        return sorted(n for n in os.listdir(self.path(target) + "/.wsync") if n.startswith("changes-from"))

    def expect(self, target, base, recorded=True, base_path=None):
        changes = Changes(self.path(target), base_path or self.path(base))
        assert changes.recorded == recorded
        assert changes.patched(self.tensors(base)) == self.tensors(target)


def refused(path):
    with pytest.raises(OSError) as why:
        open(path, "rb").close()
    return why.value.errno


@pytest.mark.parametrize("options", ["", "reads=link,", "mode=0400,"])
def test_by_one_delta(options):
    "the delta that the pull fetched is shown under both names of its base, to who may read the weights, and patches what holds that"
    run = Run(options + DELTAS)
    run.step()
    how = run.pull(1, 2)
    assert "tcp delta from 1" in how[1], how
    name = f"changes-from-1@{json.loads(run.mount.read('actor/1/.wsync/manifest.json'))['run']}"
    assert run.shows(2) == ["changes-from-1"] and run.shows(1) == ["changes-from-2"]
    texts = [run.mount.read("actor/2/.wsync", n) for n in ("changes-from-1", name)]
    assert texts[0] == texts[1] and texts[0].startswith(b"wsdelta\n")
    run.expect(2, 1)
    assert os.stat(run.path(2) + "/.wsync/changes-from-1").st_mode == os.stat(run.path(2) + "/model.safetensors").st_mode
    with open(run.path(2) + "/.wsync/changes-from-1", "rb") as f:  # not from the beginning to the end
        f.seek(len(texts[0]) - 40)
        assert f.read() == texts[0][-40:]
        f.seek(10)
        assert f.read(3000) == texts[0][10:3010]
    assert refused(run.path(2) + "/.wsync/changes-from-2") == errno.ENOENT
    assert refused(run.path(2) + "/.wsync/changes-from-77") == errno.ENOENT
    with pytest.raises(OSError):
        open(run.path(2) + "/.wsync/changes-from-1", "wb").close()


def test_several_and_back():
    "versions that lie several steps apart are compared, also backwards, once for all who ask"
    run = Run("keep=4," + DELTAS)
    run.pull(1)
    for _ in range(3):
        run.pull(run.step())
    for target, base in ((4, 1), (3, 1), (1, 4), (2, 3), (4, 3)):
        run.expect(target, base)
        run.expect(target, base)
    assert run.mount.text().count("changes listed") == 4, run.mount.text()


class Lying(Between):
    """An agent that leaves changes out: the first edit of what is fetched of a delta names one element, and everything has the right hashes."""

    def __init__(self, server):
        super().__init__(server)
        self.change, self.lied = self.lie, 0

    def lie(self, path, text):
        if not text.startswith(b"wsdelta\n"):
            return text
        out, hashes, at, lies = text[:200], b"", 200, 0
        while (head := struct.unpack_from("<IIBBHIIIQ", text, at))[0] != 2**32 - 1:
            size, data = head[7], text[at + 32 : at + 32 + head[7]]
            record = text[at : at + 24]
            at += 32 + size
            if head[2] == 1 and not lies:
                data = struct.pack("<IIBBBBII", 4096, 1, 2, 0, 0, 0, 0, 0)
                record = struct.pack("<IIBBHIII", *head[:3], 0, 0, 1, len(data), len(data))
                lies += 1
            hash_ = struct.pack("<Q", xxhash.xxh3_64_intdigest(data, seed=xxhash.xxh3_64_intdigest(record)))
            out, hashes = out + record + hash_ + data, hashes + hash_
        self.lied += lies
        return out + text[at : at + 24] + struct.pack("<Q", xxhash.xxh3_64_intdigest(hashes))


def test_source_leaves_changes_out():
    "a delta whose record did not make its block is not shown, though the version came: what changed is found by comparing"
    run = Run()
    lying = Lying(run.agent)
    run.mount = Mount(lying.url, DELTAS)
    run.pull(1)
    run.step()
    how = run.pull(2)
    assert "delta from 1" in how[0] and lying.lied, (how, lying.lied)
    one_copy.same(run.mount, 2, run.folders[2])
    run.expect(2, 1)


def test_came_whole():
    "versions that no delta led to are compared; one that is not here whole shows nothing"
    run = Run("delta-cache=0")
    run.step()
    assert "tcp full" in run.pull(1)[0]
    assert run.shows(2) == [] and refused(run.path(2) + "/.wsync/changes-from-1") == errno.ENOENT
    run.pull(2)
    run.expect(2, 1)
    run.mount.write("drop 1", "actor/ctl")
    wait_for(lambda: not run.shows(2), "the drop")
    assert refused(run.path(2) + "/.wsync/changes-from-1") == errno.ENOENT


def test_everything_changed():
    "more than half of the bytes is no list: the file is refused, and the folders are compared and refused likewise"
    run = Run()
    run.folders[2] = checkpoint(one_copy.THREE, seed=9)
    run.agent.publish("actor", 2, run.folders[2])
    run.pull(1, 2)
    assert refused(run.path(2) + "/.wsync/changes-from-1") == errno.EFBIG
    with pytest.raises(Refused, match="half of the version changed"):
        Changes(run.path(2), run.path(1))


def test_one_copy():
    "where the base's bytes became the target's, its changes come of the fetched delta, of the way back over several steps, and back"
    run = Run("keep=4," + one_copy.ONE)
    run.pull(1)
    for n in (2, 3, 4):
        assert "in place" in run.pull(run.step())[0]
        run.expect(n, n - 1)
    run.expect(4, 1)
    run.expect(4, 2)
    run.pull(3)
    run.expect(3, 4)
    run.expect(3, 1)
    assert refused(run.path(4) + "/.wsync/changes-from-3") == errno.ENOENT


def test_one_copy_held_by_engines():
    "the delta from the version that the engines hold stays, though nothing here can be patched by it any more"
    run = Run("keep=1," + one_copy.ONE)
    engine = Engine(run.path(1))
    run.mount.write(f"engine add e1 sglang {engine.url}", "actor/ctl")
    run.mount.write("1", "actor/version")
    run.pull(run.step())
    assert run.mount.text("actor/version").split()[0] == "1"
    run.expect(2, 1)


def test_needed_tensors():
    "a mount that has only some tensors lists what changed in these, or says that it cannot"
    run = Run("need=layer.0.*;layer.1.*," + DELTAS)
    run.step()
    run.pull(1, 2)
    held = {n: t for n, t in run.tensors(1).items() if n in ("layer.0.weight", "layer.1.weight")}
    assert sorted(tensors_of(run.mount.file("actor/2/model.safetensors"))) == sorted(held)
    changes = Changes(run.path(2), run.path(1))
    assert changes.patched(held) == {n: run.tensors(2)[n] for n in held}


def test_learned_tensors():
    "a mount that learns what is read shows no changes, and what asks for them reads nothing else instead"
    run = Run("need=learn," + DELTAS)
    run.step()
    for n in (1, 2):
        wait_for(lambda n=n: os.path.isdir(run.path(n)), "the version")
        run.mount.read(f"actor/{n}/tensors/layer.0.weight")
    one_copy.pull(run.mount, 2)
    before = run.mount.status("actor")["learned"]
    assert refused(run.path(2) + "/.wsync/changes-from-1") in (errno.EOPNOTSUPP, errno.ENOENT)
    with pytest.raises(Refused, match="need=learn"):
        Changes(run.path(2), run.path(1))
    assert run.mount.status("actor")["learned"] == before


def test_asked_at_once():
    "ranks that ask for the same at the same time wait for one comparison"
    run = Run("delta-cache=64M")
    run.step()
    run.pull(1, 2)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = set(pool.map(lambda _: run.mount.read("actor/1/.wsync/changes-from-2"), range(8)))
    assert len(texts) == 1 and run.mount.text().count("changes listed") == 1


def test_view():
    "a quantised view that the mount makes"
    need_fuse()
    agent, folder = Agent(), llama(files=2)
    mount = Mount(agent.url, f"derive={VIEW},keep=4,{DELTAS}")
    for n in (1, 2):
        folder = stepped(folder, n)
        agent.publish("actor", n, folder)
        mount.wait_version(VIEW, n)
        mount.write(f"pull {n}", f"{VIEW}/ctl")
    target, base = (mount.file(VIEW, n) for n in "21")
    held, want = ({k: v for f in os.listdir(p) if f.endswith(".safetensors") for k, v in tensors_of(os.path.join(p, f)).items()} for p in (base, target))
    changes = Changes(target, base)
    assert changes.recorded and changes.count() > 0 and changes.patched(held) == want


def test_parts():
    "a version that several agents have a part of each; where one copy of it went on, what its parts were is not put together"
    span = Span()
    span.publish()
    span.step()
    mount = Mount(span.urls, DELTAS)
    for n in (1, 2):
        one_copy.pull(mount, n)
    held, want = (tensors_of(mount.file("actor", n, "model.safetensors")) for n in (1, 2))
    changes = Changes(mount.file("actor/2"), mount.file("actor/1"))
    assert changes.recorded and changes.patched(held) == want
    single = Mount(span.urls, one_copy.ONE)
    for n in (1, 2):
        one_copy.pull(single, n)
    assert refused(single.file("actor/2/.wsync/changes-from-1")) == errno.ENOENT
    assert "is not here" in single.text()
