# beside others
# timeout: 240
"""The Python publisher's error handling: wrong tensors, ranks that disagree, agents that end or are of another release, trainers that
crash and restart. Errors name rank, tensor and remedy, and the next offload works. Without torch; ranks are threads. Not with
sanitizers: a plain Python cannot load such a libwsync; tests/kill/test_ranks.py does the same in C."""
import errno
import gc
import os
import sys
import threading

from world import *

try:
    import cffi  # noqa: F401
    import numpy as np
except ImportError as e:
    print(f"1..0 # SKIP {e.name} is not installed, as PyPI could not be reached")
    sys.exit(0)

from package import package

PACKAGE = package()
sys.path.insert(0, PACKAGE)
import wsync

from ranks import rss

OFFLOADS = int(os.environ.get("PUBLISHER_OFFLOADS", "500"))


def publisher(agent, source, model="actor", **kw):
    kw.setdefault("timeout", 20)
    return wsync.Publisher(model, source, agent=f"unix:{agent.sock}", start_agent=False, **kw)


def opened(agent, source, *args, **kw):
    pub = publisher(agent, source, *args, **kw)
    at_end(pub.close)
    return pub


def together(*calls):
    """Runs the functions in a thread each; returns their results or exceptions."""
    out = [None] * len(calls)

    def one(i):
        try:
            out[i] = calls[i]()
        except Exception as e:
            out[i] = e

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60 * SLOW)
        assert not t.is_alive(), "a rank hangs"
    return out


def refused(call, kind, *words):
    """The exception of a call that must fail, of that type and with all of the words."""
    try:
        call()
    except kind as e:
        said(e, *words)
        return e
    raise AssertionError(f"no {kind} with {words}")


def said(e, *words):
    assert isinstance(e, Exception), f"{e!r} instead of an error with {words}"
    for word in words:
        assert str(word) in str(e), f"'{word}' is not in: {e!r}"


def served(agent, version, model="actor"):
    """{name: (dtype, shape, bytes)} of a version, read from the agent."""
    path = os.path.join(unique("served"))
    run = next(m["run"] for m in agent.get("/v1/models")["models"] if m["name"] == model)
    with urllib.request.urlopen(f"{agent.url}/v1/{model}/{version}/files/model.safetensors?run={run}", timeout=20) as r, open(path, "wb") as f:
        f.write(r.read())
    return tensors_of(path)


def works(pub, agent, version, source, model="actor"):
    pub.offload(version)
    pub.wait_published(version)
    got = served(agent, version, model)
    assert set(got) == set(source), (set(got), set(source))
    for name, array in source.items():
        assert got[name][1] == list(array.shape) and got[name][2] == array.tobytes(), name


def test_audit():
    "tensors that two ranks both hold are compared: a diverged rank is named with tensor and elements; it can warn instead, or be off"
    agent = Agent()
    same = {"w": np.arange(6000, dtype=np.float32).reshape(60, 100), "b": np.ones(7, np.float16)}
    other = {name: a.copy() for name, a in same.items()}
    other["w"][59, 99] += 1

    def offer(model, version, second, **kw):
        ranks = [publisher(agent, source, model, rank=r, world_size=2, **kw) for r, source in enumerate((same, second))]
        for pub in ranks:
            at_end(pub.close)
        told = [e for e in together(*(lambda p=p: p.offload(version) for p in ranks)) if e]
        heard = together(*(lambda p=p: p.wait_published(version) for p in ranks))
        for pub in ranks:
            pub.close()
        return told, heard

    assert offer("same", 1, {name: np.asfortranarray(a) for name, a in same.items()}) == ([], [None, None])
    told, heard = offer("other", 1, other)
    assert len(told) == 1 and told[0].errno == errno.ECANCELED, told  # the rank that committed last
    for e in told + heard:
        said(e, "replicas differ", "elements 0 to 5999 of w", "between rank 1 and rank 0")
    assert offer("warned", 1, other, audit_warn=True) == ([], [None, None])
    assert offer("off", 1, other, audit=0) == ([], [None, None])
    refused(lambda: publisher(agent, same, audit=-1), ValueError, "audit=-1")


