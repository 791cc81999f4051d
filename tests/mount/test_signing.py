# beside others
# timeout: 720, takes: 180
# sanitizers: address
"""Signed versions: what a mount with verify-key= takes, and what it refuses, from an agent, from mounts in between, and from a source that
lies about all that is not signed."""
import ctypes
import errno
import hashlib
import stat
import threading

from between import Between
from nginx import Nginx
from world import *

BLOCK = 4 << 20
xxhash = ctypes.CDLL("libxxhash.so.0")
xxhash.XXH3_64bits.restype = ctypes.c_uint64


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


xxhash.XXH3_128bits.restype = Hash128


def hash64(data):
    return f"{xxhash.XXH3_64bits(bytes(data), ctypes.c_size_t(len(data))):016x}"


def number(n):
    return struct.pack("<Q", n)


def string(s):
    return number(len(s.encode())) + s.encode()


def seal(m):
    """Gives a manifest that was changed the digest that it needs, as transports/format/manifest.h says."""
    data = b"wsync manifest 1\n" + string(m["model"]) + string(m["run"]) + number(m["version"]) + number(len(m["files"]))
    for f in m["files"]:
        data += string(f["name"]) + number(f["size"]) + number(f["header_bytes"]) + b"".join(number(int(h, 16)) for h in f["xxh3"])
    data += number(len(m["frozen"])) + b"".join(string(n) for n in m["frozen"])
    h = xxhash.XXH3_128bits(data, ctypes.c_size_t(len(data)))
    m["digest"] = f"{h.high:016x}{h.low:016x}"
    return m


def new_key(name="run"):
    path = unique(name) + ".key"
    wsync("key", "new", "--out", path, "--name", name)
    return path


def same(mount, version, folder):
    for name in os.listdir(folder):
        want = tensors_of(os.path.join(folder, name)) if name.endswith(".safetensors") else open(os.path.join(folder, name), "rb").read()
        got = tensors_of(mount.file("actor", version, name)) if name.endswith(".safetensors") else mount.read("actor", version, name)
        assert want == got, name


def pull(mount, version):
    wait_for(lambda: os.path.isdir(mount.file("actor", version)), f"version {version}")
    mount.write(f"pull {version}", "actor/ctl")
    return next(line for line in mount.text("actor/status").splitlines() if line.startswith(f"version.{version} "))


def refused(mount, version, why, model="actor"):
    """Nothing of the version is shown, and last_error says why."""
    wait_for(lambda: os.path.isdir(mount.file(model, version)), f"version {version}")
    assert mount.refused(f"pull {version}", model, "ctl") == "EBADMSG", mount.text(model, "last_error")
    assert why in mount.text(model, "last_error"), mount.text(model, "last_error")
    for name in "config.json", "model.safetensors":
        try:
            assert not mount.read(model, version, name), f"{name} was shown"
        except OSError as e:
            assert e.errno != errno.EISDIR, e


class Run:
    """A trainer's run whose agent signs."""

    def __init__(self, *args, tensors=LARGE, key=None):
        need_fuse()
        self.key = key or new_key()
        self.agent = Agent("--sign-key", self.key, *args)
        self.url = self.agent.url
        self.folders = {1: checkpoint(tensors, seed=1)}
        self.newest = 1
        self.agent.publish("actor", 1, self.folders[1])

    def step(self, **kw):
        self.newest += 1
        self.folders[self.newest] = step(self.folders[self.newest - 1], self.newest, **kw)
        self.agent.publish("actor", self.newest, self.folders[self.newest])
        return self.newest

    def mount(self, options="", source=None, key=None, **kw):
        return Mount(source or self.url, f"verify-key={key or self.key}.pub{',' if options else ''}{options}", **kw)


class Relay(Mount):
    """A mount that serves others; .url is their source."""

    def __init__(self, source, options=""):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        super().__init__(source, f"serve=127.0.0.1:{self.port}" + (f",{options}" if options else ""))


