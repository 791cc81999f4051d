# beside others
# sanitizers: thread
# timeout: 1200, takes: 110
"""Mounts that learn which tensors are read, and have only those come of later versions (-o need=learn)."""
import mmap
import re
import struct

from proxy import Gate
from world import *

BLOCK, AHEAD = 4 << 20, 512 << 10
# A tensor of 6 MiB, which is read in part by the kernel's reading ahead at both of its ends, and has a block of its own.
BIG = {f"layer.{i}.weight": ("BF16", [3072, 1024]) for i in range(8)}
TENSORS = BIG | {"norm": ("F32", [64]), "tail": ("U8", [12345])}
FILE = "model.safetensors"


def place(path, name):
    "(begin, end) of a tensor in its file"
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        begin, end = json.loads(f.read(n))[name]["data_offsets"]
    return 8 + n + begin, 8 + n + end


def by_mmap(path, name):
    begin, end = place(path, name)
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
        return m[begin:end]


def in_sequence(path, name):
    "As torch maps a file: it says that it reads in sequence, for which the kernel's windows are doubled."
    begin, end = place(path, name)
    with open(path, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        with mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as m:
            return m[begin:end]


def by_read(path, name):
    begin, end = place(path, name)
    with open(path, "rb") as f:
        f.seek(begin)
        return f.read(end - begin)


def number(mount, version, what, model="actor"):
    found = re.search(rf" {what}=(\d+)", mount.status(model)[f"version.{version}"])
    return int(found.group(1)) if found else None


def on_demand(mount):
    return int(mount.status()["on_demand_bytes"])


def learned(mount, model="actor"):
    n, what = re.fullmatch(r"(\d+) tensors, learning (\w+)", mount.status(model)["learned"]).groups()
    return int(n), what


def blocks(path, *names):
    "Bytes of the blocks of a file that have a byte of these tensors, or of what the kernel reads ahead of them, or of the header."
    with open(path, "rb") as f:
        n = 8 + struct.unpack("<Q", f.read(8))[0]
    size = os.path.getsize(path)
    which = {b for begin, end in [(0, n)] + [place(path, name) for name in names] for b in range(max(begin - AHEAD, 0) // BLOCK, (min(end + AHEAD, size) - 1) // BLOCK + 1)}
    return sum(min(size, (b + 1) * BLOCK) - b * BLOCK for b in which)


class Run:
    def __init__(self, *args, tensors=TENSORS):
        need_fuse()
        self.agent = Agent(*args)
        self.folders = {}
        self.publish(1, checkpoint(tensors, seed=1))

    def publish(self, version, folder, model="actor"):
        self.folders[version] = folder
        self.agent.publish(model, version, folder)

    def step(self, share=0.001):
        newest = max(self.folders)
        self.publish(newest + 1, step(self.folders[newest], newest + 1, share=share))
        return newest + 1

    def bytes(self, version, name):
        return tensors_of(os.path.join(self.folders[version], FILE))[name][2]

    def size(self, version=1):
        return sum(f["size"] for f in self.agent.get(f"/v1/actor/{version}/manifest")["files"])

    def mount(self, options="need=learn", **kw):
        mount = Mount(self.agent.url, options, **kw)
        wait_for(lambda: os.path.isdir(mount.file("actor", max(self.folders))), "the versions")
        return mount

    def pull(self, mount, version):
        wait_for(lambda: os.path.isdir(mount.file("actor", version)), f"version {version}")
        mount.write(f"pull {version}", "actor/ctl")

    def learns(self, mount, *names, version=1, read=by_mmap):
        "Reads these of a version, and ends the learning."
        for name in names:
            assert read(mount.file("actor", version, FILE), name) == self.bytes(version, name)
        mount.write("learn end", "actor/ctl")


@pytest.mark.parametrize("read", [by_mmap, by_read, in_sequence])
@pytest.mark.parametrize("deltas", ["", DELTAS])
def test_later_versions(read, deltas):
    "what is read of the first version, mapped or not, comes of the next, and nothing else; names and offsets are the source's"
    r = Run()
    mount = r.mount("need=learn" + (deltas and "," + deltas))
    assert learned(mount) == (0, "yes")
    names = ["layer.1.weight", "layer.5.weight"]
    r.learns(mount, *names, read=read)
    n, what = learned(mount)
    assert what == "ended" and 2 <= n <= 4, n  # the short tensors may be in what the kernel reads ahead
    wait_for(lambda: number(mount, 1, "have") == r.size(), "all of the first version")
    r.step()
    if deltas:
        wait_for(lambda: r.agent.get("/v1/actor/2/manifest")["deltas"], "the delta")
    r.pull(mount, 2)
    at = mount.file("actor/2", FILE)
    wants = blocks(at, "norm", "tail", *names) + r.size() - os.path.getsize(at)
    assert number(mount, 2, "needed") <= wants < 0.7 * r.size()
    assert number(mount, 2, "moved") <= wants and number(mount, 2, "bytes") == r.size(2)
    assert on_demand(mount) == 0
    if deltas:
        assert number(mount, 2, "moved") < 0.1 * wants and "delta from 1" in mount.text("actor/status"), mount.text("actor/status")
    assert place(at, "layer.3.weight") == place(mount.file("actor/1", FILE), "layer.3.weight")
    for name in names:
        assert read(at, name) == r.bytes(2, name)
        assert mount.read("actor/2/tensors", name) == r.bytes(2, name)
    assert on_demand(mount) == 0
    mount.write("verify 2", "actor/ctl")


def test_outside():
    "a read outside of what was learned has the block fetched, and is learned: the next version brings it; the kernel keeps what it read"
    r = Run()
    mount = r.mount()
    r.learns(mount, "layer.1.weight")
    r.pull(mount, r.step())
    before = learned(mount)[0]
    assert on_demand(mount) == 0
    assert by_mmap(mount.file("actor/2", FILE), "layer.6.weight") == r.bytes(2, "layer.6.weight")
    assert mount.read("actor/2/tensors/layer.4.weight") == r.bytes(2, "layer.4.weight")
    moved = on_demand(mount)
    assert 0 < moved <= 8 * BLOCK  # two tensors, and what the kernel reads ahead
    assert learned(mount)[0] - before >= 2
    assert mount.status("actor")["version.2"].startswith("ready") and "wsync_on_demand_bytes_total" in mount.text("metrics")
    assert by_mmap(mount.file("actor/2", FILE), "layer.6.weight") == r.bytes(2, "layer.6.weight") and on_demand(mount) == moved
    r.pull(mount, r.step())
    for name in ("layer.6.weight", "layer.1.weight", "layer.4.weight"):
        assert by_mmap(mount.file("actor/3", FILE), name) == r.bytes(3, name)
    assert on_demand(mount) == moved
    assert tensors_of(mount.file("actor/3", FILE)) == tensors_of(os.path.join(r.folders[3], FILE))  # each byte, from wherever


def test_while_it_comes():
    "a reader of a version that nobody has pulled waits for what was learned, and has all else fetched"
    r = Run()
    mount = r.mount()
    r.learns(mount, "layer.1.weight")
    r.step()
    wait_for(lambda: os.path.isdir(mount.file("actor/2")), "version 2")
    assert by_read(mount.file("actor/2", FILE), "layer.7.weight") == r.bytes(2, "layer.7.weight")
    assert by_read(mount.file("actor/2", FILE), "layer.1.weight") == r.bytes(2, "layer.1.weight")
    wait_for(lambda: mount.status("actor")["version.2"].startswith("ready"), "the pull")
    assert number(mount, 2, "needed") < 0.5 * r.size() and 0 < on_demand(mount) < 0.4 * r.size()


@pytest.mark.parametrize("deltas", ["delta-cache=0", DELTAS])
def test_memory(deltas):
    "a version takes the memory of what comes of it; that of a whole one is not passed on to it"
    r = Run()
    mount = r.mount(f"need=learn,{deltas}")
    r.learns(mount, "layer.1.weight")
    for _ in range(2):
        r.pull(mount, r.step())
    with contextlib.suppress(OSError):  # it may be gone by then
        mount.write("drop 1", "actor/ctl")
    wait_for(lambda: int(mount.status()["used_bytes"]) == number(mount, 2, "needed") + number(mount, 3, "needed"), "the memory of version 1")
    for name in ("layer.1.weight", "layer.5.weight"):
        assert by_mmap(mount.file("actor/3", FILE), name) == r.bytes(3, name)


def test_chain():
    "a delta of which only some records came is no step to a version of which more comes: that one's whole delta is fetched"
    r = Run()
    mount = r.mount(f"need=learn,{DELTAS}")
    r.learns(mount, "layer.1.weight")
    wait_for(lambda: number(mount, 1, "have") == r.size(), "all of the first version")
    r.pull(mount, r.step())
    assert "delta from 1" in mount.text("actor/status"), mount.text("actor/status")
    r.learns(mount, "layer.5.weight", version=2)
    mount.write("drop 2", "actor/ctl")
    newest = r.step()
    wait_for(lambda: r.agent.get(f"/v1/actor/{newest}/manifest")["deltas"], "the delta")
    r.pull(mount, newest)
    assert "chain of 2 from 1" in mount.status("actor")[f"version.{newest}"], mount.text("actor/status")
    assert number(mount, newest, "moved") < 0.1 * number(mount, newest, "needed"), mount.text("actor/status")
    for name in ("layer.1.weight", "layer.5.weight"):
        assert by_mmap(mount.file("actor", newest, FILE), name) == r.bytes(newest, name)


def test_all_is_read():
    "who reads whole files learns all: versions come whole, and complete files are read without the daemon"
    r = Run()
    mount = r.mount()
    mount.read("actor/1", FILE)
    mount.write("learn end", "actor/ctl")
    assert learned(mount) == (len(TENSORS), "ended")
    r.pull(mount, r.step())
    assert number(mount, 2, "needed") is None and number(mount, 2, "have") == r.size(2)
    assert mount.read("actor/2", FILE) and on_demand(mount) == 0
    assert tensors_of(mount.file("actor/2", FILE)) == tensors_of(os.path.join(r.folders[2], FILE))


def test_names():
    "what is learned are names: a version with other files, and in another order, brings the same tensors"
    r = Run()
    mount = r.mount()
    r.learns(mount, "layer.1.weight", "layer.5.weight")
    files = {"model-00001-of-00002.safetensors": [f"layer.{i}.weight" for i in (7, 5, 3, 0)],
             "model-00002-of-00002.safetensors": [f"layer.{i}.weight" for i in (6, 1, 4, 2)] + ["norm", "tail"]}
    r.publish(2, checkpoint(TENSORS, seed=2, files=files))
    r.pull(mount, 2)
    assert number(mount, 2, "needed") < 0.7 * r.size()
    want = {n: t for f in files for n, t in tensors_of(os.path.join(r.folders[2], f)).items()}
    for name in ("layer.1.weight", "layer.5.weight"):
        assert mount.read("actor/2/tensors", name) == want[name][2]
    assert on_demand(mount) == 0
    r.publish(3, checkpoint({"another": ("BF16", [3072, 1024])}, seed=3))  # nothing of it is known: it comes whole
    r.pull(mount, 3)
    assert number(mount, 3, "needed") is None
    assert mount.read("actor/3/tensors/another") == tensors_of(os.path.join(r.folders[3], FILE))["another"][2]


def test_restart():
    "what was learned outlives the daemon, also one that is killed, and one that was still learning goes on; `learn again` forgets it"
    r = Run()
    mount = r.mount()
    assert by_mmap(mount.file("actor/1", FILE), "layer.1.weight") == r.bytes(1, "layer.1.weight")
    before = learned(mount)
    assert before[1] == "yes"
    mount.end()
    mount = r.mount(path=mount.path)
    assert learned(mount) == before
    mount.write("learn end", "actor/ctl")
    mount.end()
    mount = r.mount(path=mount.path)
    assert learned(mount) == (before[0], "ended")
    r.pull(mount, r.step())
    assert number(mount, 2, "needed") < 0.5 * r.size()
    mount.write("learn again", "actor/ctl")
    assert learned(mount) == (0, "yes")
    r.pull(mount, r.step())
    assert number(mount, 3, "needed") is None and number(mount, 3, "have") == r.size(3)
    mount.end()
    mount = r.mount(path=mount.path)
    assert learned(mount) == (0, "yes")


def test_switch():
    "a switch that has succeeded ends the learning; its engines find in the next version what they read in this one"
    r = Run()
    mount = r.mount()
    engine = Engine(r.folders[1])
    mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
    mount.write("1", "actor/version")
    n, what = learned(mount)
    assert what == "ended" and n > 0, (n, what)
    version = r.step()
    wait_for(lambda: os.path.isdir(mount.file("actor", version)), "the version")
    mount.write(version, "actor/version")
    assert engine.serves() == str(version)
    assert on_demand(mount) == 0


def test_quiet():
    "learning ends by itself some time after the last tensor that was not known; a look at the header does not begin that time"
    r = Run()
    r.agent.publish("critic", 1, r.folders[1])
    mount = r.mount()
    wait_for(lambda: os.path.isdir(mount.file("critic/1")), "critic")
    place(mount.file("critic/1", FILE), "norm")
    assert by_read(mount.file("critic/1", FILE), "tail") == r.bytes(1, "tail")
    assert by_read(mount.file("actor/1", FILE), "layer.2.weight") == r.bytes(1, "layer.2.weight")
    assert learned(mount)[1] == "yes"
    wait_for(lambda: learned(mount)[1] == "ended", "the end of learning", 60)
    assert learned(mount, "critic")[0] > 0 and learned(mount, "critic")[1] == "yes"
    r.pull(mount, r.step())
    assert number(mount, 2, "needed") < 0.5 * r.size()


def test_killed():
    "a daemon that is killed has kept what it learned some seconds before"
    r = Run()
    mount = r.mount()
    r.learns(mount, "layer.2.weight")
    before = learned(mount)

    def is_kept():
        found = [f for f in os.listdir(f"{TESTDIR}/state") if f.endswith(os.path.basename(mount.path) + ".learned")]
        return any("model learned actor\n" in open(f"{TESTDIR}/state/{f}").read() for f in found)

    wait_for(is_kept, "what is kept", 30)
    mount.kill()
    subprocess.run(["umount", "-l", mount.path], check=False)
    mount = r.mount(path=mount.path)
    assert learned(mount) == before


def test_not_kept_at_first():
    "what could not be written is written later, although nothing more is learned"
    r = Run()
    mount = r.mount()
    settings = next(f for f in os.listdir(f"{TESTDIR}/state") if f.endswith(os.path.basename(mount.path) + ".lock"))[:-len(".lock")]
    os.mkdir(f"{TESTDIR}/state/{settings}.learned")
    r.learns(mount, "layer.2.weight")
    before = learned(mount)
    wait_for(lambda: "what was learned is not kept" in Process.text(mount), "a try", 30)
    os.rmdir(f"{TESTDIR}/state/{settings}.learned")
    mount.end()
    mount = r.mount(path=mount.path)
    assert learned(mount) == before


def test_models():
    "it is said by model; another has patterns, or comes whole"
    r = Run()
    r.agent.publish("critic", 1, r.folders[1])
    r.agent.publish("judge", 1, r.folders[1])
    mount = r.mount("need=actor=learn,need=critic=layer.1.*")
    r.learns(mount, "layer.2.weight")
    for model in ("critic", "judge"):
        wait_for(lambda: os.path.isdir(mount.file(model)), model)
        mount.write("pull 1", f"{model}/ctl")
        assert "learned" not in mount.status(model)
        assert mount.refused("learn end", f"{model}/ctl") == "EINVAL" and "need=" in mount.text(f"{model}/last_error")
    assert os.listdir(mount.file("critic/1/tensors")) == ["layer.1.weight"]
    assert number(mount, 1, "have", "judge") == r.size()
    assert re.search(r'^wsync_learned_tensors\{model="actor"\} [1-9]', mount.text("metrics"), re.M)
    assert 'wsync_learned_tensors{model="judge"}' not in mount.text("metrics")
    assert json.loads(wsync("status", "--json", mount.path).stdout)["models"][0]["learned"].endswith("learning ended")


def test_words():
    "learn end with nothing read, and other words, are refused with what to do"
    r = Run()
    mount = r.mount()
    assert mount.refused("learn end", "actor/ctl") == "ENODATA" and "nothing of actor was read" in mount.text("actor/last_error")
    assert mount.refused("learn all", "actor/ctl") == "EINVAL" and "neither end nor again" in mount.text("actor/last_error")


@pytest.mark.parametrize("options,says", [
    ("need=learn;lm_head.*", "'learn' stands alone"),
    ("need=actor=ep:0/4;learn", "'learn' stands alone"),
    ("need=actor@fp8-block128=learn", "is a view, which comes whole"),
    ("need=learn,need=learn", "says twice what is needed of all models"),
    ("need=learn,copies=1", "need=learn and copies=1 exclude each other"),
    ("need=learn,serve=127.0.0.1:0", "need and serve exclude each other"),
    ("need=learn,derive=actor@fp8-block128", "need and derive=actor@fp8-block128 exclude each other"),
])
def test_options(options, says):
    "options that contradict it are refused at the start"
    need_fuse()
    path = unique("mnt")
    os.makedirs(path)
    done = wsync("mount", "-f", "-o", f"{options},state=none", "http://127.0.0.1:9", path, check=False)
    assert done.returncode and says in done.stderr, done.stderr


def test_source_ends():
    "without a source what came is read as ever, and what did not come fails with a reason"
    r = Run()
    mount = r.mount("need=learn,deadline=2")
    r.learns(mount, "layer.1.weight")
    r.pull(mount, r.step())
    r.agent.kill()
    at = mount.file("actor/2", FILE)
    assert by_read(at, "layer.1.weight") == r.bytes(2, "layer.1.weight")
    with pytest.raises(OSError):
        mount.read("actor/2/tensors/layer.7.weight")
    assert mount.text("actor/last_error")


def test_chosen_once():
    "what comes of a version is what its first pull has chosen: another one, after other reads, leaves nothing out of files that the kernel reads"
    r = Run()
    gate = Gate(r.agent.url, 1 << 40)
    mount = Mount(gate.url, "need=learn,deadline=2")
    mount.wait_version("actor", 1)
    r.learns(mount, *TENSORS, read=by_read)  # a page that is missing would keep Python, and the gate, waiting
    with gate.changed:
        gate.left = BLOCK + BLOCK // 2  # the header, and not all
    r.publish(2, checkpoint(TENSORS, seed=2))
    mount.wait_version("actor", 2)
    with pytest.raises(OSError):
        r.pull(mount, 2)
    mount.write("learn again", "actor/ctl")
    with open(mount.file("actor", 1, "tensors/layer.1.weight"), "rb") as f:  # the kernel has the other file's pages
        assert f.read() == r.bytes(1, "layer.1.weight")
    mount.write("learn end", "actor/ctl")
    gate.open()
    r.pull(mount, 2)
    assert tensors_of(mount.file("actor", 2, FILE)) == tensors_of(os.path.join(r.folders[2], FILE))


def test_archive():
    "versions of an archive come whole: the next ones are deltas on them there"
    place = unique("archive")
    r = Run("--archive", place, "--archive-every", "4")
    for _ in range(5):
        newest = r.step()
        wait_for(lambda: newest in listing(place), f"version {newest} in the archive's list")
    r.agent.kill()
    mount = Mount(f"dir:{place}", "need=learn")
    mount.wait_version("actor", newest)
    r.learns(mount, "layer.1.weight", read=by_read)
    for version in (5, newest):  # a whole one, and one that is a delta on it
        r.pull(mount, version)
        assert tensors_of(mount.file("actor", version, FILE)) == tensors_of(os.path.join(r.folders[version], FILE))


def test_looks():
    "what looks at tensors knows which are not here: the hash of one that is, none of one that is not, and how versions differ"
    r = Run()
    mount = r.mount()
    r.learns(mount, "layer.1.weight")
    r.pull(mount, r.step())
    assert os.getxattr(mount.file("actor/2/tensors/layer.1.weight"), "user.wsync.xxh3")
    with pytest.raises(OSError) as e:
        os.getxattr(mount.file("actor/2/tensors/layer.6.weight"), "user.wsync.xxh3")
    assert e.value.errno == errno.ENODATA
    changed = mount.text("actor/2/.wsync/changed")
    assert "tensors are not here" in changed and " layer.1.weight" in changed and " layer.6.weight" not in changed


@pytest.mark.parametrize("reads", ["link", "cached"])
def test_reads(reads):
    "with other ways to read complete files, too, the daemon sees the reads"
    r = Run()
    mount = r.mount(f"need=learn,reads={reads}")
    r.learns(mount, "layer.1.weight")
    r.pull(mount, r.step())
    for name in ("layer.1.weight", "layer.6.weight"):
        assert by_mmap(mount.file("actor/2", FILE), name) == r.bytes(2, name)
    assert on_demand(mount) > 0


def test_signed():
    "what is fetched for a read is checked by the source's signature, as what comes is"
    need_fuse()
    folder = unique("keys")
    os.makedirs(folder)
    wsync("key", "new", "--out", f"{folder}/key", "--name", "k")
    r = Run("--sign-key", f"{folder}/key")
    mount = r.mount(f"need=learn,verify-key={folder}/key.pub,{DELTAS}")
    r.learns(mount, "layer.1.weight")
    r.pull(mount, r.step())
    for name in ("layer.1.weight", "layer.6.weight"):
        assert by_mmap(mount.file("actor/2", FILE), name) == r.bytes(2, name)


def test_config():
    "the config's file says it by model, at the start; a reload shows what the next start takes"
    r = Run()
    config = unique("mount") + ".conf"

    def write(text):
        with open(config, "w") as f:
            f.write(text)

    write("model actor\npolicy manual\nneed layer.1.*;norm\n")
    mount = r.mount(f"config={config}")
    mount.write("pull 1", "actor/ctl")
    assert sorted(os.listdir(mount.file("actor/1/tensors"))) == ["layer.1.weight", "norm"]
    assert "config_differs" not in mount.status("actor")
    write("model actor\npolicy manual\nneed learn\n")
    mount.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "config_differs" in mount.status("actor"), "the new file")
    assert mount.status("actor")["config_differs"] == "need is layer.1.*;norm, the file has learn, which holds when the mount is started again"
    mount.end()
    mount = r.mount(f"config={config}", path=mount.path)
    assert learned(mount) == (0, "yes") and "config_differs" not in mount.status("actor")
    mount.end()
    for text, options, says in (("need learn;x\n", "", ":2: 'learn' stands alone"), ("need ep:4/4\n", "", ":2: 'ep:4/4' is no rank"), ("need\n", "", ":2: 'need' says nothing that is needed"),
                                ("need a b\n", "", ":2: 'need a b' says nothing"), ("need x.*\nneed y.*\n", "", ":3: what is needed of actor is there already"),
                                ("need learn\n", "need=actor=x.*,", "says twice what is needed of actor"), ("need learn\n", "copies=1,", "need=learn and copies=1 exclude each other")):
        write("model actor\n" + text)
        done = wsync("mount", "-f", "-o", f"{options}config={config},state=none", r.agent.url, mount.path, check=False)
        assert done.returncode and says in done.stderr, done.stderr
    write("need learn\n")
    done = wsync("mount", "-f", "-o", f"config={config},state=none", r.agent.url, mount.path, check=False)
    assert done.returncode and "is of no model" in done.stderr, done.stderr