def test_forms():
    "arrays of every form: strides, no elements, no dimensions, eight dimensions, NaNs with payloads"
    agent = Agent()
    r = np.random.default_rng(1)
    whole = r.standard_normal((24, 40)).astype(np.float32)
    nans = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0xFFFFFFFF, 0x7F800000, 0x80000000], np.uint32)
    source = {
        "rows": whole[::2], "columns": whole[:, 3::5], "both": whole[1::3, ::-2], "backwards": whole[::-1], "turned": whole.T,
        "part": whole[3:7, 5:9], "line": whole[:, 7], "again": np.broadcast_to(whole[0], (5, 40)), "one": np.float64(3.5).reshape(()),
        "none": np.zeros((0,), np.float16), "hollow": np.zeros((3, 0, 4), np.float32), "hollow.strided": whole[5:5, ::2],
        "eight": r.integers(0, 255, (2, 1, 3, 1, 2, 1, 2, 2), np.uint8), "eight.turned": r.integers(0, 9, (2, 1, 3, 1, 2, 1, 2, 2)).transpose(7, 5, 3, 1, 6, 4, 2, 0),
        "nan": nans.view(np.float32), "nan.half": np.arange(0x7C00, 0x8000, dtype=np.uint16).view(np.float16),
        "nan.strided": np.repeat(nans, 2).view(np.float32)[::2], "frozen": whole[:4].copy(),
    }
    source["frozen"].flags.writeable = False
    for dtype in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "complex64"):
        source["of." + dtype] = r.integers(0, 2, (3, 5)).astype(dtype)[:, ::-1]
    pub = opened(agent, source)
    works(pub, agent, 1, source)
    whole += 1
    works(pub, agent, 2, source)
    source["rows"], source["turned"] = whole[1::2], np.ascontiguousarray(whole.T)  # other strides, the same shapes
    works(pub, agent, 3, source)


def test_names():
    "tensor names of every kind appear in the file; invalid ones are refused"
    need_fuse()
    agent = Agent()
    mount = Mount(f"unix:{agent.sock}")
    names = ["a b", "a/b", "/a", "..", ".", "...", "weiß.日本.🙂", '"quoted"', "back\\slash", "new\nline", "\x01\x7f", "%2F", "%", "a" * 1024, "*?[x]",
             "{}", "-rf", " ", "model.layers.0.w", "MODEL.LAYERS.0.W"]
    source = {n: np.full((2, 3), i, np.float32) for i, n in enumerate(names)}
    pub = opened(agent, source)
    works(pub, agent, 1, source)
    mount.wait_version("actor", 1)
    got = tensors_of(mount.file("actor/1/model.safetensors"))
    assert {n: got[n][2] for n in got} == {n: a.tobytes() for n, a in source.items()}
    assert os.listdir(mount.file("actor/1/tensors"))
    for name, words in {"": ("no name",), "a" * 1025: ("1024",), "a\0b": ("NUL",), "\udc80": ("UTF-8",), "__metadata__": ("__metadata__",)}.items():
        bad = {"good": np.zeros(1), name: np.zeros(1)}
        refused(lambda: opened(agent, bad, "other").offload(1), (ValueError, OSError), "rank 0 of 1, model other", *words)
    bad = {"good": np.zeros(1), 7: np.zeros(1)}
    refused(lambda: opened(agent, bad, "other").offload(1), TypeError, "rank 0 of 1, model other", "7", "text")
    works(pub, agent, 2, source)