def test_whole_version():
    "a signed version is taken whole, by http and by the unix socket, and equals what was published; its manifest says which key"
    run = Run()
    for source, options in (run.url, ""), (f"unix:{run.agent.sock}", ""), (run.url, "reads=link"):
        mount = run.mount(options, source=source)
        assert "full" in pull(mount, 1)
        same(mount, 1, run.folders[1])
        assert len(json.loads(mount.text("actor/1/.wsync/manifest.json"))["signature"]) == 16 + 1 + 128
    said = wsync("verify", "--key", run.key + ".pub", "--mount", mount.path, "actor", 1).stdout
    assert "signed by run (" in said, said


def leaf(file, block, data):
    return hashlib.blake2b(b"\0" + number(file) + number(block) + number(len(data)) + data, digest_size=32).digest()


def is_signed(key, signature, text):
    """By the manual alone: an Ed25519 signature of the text by the key, checked by openssl."""
    words = open(key + ".pub").read().split()
    public = bytes.fromhex(words[2])
    key_id, digits = signature.split(" ")
    assert key_id == hashlib.blake2b(public, digest_size=32).hexdigest()[:16]
    folder = unique("check")
    os.makedirs(folder)
    for name, data in ("key", bytes.fromhex("302a300506032b6570032100") + public), ("signature", bytes.fromhex(digits)), ("text", text):
        with open(f"{folder}/{name}", "wb") as f:
            f.write(data)
    return subprocess.run(["openssl", "pkeyutl", "-verify", "-pubin", "-keyform", "DER", "-inkey", folder + "/key", "-rawin", "-in",
                           folder + "/text", "-sigfile", folder + "/signature"], stdout=subprocess.DEVNULL, check=False).returncode == 0


def manifest_id(m):
    data = b"wsync manifest id 1\n" + string(m["model"]) + string(m["run"]) + number(m["version"]) + number(m["created_ns"])
    data += number(m["block_bytes"]) + number(len(m["files"]))
    for f in m["files"]:
        data += string(f["name"]) + number(f["size"]) + number(f["header_bytes"]) + number(len(f["xxh3"]))
        data += b"".join(number(int(h, 16)) for h in f["xxh3"])
    data += number(len(m["frozen"])) + b"".join(string(n) for n in m["frozen"])
    return hashlib.blake2b(data, digest_size=32).digest()