def test_wrong_tensors():
    "values that no file can hold: rank, tensor and remedy are named, and the next offload works"
    agent = Agent()
    good = {"w": np.arange(6, dtype=np.float32)}
    source = dict(good)
    pub = opened(agent, source)
    works(pub, agent, 1, source)
    packed = np.zeros(4, np.dtype([("a", np.uint8), ("b", np.float32)]))
    for bad, kind, words in [
        (np.zeros(3, np.complex128), TypeError, ("complex128", "convert it")),
        (np.array(["x"]), TypeError, ("<U1", "convert it")),
        (np.array([object()]), TypeError, ("object", "convert it")),
        (np.zeros(3, np.longdouble), TypeError, ("convert it",)),
        (np.zeros(3, ">f4"), TypeError, ("byte order", "astype")),
        (np.zeros((1,) * 9, np.float32), ValueError, ("9 dimensions", "at most 8", "reshape")),
        (packed["b"], ValueError, ("strides", "ascontiguousarray")),
        ([1.0, 2.0], TypeError, ("list", "numpy")),
        (None, TypeError, ("NoneType",)),
        (3, TypeError, ("int",)),
    ]:
        source["bad.weight"] = bad
        refused(lambda: pub.offload(2), kind, "rank 0 of 1, model actor", "bad.weight", *words)
    source.clear()
    refused(lambda: pub.offload(2), wsync.Error, "rank 0 of 1", "tensor")
    source.update(good)
    works(pub, agent, 2, source)
    for version, kind in ((-1, ValueError), (1 << 63, ValueError), (1 << 70, ValueError), (2.5, TypeError), ("3", TypeError), (None, TypeError)):
        refused(lambda: pub.offload(version), kind, "rank 0 of 1", "version", repr(version))
    for version in (1, 2):
        e = refused(lambda: pub.offload(version), wsync.Error, "rank 0 of 1", f"version {version} ", "newest, 2", "new_run")
        assert e.errno == errno.EEXIST
    works(pub, agent, 3, source)
    refused(lambda: publisher(agent, source, "no/slash"), wsync.Error, "no/slash")
    refused(lambda: publisher(agent, source, rank=1), ValueError, "world_size")
    refused(lambda: publisher(agent, source, rank=2, world_size=2), wsync.Error, "rank 2", "world_size 2")
    refused(lambda: publisher(agent, source, rank=-1, world_size=2), ValueError, "rank -1")
    refused(lambda: opened(agent, source, "other", run="a b").offload(1), wsync.Error, "'a b'", "letters")
    small = Agent("--memory", "1M")
    big = {"w": np.zeros(4 << 20, np.uint8)}
    refused(lambda: opened(small, big).offload(1), MemoryError, "rank 0 of 1, model actor", "does not fit", "--memory")
    pub.close()
    refused(lambda: pub.offload(4), ValueError, "closed")


def ranks_of(agent, sources, model="actor", **kw):
    n = len(sources)
    return [opened(agent, s, model, rank=i, world_size=n, **kw) for i, s in enumerate(sources)]


def offload_all(pubs, version):
    out = together(*(lambda p=p: p.offload(version) for p in pubs))
    assert out == [None] * len(pubs), out
    together(*(lambda p=p: p.wait_published(version) for p in pubs))


def test_disagreement():
    "ranks that disagree on shape, dtype, version, world size or lineage, or are missing"
    agent = Agent()
    sources = [{"all": np.zeros((4, 6), np.float32), f"own.{i}": np.zeros(3, np.float32)} for i in range(2)]
    pubs = ranks_of(agent, sources, timeout=3)
    offload_all(pubs, 1)
    for other in (np.zeros((6, 4), np.float32), np.zeros((4, 6), np.float16), np.zeros(24, np.float32)):
        kept, sources[1]["all"] = sources[1]["all"], other
        told = together(lambda: pubs[0].offload(2), lambda: pubs[1].offload(2))
        for e in told if told[0] else told[1:]:  # rank 0 may finish before rank 1 reports its change
            said(e, "of 2, model actor", "ranks 0 and 1 disagree", "dtype or shape of all", "same")
            assert e.errno == errno.EPROTO, e
        sources[1]["all"] = kept
    assert agent.get("/v1/models")["models"][0]["newest"] == 1
    offload_all(pubs, 2)

    pubs[0].offload(3)  # does not wait for the other rank
    pubs[1].offload(4)
    said(together(lambda: pubs[0].wait_published(3))[0], "rank 0 of 2", "version 3 of actor was abandoned", "rank 1 went on to version 4", "same version")
    said(together(lambda: pubs[1].wait_published(4, timeout=0.3))[0], "rank 1 of 2", "version 4 of actor", "missing: rank 0")
    said(together(lambda: pubs[0].offload(3))[0], "rank 0 begins version 3", "others write 4", "same version")
    offload_all(pubs, 5)
    slow = lambda v: (time.sleep(0.05), pubs[1].offload(v))  # the faster rank waits for it
    for e in together(lambda: [pubs[0].offload(v) for v in (6, 7, 8)], lambda: [slow(v) for v in (6, 7, 8)]):
        assert not isinstance(e, Exception), e
    pubs[0].wait_published(8)

    late = opened(agent, {"w": np.zeros(2)}, rank=1, world_size=3, timeout=0.4)
    said(together(lambda: late.offload(1))[0], "rank 1 of 3", "rank 0 of 2", "same world_size", f"process {os.getpid()}")
    twin = opened(agent, sources[1], rank=1, world_size=2, timeout=0.4)
    said(together(lambda: twin.offload(20))[0], "rank 1 of 2", f"process {os.getpid()}", "number of its own")
    lonely = opened(agent, {"w": np.zeros(2)}, "other", rank=0, world_size=2, timeout=0.4)
    e = together(lambda: lonely.offload(1))[0]
    said(e, "rank 0 of 2, model other", "1 of 2", "missing: rank 1", "world_size")
    assert isinstance(e, wsync.Timeout), e
    two = [opened(agent, {"w": np.zeros(2)}, "lineages", rank=i, world_size=2, run=f"run{i}", timeout=1) for i in range(2)]
    out = together(*(lambda p=p: p.offload(1) for p in two))
    said(next(e for e in out if isinstance(e, wsync.Error) and e.errno == errno.EPROTO), "different runs", "run0", "run1", "same")
    offload_all(pubs, 30)