def test_format():
    "a program made from the manuals alone checks the signatures of a manifest, of all blocks, and of a delta"
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    run = Run()
    manifests = {1: run.agent.get("/v1/actor/1/manifest")}
    run.step()
    manifests[2] = run.agent.get("/v1/actor/2/manifest")
    ids = {n: manifest_id(m) for n, m in manifests.items()}
    for n, m in manifests.items():
        assert is_signed(run.key, m["signature"], b"wsync signed manifest 1\n" + ids[n])
    assert not is_signed(run.key, manifests[1]["signature"], b"wsync signed manifest 1\n" + ids[2])

    def answer(path):
        with contextlib.suppress(urllib.error.HTTPError):
            return run.agent.get(path)

    for n, m in manifests.items():
        tree = wait_for(lambda: answer(f"/v1/actor/{n}/signature"), "the tree")
        told = [bytes.fromhex(t) for t in tree["leaves"]]
        for i, f in enumerate(m["files"]):
            with urllib.request.urlopen(f"{run.url}/v1/actor/{n}/files/{f['name']}", timeout=60) as r:
                data = r.read()
            assert told[i] == b"".join(leaf(i, b, data[b * BLOCK:(b + 1) * BLOCK]) for b in range(len(f["xxh3"]))), f["name"]
        root = hashlib.blake2b(b"\1" + number(sum(map(len, told)) // 32) + b"".join(told), digest_size=32).digest()
        assert tree["manifest"] == ids[n].hex() and is_signed(run.key, tree["signature"], b"wsync signed blocks 1\n" + ids[n] + root)
    proof = wait_for(lambda: answer("/v1/actor/2/signature?base=1"), "the proof of the delta")
    with urllib.request.urlopen(f"{run.url}/v1/actor/2/delta?base=1", timeout=60) as r:
        stream = r.read()
    records, at = {}, 200
    while struct.unpack_from("<I", stream, at)[0] != 2**32 - 1:
        file, block, length = struct.unpack_from("<II", stream, at) + struct.unpack_from("<I", stream, at + 20)
        records[file, block] = hashlib.blake2b(b"\2" + stream[at:at + 24] + stream[at + 32:at + 32 + length], digest_size=32).digest()
        at += 32 + length
    told = {(i, int(t[k:k + 16], 16)): bytes.fromhex(t[k + 16:k + 80]) for i, t in enumerate(proof["files"]) for k in range(0, len(t), 80)}
    assert records and told == records
    data = b"\3" + number(len(records)) + b"".join(number(f) + number(b) + records[f, b] for f, b in sorted(records))
    text = b"wsync signed delta 1\n" + ids[1] + ids[2] + hashlib.blake2b(data, digest_size=32).digest()
    assert (proof["base"], proof["target"]) == (ids[1].hex(), ids[2].hex()) and is_signed(run.key, proof["signature"], text)


def test_headers():
    "a look at the tensors of a signed version costs its headers, which are checked, too"
    run = Run()
    mount = run.mount()
    mount.wait_version("actor", 1)
    assert sorted(os.listdir(mount.file("actor/1/tensors")))[0] == "layer.0.weight"
    assert " have=0 " in mount.status("actor")["version.1"], mount.status("actor")["version.1"]


def test_steps():
    "steps come as deltas whose records are checked, in chains and in place, too"
    run = Run()
    mounts = [run.mount(DELTAS) for _ in range(2)]
    for m in mounts:
        pull(m, 1)
    same(mounts[0], 1, run.folders[1])
    for _ in range(4):
        version = run.step()
        ways = [pull(m, version) for m in mounts]
        assert all("delta from" in w or "chain of" in w for w in ways), ways
        assert all("rest whole" not in w for w in ways), ways
        same(mounts[0], version, run.folders[version])
    same(mounts[1], version, run.folders[version])


def test_unsigned():
    "a mount with a key takes nothing from an agent that does not sign, and a mount without a key goes on as before"
    need_fuse()
    agent = Agent()
    folder = checkpoint(MEDIUM, seed=1)
    agent.publish("actor", 1, folder)
    key = new_key()
    refused(Mount(agent.url, f"verify-key={key}.pub"), 1, "is not signed")
    refused(Mount(f"unix:{agent.sock}", f"verify-key={key}.pub"), 1, "is not signed")
    folders = unique("folders")
    os.makedirs(folders + "/actor")
    os.rename(folder, folders + "/actor/1")
    refused(Mount(f"dir:{folders}", f"verify-key={key}.pub"), 1, "is not signed")
    pull(Mount(agent.url), 1)


def test_another_key():
    "what another key signed is refused, and so is a model that no key is given for"
    run = Run(tensors=MEDIUM)
    other = new_key("other")
    refused(run.mount(key=other), 1, "not trusted for actor")
    refused(Mount(run.url, f"verify-key=critic={run.key}.pub"), 1, "not trusted for actor")
    refused(Mount(run.url, f"verify-key={run.key}.pub:actor={other}.pub"), 1, "not trusted for actor")
    pull(Mount(run.url, f"verify-key={other}.pub:actor={run.key}.pub"), 1)


def test_rotation():
    "while mounts have both keys the agent changes from one to the other; when the old one is taken away its versions are refused"
    run = Run(tensors=MEDIUM)
    new = new_key("new")
    both = Mount(run.url, f"verify-key={run.key}.pub,verify-key={new}.pub")
    pull(both, 1)
    run.agent.end()
    agent = Agent("--sign-key", new, port=run.agent.port)
    agent.publish("actor", 2, run.folders[1])
    pull(both, 2)
    refused(run.mount(), 2, "not trusted")
    pull(run.mount(key=new), 2)


def lying(run):
    liar = Between(run.agent)
    return liar, run.mount(source=liar.url)


def test_block_and_hash_changed():
    "a source that changes a block and, in the manifest and the listing, its hash is refused by the signature"
    run = Run()
    liar, mount = lying(run)
    genuine = json.loads(urllib.request.urlopen(f"{run.url}/v1/actor/1/manifest").read())
    evil = json.loads(json.dumps(genuine))
    index = next(i for i, f in enumerate(evil["files"]) if f["name"] == "model.safetensors")
    data = bytearray(open(os.path.join(run.folders[1], "model.safetensors"), "rb").read())
    data[BLOCK + 5] ^= 1
    evil["files"][index]["xxh3"][1] = hash64(data[BLOCK : 2 * BLOCK])
    seal(evil)
    mount.end()

    def change(path, text):
        if "/manifest" in path:
            return json.dumps(evil).encode()
        return text.replace(genuine["digest"].encode(), evil["digest"].encode())

    liar.change = change
    refused(run.mount(source=liar.url), 1, "did not make of this")
    evil = {k: v for k, v in evil.items() if k != "signature"}
    refused(run.mount(source=liar.url), 1, "is not signed")


def test_leaves_of_other_bytes():
    "a source whose list of the blocks' hashes was changed is refused, too, as is one that has none"
    run = Run()
    liar, _ = lying(run)

    def change(path, text):
        if "/signature" not in path:
            return text
        j = json.loads(text)
        j["leaves"][-1] = j["leaves"][-1][:-1] + ("0" if j["leaves"][-1][-1] != "0" else "1")
        return json.dumps(j).encode()

    liar.change = change
    refused(run.mount(source=liar.url), 1, "did not make of this")
    liar.change = lambda path, text: b"{}" if "/signature" in path else text
    refused(run.mount(source=liar.url), 1, "format")
    liar.change, liar.wrong = None, None
    none = Between(run.agent, "/signature")
    none.wrong = (404, b"{}")
    refused(run.mount(source=none.url), 1, "cannot show who signed")


def test_a_better_source():
    "where one source lies, what another one has is taken"
    run = Run()
    liar, _ = lying(run)
    liar.change = lambda path, text: text.replace(b'"signature":"', b'"signature":"0') if "/manifest" in path else text
    mount = run.mount(source=f"{liar.url},{run.url}")
    mount.wait_version("actor", 1, sources=2)
    pull(mount, 1)
    same(mount, 1, run.folders[1])


def test_source_that_never_signs():
    "a source that says for ever that it will sign, or that does not answer, does not hold up what another one has; it is asked again where that has nothing"
    run = Run()
    slow, none = Between(run.agent, "/signature"), Between(run.agent, "/signature")
    slow.wrong = (503, b'{"error": "it is being signed", "errno": "EAGAIN"}')
    mount = run.mount(f"{DELTAS},deadline=40", source=f"{slow.url},{run.url}")
    mount.wait_version("actor", 1, sources=2)
    pull(mount, 1)
    same(mount, 1, run.folders[1])
    run.step()
    mount.wait_version("actor", 2, sources=2)
    assert "delta from" in pull(mount, 2), mount.text()
    same(mount, 2, run.folders[2])
    mount.end()
    none.wrong = (404, b"{}")
    mount = run.mount("deadline=40,state=none", source=f"{slow.url},{none.url}")
    mount.wait_version("actor", 2, sources=2)
    late = threading.Timer(8, setattr, (slow, "wrong", None))
    late.start()
    pull(mount, 2)
    same(mount, 2, run.folders[2])


def test_source_that_hangs():
    "a mount, and a relay, ask a source that left a request for a signature without an answer last, and other signatures do not wait for it"
    run = Run()
    mute = [Between(run.agent, "/signature") for _ in range(2)]
    for one in mute:
        one.hold = True
    relay = Relay(f"{mute[0].url},{run.url}", f"{DELTAS},state=none")
    relay.wait_version("actor", 1, sources=2)
    mounts = run.mount(f"{DELTAS},state=none", source=relay.url), run.mount(f"{DELTAS},deadline=120", source=f"{mute[1].url},{run.url}")
    mounts[1].wait_version("actor", 1, sources=2)
    threads = [threading.Thread(target=pull, args=(mount, 1)) for mount in mounts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(4):
        version = run.step()
        for mount in mounts:
            assert "instead of" in pull(mount, version)  # deltas
            same(mount, version, run.folders[version])
    assert all(one.n_held < 4 for one in mute), [one.n_held for one in mute]


def peak_mib(process):
    with open(f"/proc/{process.pid}/status") as f:
        return next(int(line.split()[1]) // 1024 for line in f if line.startswith("VmHWM"))


def test_replies_that_grow():
    "a source whose JSON would take gigabytes of memory once it is parsed is refused; so it is by a relay, which asks the next one"
    run = Run()
    liar = Between(run.agent)
    grows = b'{"format":1,"leaves":[' + b"{}," * (20 << 20) + b'1],"signature":"x"}'
    liar.change = lambda path, text: grows if "/signature" in path else text
    mount = run.mount("state=none", source=liar.url)
    refused(mount, 1, "bytes of memory")
    assert peak_mib(mount) < 500, peak_mib(mount)
    relay = Relay(f"{liar.url},{run.url}", "state=none")
    relay.wait_version("actor", 1, sources=2)
    pull(run.mount("state=none", source=relay.url), 1)
    assert peak_mib(relay) < 500, peak_mib(relay)
    liar.change = lambda path, text: grows if "/models" in path else text
    mount = Mount(liar.url, "state=none")
    wait_for(lambda: "bytes of memory" in mount.text("status"), "the refusal")
    assert peak_mib(mount) < 500, peak_mib(mount)


def test_old_manifest():
    "an older version under a newer number, and a version of another lineage under the number of this one, are refused"
    run = Run(tensors=MEDIUM)
    old = json.loads(urllib.request.urlopen(f"{run.url}/v1/actor/1/manifest").read())
    run.step()
    new = json.loads(urllib.request.urlopen(f"{run.url}/v1/actor/2/manifest").read())
    liar = Between(run.agent, "/2/manifest")

    def offers(manifest):
        """The source lists the manifest's version instead of version 2, and sends it."""
        liar.wrong = (200, json.dumps(manifest).encode())
        liar.change = lambda path, text: text if "/manifest" in path else \
            text.replace(new["digest"].encode(), manifest["digest"].encode()).replace(new["run"].encode(), manifest["run"].encode())
        return run.mount(source=liar.url)

    refused(offers(seal({**old, "version": 2})), 2, "did not make of this")
    refused(offers(seal({**new, "run": "another"})), 2, "did not make of this")
    refused(offers({**new, "created_ns": new["created_ns"] + 10**15}), 2, "did not make of this")
    mount = offers(old)
    mount.wait_version("actor", 2)
    assert mount.refused("pull 2", "actor", "ctl") == "EPROTO", mount.text("actor/last_error")


def test_delta_of_other_bytes():
    "a delta whose records or whose proof were changed is not used; the version comes whole"
    run = Run()
    liar, mount = lying(run)
    mount.end()
    mount = run.mount(DELTAS, source=liar.url)
    pull(mount, 1)

    def change(path, text):
        if "/signature" in path and "base=" in path:
            j = json.loads(text)
            j["files"][-1] = j["files"][-1][:-1] + ("0" if j["files"][-1][-1] != "0" else "1")
            return json.dumps(j).encode()
        return text

    liar.change = change
    run.step()
    way = pull(mount, 2)
    assert "rest whole" in way, way
    same(mount, 2, run.folders[2])
    assert "did not make of this" in mount.text()


def test_follow_is_not_led_back():
    """a mount that follows is not led from a newer version to an older one, neither by a list without the newer one nor by a release, also
    after its restart; an operator may go back"""
    run = Run(tensors=MEDIUM)
    run.step()
    liar = Between(run.agent)
    mount = run.mount(source=liar.url)
    mount.wait_version("actor", 2)
    mount.write("2", "actor/version")
    mount.write("follow", "actor/policy")
    release = {}

    def change(path, text):
        if "/v1/models" in path or "/events" in path:
            j = json.loads(text)
            for m in j.get("models", []):
                m["versions"] = [v for v in m["versions"] if v["version"] == 1]
                m["newest"] = 1
                if release:
                    m["released"] = {**release, "run": m["run"]}
            return json.dumps(j).encode()
        return text

    liar.change = change

    def is_refused(m):
        wait_for(lambda: "older than" in m.text("actor/last_error"), "the refusal", 30)

    release.update(by=2**40, version=1)
    is_refused(mount)
    assert mount.text("actor/version").split()[0] == "2", mount.text("actor/version")
    release.clear()
    mount.end()
    mount.detach()
    mount = run.mount(source=liar.url, path=mount.path)
    mount.wait_version("actor", 1)
    is_refused(mount)
    assert os.readlink(mount.file("actor/current")) != "1" if os.path.lexists(mount.file("actor/current")) else True
    mount.write("1", "actor/version")
    assert mount.text("actor/version").split()[0] == "1", mount.text("actor/version")


class Shown:
    """A source that shows one run, or another. Requests that wait for news are answered by the run of before, so it gets some: of another
    model."""

    def __init__(self, run):
        self.run, self.news = run, 0

    @property
    def url(self):
        return self.run.url

    def show(self, run):
        before, self.run = self.run, run
        self.news += 1
        before.agent.publish("other", self.news, before.folders[1])


def test_lineage_is_not_rolled_back():
    "a mount that follows a run is not led to an older run whose versions the same key signed, by a source that shows that one as live"
    old = Run(tensors=MEDIUM)
    for _ in range(2):
        old.step()
    run = Run(tensors=MEDIUM, key=old.key)
    shown = Shown(run)
    liar = Between(shown)
    mount = run.mount(source=liar.url)
    mount.wait_version("actor", 1)
    mount.write("follow", "actor/policy")
    wait_for(lambda: mount.text("actor/version").split()[0] == "1", "the version that is followed")
    shown.show(old)
    wait_for(lambda: "older than" in mount.text("actor/last_error"), "the refusal", 30)
    same(mount, "current", run.folders[1])
    shown.show(run)
    run.step()
    wait_for(lambda: mount.text("actor/version").split()[0] == "2", "the next version", 30)


def test_export():
    "an export takes what was signed, nothing else, and its `latest` is not led back to an older run that the same key signed, not after a restart"
    old = Run(tensors=MEDIUM)
    old.step()
    run = Run(tensors=MEDIUM, key=old.key)
    shown = Shown(run)
    folders, state = [unique("export") for _ in range(2)], unique("state")
    strict = Process("export", "-o", f"verify-key={new_key('other')}.pub", run.url, folders[1])
    arguments = "export", "-o", f"verify-key={run.key}.pub,state={state}", Between(shown).url, folders[0]
    export = Process(*arguments)
    latest = folders[0] + "/actor/latest"
    wait_for(lambda: os.path.lexists(latest) and os.readlink(latest) == "1", "the export", 40)
    assert tensors_of(latest + "/model.safetensors") == tensors_of(run.folders[1] + "/model.safetensors")
    shown.show(old)
    wait_for(lambda: os.path.isdir(folders[0] + "/actor/2"), "the old version", 40)
    wait_for(lambda: not os.path.lexists(latest), "the link to go", 40)
    export.end()
    export = Process(*arguments)
    wait_for(lambda: os.path.isdir(folders[0] + "/actor/2"), "the old version again", 40)
    time.sleep(1)  # some looks of the export
    assert not os.path.lexists(latest)
    shown.show(run)
    wait_for(lambda: os.path.lexists(latest) and os.readlink(latest) == "1", "the run of before", 40)
    export.end()
    file, = [state + "/" + name for name in os.listdir(state) if name.endswith(".signed")]
    with open(file, "a") as f:
        f.write("17000")
    refused = wsync(*arguments, check=False)
    assert refused.returncode == 1 and "is damaged" in refused.stderr and file in refused.stderr, refused.stderr
    wait_for(lambda: "not trusted for actor" in strict.text(), "the refusal")
    assert not os.path.exists(folders[1] + "/actor/1") and not os.path.lexists(folders[1] + "/actor/latest")


def test_keys():
    "a secret key is a file of mode 0600 that is never overwritten; the agent refuses one that others can read, and nothing quotes it"
    path = new_key()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    words = open(path).read().split()
    assert words[0] == "wsync-secret-key-1" and words[1] == "run" and len(words[2]) == 64
    assert open(path + ".pub").read().split()[0] == "wsync-public-key-1"
    again = wsync("key", "new", "--out", path, check=False)
    assert again.returncode == 1 and "never overwritten" in again.stderr
    os.chmod(path, 0o640)
    said = wsync("agent", "--listen", f"127.0.0.1:{free_port()}", "--socket", "none", "--sign-key", path, check=False)
    assert said.returncode == 1 and "chmod 600" in said.stderr and words[2] not in said.stderr + said.stdout
    os.chmod(path, 0o600)
    for bad in path, "/nonexistent", os.devnull:
        r = wsync("mount", "-f", "-o", f"verify-key={bad}", "http://127.0.0.1:1", unique("nowhere"), check=False)
        assert r.returncode != 0 and words[2] not in r.stderr + r.stdout, r.stderr
    bad = wsync("key", "new", "--out", unique("k"), "--name", "two words", check=False)
    assert bad.returncode == 2 and "cannot be a key's name" in bad.stderr


def test_relays():
    "relays with and without a key pass signatures on, of whole versions and of deltas; in rows and in rings, too"
    run = Run()
    first = Relay(run.url, DELTAS)
    second = Relay(f"{first.url},{run.url}", f"verify-key={run.key}.pub,{DELTAS}")
    mount = run.mount(DELTAS, source=second.url)
    pull(mount, 1)
    same(mount, 1, run.folders[1])
    for _ in range(2):
        version = run.step()
        way = pull(mount, version)
        assert ("delta from" in way or "chain of" in way) and "rest whole" not in way, way
        same(mount, version, run.folders[version])
    refused(run.mount(source=second.url, key=new_key("other")), version, "not trusted")


def is_taken(mount, text):
    try:
        mount.write_once(text, "actor/ctl")
    except OSError as e:
        assert e.errno == errno.EBADMSG, e
        return False
    return True


def test_liar_before_a_relay():
    "a relay whose first source lies about signatures gets them from the next one, whether the lie has their form or not"
    run = Run()
    for lie in {}, {"format": 1, "manifest": "0" * 64, "signature": "x", "leaves": []}:
        liar = Between(run.agent)
        liar.change = lambda path, text, lie=lie: json.dumps(lie).encode() if "/signature" in path else text
        relay = Relay(f"{liar.url},{run.url}", "state=none")
        mount = run.mount("state=none", source=relay.url)
        wait_for(lambda: os.path.isdir(mount.file("actor", 1)), "the version")
        wait_for(lambda: is_taken(mount, "pull 1"), "the signature of another source", 60)
        same(mount, 1, run.folders[1])
        mount.end()


def test_archive():
    """an archive has the signatures of what is in it: by dir:, through a web server and through a relay, whole versions and deltas; where one
    was changed or is missing, the version is refused"""
    archive = unique("archive")
    run = Run("--archive", archive, "--archive-every", "3")

    def listed(version):
        with contextlib.suppress(OSError):
            with open(archive + "/v1/models") as f:
                return any(v["version"] == version for m in json.load(f)["models"] for v in m["versions"])

    wait_for(lambda: listed(1), "version 1 in the archive", 60)
    for _ in range(2):
        run.step()
        wait_for(lambda: listed(run.newest), f"version {run.newest} in the archive", 60)
    run.agent.end()
    assert "leaves" in open(archive + "/v1/actor/1/signature").read() and "files" in open(archive + "/v1/actor/3/signature").read()
    urls = [f"dir:{archive}"]
    if shutil.which("nginx"):
        urls.append(Nginx(f"        root {archive};").url)
    urls.append(Relay(urls[0], DELTAS).url)
    for url in urls:
        mount = run.mount(DELTAS, source=url)
        for version in 1, 3:
            pull(mount, version)
            same(mount, version, run.folders[version])
    whole, delta = (f"{archive}/v1/actor/{n}/signature" for n in (1, 3))
    os.rename(delta, whole + ".kept")
    refused(run.mount(DELTAS, source=urls[0]), 3, "cannot show who signed the delta to actor/3")
    with open(whole, "r+") as f:
        text = f.read().replace('"leaves"', '"others"')
        f.seek(0)
        f.write(text)
    refused(run.mount(DELTAS, source=urls[0]), 1, "is not that of its files")