def test_changes():
    "shapes, dtypes and names that change between steps are registered again, with 1 and 2 ranks"
    agent = Agent()
    r = np.random.default_rng(2)
    for n in (1, 2):
        model = f"of{n}"
        sources = [{} for _ in range(n)]
        pubs = ranks_of(agent, sources, model)
        for version in range(1, 13):
            shape = (3 + version % 4, 5)
            shared = r.standard_normal(shape).astype(np.float32 if version % 3 else np.float16)
            for i, s in enumerate(sources):
                s.clear()
                s["shared"] = shared.copy()
                s[f"own.{i}"] = r.integers(0, 99, 7 + (version // 2 * i) % 5)
                if version % 4 == i:
                    s[f"now.and.then.{i}"] = np.arange(version)
            offload_all(pubs, version)
            want = {name: a for s in sources for name, a in s.items()}
            got = served(agent, version, model)
            assert {k: (v[1], v[2]) for k, v in got.items()} == {k: (list(a.shape), a.tobytes()) for k, a in want.items()}, version


def test_one_changes():
    "only one rank changes its tensors: the step succeeds or is refused with a reason, the next one succeeds"
    agent = Agent()
    sources = [{"own.0": np.arange(5)}, {"own.1": np.arange(50000)}]
    pubs = ranks_of(agent, sources, timeout=2)
    offload_all(pubs, 1)
    through = 0
    for version in range(2, 12, 2):
        sources[0]["own.0"] = np.arange(version * 1000)
        out = together(*(lambda p=p: p.offload(version) for p in pubs))
        for e in out:
            said(e, "of 2, model actor", f"rank {1 - out.index(e)}") if e else None
        offload_all(pubs, version + 1)
        through += out == [None, None]
        for v in {version + 1, *([version] if out == [None, None] else ())}:
            got = served(agent, v)
            assert all(got[n][2] == s[n].tobytes() for s in sources for n in s), v
    print(f"# {through} of 5 changes got through at once", flush=True)


def test_agent_ends():
    "an agent that ends between offloads: the error says so, and the same publisher works with the next agent"
    agent = Agent()
    sources = [{"all": np.arange(12.0), f"own.{i}": np.full(3, i)} for i in range(2)]
    one = {"w": np.arange(5)}
    pubs, alone = ranks_of(agent, sources), opened(agent, one, "alone")
    offload_all(pubs, 1)
    works(alone, agent, 1, one, "alone")
    runs = pubs[0].run, alone.run
    for turn in range(2):
        agent.kill()
        for p in (*pubs, alone):
            for _ in range(2):
                e = together(lambda: p.offload(2))[0]
                said(e, f"rank {p.rank} of {p.world_size}, model {p.model}", agent.sock, "wsync agent" if e.errno != errno.ECONNRESET else "next offload")
                assert isinstance(e, wsync.Error), e
            said(together(lambda: p.wait_published(2))[0], f"rank {p.rank} of {p.world_size}", agent.sock, "next offload")
        agent = Agent(port=agent.port, sock=agent.sock)
        offload_all(pubs, 2 + turn)
        works(alone, agent, 2 + turn, one, "alone")
        assert (pubs[0].run, alone.run) == runs
        assert served(agent, 2 + turn)["own.1"][2] == sources[1]["own.1"].tobytes()
    agent.kill()
    agent = Agent(port=agent.port, sock=agent.sock)  # before the publisher has noticed
    offload_all(pubs, 4)
    agent.process.send_signal(signal.SIGKILL)
    refused(lambda: publisher(agent, one), wsync.Error, "rank 0 of 1", agent.sock, "running?") if agent.process.wait() else None


class Impostor:
    """A socket that accepts requests like an agent, and answers with what answer(path, body) returns: a dict, a dict and a descriptor,
    bytes, or None (closes)."""

    def __init__(self, answer):
        self.sock, self.answer, self.paths = unique("impostor") + ".sock", answer, []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.sock)
        self.listener.listen()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        at_end(self.close)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)

    def serve(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            with s, contextlib.suppress(OSError):
                while (request := receive(s)) is not None:
                    self.paths.append(request["path"])
                    reply = self.answer(request["path"], request.get("body"))
                    if reply is None:
                        break
                    send(s, reply)


def send(s, message):
    fds = [message[1]] if isinstance(message, tuple) else []
    message = message[0] if fds else message
    if not isinstance(message, bytes):
        text = json.dumps(message).encode()
        message = struct.pack("<4sII", b"WSF1", len(text), len(fds)) + text
    socket.send_fds(s, [message], fds) if fds else s.sendall(message)


def receive(s):
    head = s.recv(12, socket.MSG_WAITALL)
    return json.loads(s.recv(struct.unpack("<4sII", head)[1], socket.MSG_WAITALL)) if len(head) == 12 else None


def test_other_release():
    "an agent of another release, or something else at its socket, and a publisher of another release"
    source = {"w": np.arange(4.0)}
    good = {"api": 1, "run": "r", "epoch": 1, "files": [{"name": "model.safetensors", "bytes": 4128, "header_bytes": 4096}],
            "places": [[0, 4096, True]], "base": [], "sidecars": []}
    ok = lambda body: {"status": 200, "body": body}
    remedy = ("rank 0 of 1, model actor", "one release", wsync.__version__)
    for answer, words in [
        (lambda p, b: {"status": 404, "errno": "ENOENT", "error": f"there is no {p}"}, ("register", "another release")),
        (lambda p, b: {"status": 501, "errno": "EOPNOTSUPP", "error": "not here"}, ("register", "another release")),
        (lambda p, b: ok({"hello": "world"}), ("not understood",)),
        (lambda p, b: ok(None), ("not understood",)),
        (lambda p, b: ok([1, 2, 3]), ("not understood",)),
        (lambda p, b: ok(dict(good, api=2)), ("not understood",)),
        (lambda p, b: ok({k: v for k, v in good.items() if k != "api"}), ("not understood",)),
        (lambda p, b: ok(dict(good, places=[[7, 4096, True]])), ("not understood",)),
        (lambda p, b: ok(dict(good, places=[])), ("not understood",)),
        (lambda p, b: b"HTTP/1.1 400 Bad Request\r\n\r\n", ("no agent of this release",)),
        (lambda p, b: struct.pack("<4sII", b"WSF2", 2, 0) + b"{}", ("no agent of this release",)),
        (lambda p, b: ok(good) if p.endswith("register") else {"status": 404, "errno": "ENOENT", "error": f"there is no {p}"}, ("begin",)),
    ]:
        impostor = Impostor(answer)
        pub = opened(impostor, source)
        for _ in range(2):
            e = refused(lambda: pub.offload(1), wsync.Error, *remedy, *words, impostor.sock)
            assert e.errno == errno.EPROTO, e
        pub.close()
    # a 0.1.0 agent, which would keep a slot of another base forever: the base's bytes are written all the same
    slot, folder = os.memfd_create("slot"), checkpoint({"w": ("F32", [4]), "x": ("F32", [2])}, sidecars=False)
    os.truncate(slot, 4120)
    at_end(os.close, slot)
    based = dict(good, files=[{"name": "model.safetensors", "bytes": 4120, "header_bytes": 4096}], base=[[0, 4096, False], [0, 4112, True]])
    impostor = Impostor(lambda p, b: ok(based) if p.endswith("register") else (ok({"fresh": False, "holds": None}), slot) if p.endswith("begin") else ok({}))
    held = {"w": np.arange(4, dtype=np.float32)}
    opened(impostor, held, base=folder).offload(1)
    assert os.pread(slot, 24, 4096) == held["w"].tobytes() + tensors_of(f"{folder}/model.safetensors")["x"][2]
    # the answer to the commit is lost: the lineage may have been opened, and is not opened again
    asked, slot = [], os.memfd_create("slot")
    os.truncate(slot, 4128)
    at_end(os.close, slot)

    def forgets(path, body):
        if path.endswith("register"):
            asked.append((body["new_run"], body.get("run")))
        return ok(good) if path.endswith("register") else (ok({"fresh": False, "holds": None}), slot) if path.endswith("begin") else None

    pub = opened(Impostor(forgets), source, new_run=True)
    for _ in range(2):
        refused(lambda: pub.offload(1), wsync.Error, "next offload")
    assert asked == [(True, None), (False, "r")], asked
    # a begin without descriptors, and one with a closed connection
    impostor = Impostor(lambda p, b: ok(good) if p.endswith("register") else ok({"fresh": False}))
    refused(lambda: opened(impostor, source).offload(1), wsync.Error, "rank 0 of 1", "descriptors")
    impostor = Impostor(lambda p, b: None)
    refused(lambda: opened(impostor, source).offload(1), wsync.Error, "rank 0 of 1", impostor.sock, "next offload")
    agent = Agent()
    for body, release in (({}, "0.0"), ({"api": 2, "release": "7.8.9"}, "7.8.9")):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(agent.sock)
            send(s, {"method": "POST", "path": "/v1/local/register", "query": "", "body": dict(body, model="actor", rank=0, world_size=1, params=[])})
            reply = receive(s)
        assert reply["errno"] == "EPROTO" and release in reply["error"] and wsync.__version__ in reply["error"] and "one release" in reply["error"], reply
    works(opened(agent, source), agent, 1, source)


def test_memory():
    "no reference to the trainer's tensors is kept, and neither side's memory grows"
    agent = Agent()
    arrays = [np.random.default_rng(i).standard_normal((64, 64)).astype(np.float32) for i in range(12)]
    source = {f"layer.{i}.weight": a for i, a in enumerate(arrays)}
    source["turned"] = arrays[0].T
    values = list(source.values())
    counts = lambda: [sys.getrefcount(v) for v in values] + [sys.getrefcount(source)]
    pub = opened(agent, source)
    pub.offload(1)
    del source["turned"]
    source["turned"] = values[-1]
    gc.collect()
    before = counts()
    trainer, other, blocks = (np.zeros(OFFLOADS, np.int64) for _ in range(3))  # nor does this test itself use more
    for version in range(2, OFFLOADS + 2):
        arrays[version % 12][version % 64] += 1
        pub.offload(version)
        if version % 50 == 0:  # other metadata: registered again
            source["more"] = np.zeros(1000 + version)
        if version % 50 == 25:
            source.pop("more", None)
        i = version - 2
        trainer[i], other[i], blocks[i] = rss(os.getpid()), rss(agent.pid), sys.getallocatedblocks()
    pub.wait_published(OFFLOADS + 1)
    source.pop("more", None)
    assert counts() == before, (counts(), before)
    q = OFFLOADS // 4
    middle = lambda x, i: int(np.median(x[i * q : (i + 1) * q]))
    grown = {n: (middle(x, 1), middle(x, 3)) for n, x in (("trainer", trainer), ("agent", other), ("blocks", blocks))}
    print("# " + ", ".join(f"{n} {a} -> {b}" for n, (a, b) in grown.items()), flush=True)
    for n in ("trainer", "agent"):
        assert grown[n][1] - grown[n][0] < 1 << 20, grown
    assert grown["blocks"][1] - grown["blocks"][0] < 500, grown
    for bad in (np.zeros(2, np.complex128), None):  # nor after errors
        source["bad"] = bad
        refused(lambda: pub.offload(1 << 40), TypeError, "bad")
        del source["bad"]
    refused(lambda: pub.offload(1), wsync.Error, "newest")
    gc.collect()
    assert counts() == before, (counts(), before)
    pub.close()
    assert counts() == before, (counts(), before)


TRAINER = """
import os, signal, sys
import numpy as np
import wsync
first, last, new_run, die = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "new", sys.argv[4] == "die"
tensors = {"w": np.zeros((512, 512), np.float32), "step": np.zeros(1, np.int64)}
pub = wsync.Publisher("actor", tensors, new_run=new_run)
for step in range(first, last + 1):
    tensors["w"][:] = step * (1.5 if new_run else 1)
    tensors["step"][:] = step
    pub.offload(step)
    pub.wait_published(step)
    print(step, pub.run, flush=True)
if die:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_crash():
    "a trainer killed after 7 resumes at 8; one that restored 4 opens a lineage: engines end on the new 5"
    need_fuse()
    port, folder = free_port(), unique("run")
    sock = f"{folder}/agent.sock"
    env = dict(os.environ, PYTHONPATH=PACKAGE, WSYNC_AGENT=f"unix:{sock}", WSYNC_LISTEN=f"127.0.0.1:{port}", PYTHONWARNINGS="ignore")
    end = lambda pid: pid and (os.kill(pid, signal.SIGTERM), wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "the agent's end"))
    at_end(lambda: end(wsync.lib._agents._agent_pid(sock)))

    def train(*args):
        r = subprocess.run([sys.executable, "-c", TRAINER, *map(str, args)], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, timeout=60 * SLOW)
        assert r.returncode == (-signal.SIGKILL if args[-1] == "die" else 0), (r.returncode, r.stdout, r.stderr)
        return [line.split() for line in r.stdout.splitlines()]

    told = train(1, 7, "same", "die")
    pid = wsync.lib._agents._agent_pid(sock)
    assert pid and [int(v) for v, _ in told] == list(range(1, 8)), (pid, told)
    run = told[0][1]
    mount = Mount(f"http://127.0.0.1:{port}")
    mount.wait_version("actor", 7)
    engine = Engine(mount.file("actor/7"))
    mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
    mount.write("follow", "actor/policy")
    wait_for(lambda: engine.serves(whole=True) == f"7@{run}", "the engine on 7")
    assert train(8, 8, "same", "die") == [["8", run]]
    wait_for(lambda: engine.serves(whole=True) == f"8@{run}", "the engine on 8")
    (v, new), = train(5, 5, "new", "end")
    assert v == "5" and new != run
    wait_for(lambda: engine.serves(whole=True) == f"5@{new}", "the engine on the new 5")
    assert wsync.lib._agents._agent_pid(sock) == pid, "it is the same agent still"
    got = tensors_of(mount.file("actor/5/model.safetensors"))
    assert np.all(np.frombuffer(got["w"][2], np.float32) == 7.5) and np.frombuffer(got["step"][2], np.int64) == 5
    fresh = Engine(mount.file("actor/5"))
    assert engine.checksum() == fresh.checksum()
