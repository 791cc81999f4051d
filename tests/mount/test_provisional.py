# timeout: 600, takes: 90
# sanitizers: address
"""What is sent of a version while its ranks still write it: the agent lists and serves its records, and forgets them when the version is
abandoned or announced; mounts patch a spare copy with them."""
import contextlib
import errno
import http.client
import json
import os
import signal
import struct
import threading
import urllib.error

from between import Between
from proxy import Proxy
from ranks import Rank, Refused, expected
from relay import Relay
from world import *

ELEMENTS = 24 << 20  # with one thread two batches, which each are 8 blocks of 4 MiB, and more
os.environ["PREFER"] = "latency"
os.environ["WSYNC_COMPARE"] = "check"
NO_DIGEST = b"0" * 32


class Trainer:
    """A rank whose readers take deltas: that is when it gives its records early."""

    def __init__(self, *options, takes=True):
        self.agent = Agent(*options)
        self.rank = self.new_rank()
        self.version = 0
        for _ in range(3):
            self.offload()
            if takes and self.version > 1:
                self.take()

    def new_rank(self):
        return Rank(self.agent, "actor", 0, 1, ELEMENTS, "run=one", "timeout=60000", "threads=1")

    def offload(self):
        self.version += 1
        assert self.rank.ask(f"offload {self.version}") == f"offloaded {self.version}"
        assert self.rank.ask(f"wait {self.version}") == f"published {self.version}"

    def fetch(self, version, base, timeout=60):
        return urllib.request.urlopen(f"{self.agent.url}/v1/actor/{version}/delta?run=one&base={base}&base_run=one", timeout=timeout)

    def take(self):
        with self.fetch(self.version, self.version - 1) as r:
            return r.read()

    def begin(self, at=600):
        """The next version is half copied, and its rank stopped."""
        self.version += 1
        self.rank.send(f"stop {at} {self.version}")
        wait_for(lambda: open(f"/proc/{self.rank.pid}/stat").read().rsplit(")", 1)[1].split()[0] == "T", "the rank to stop")
        return wait_for(self.coming, "the provisional delta")

    def coming(self):
        return self.agent.get("/v1/models")["models"][0].get("coming")

    def go_on(self):
        os.kill(self.rank.pid, signal.SIGCONT)


def records(stream):
    """[(file, block, kind, packed, data)], and the end's state; None: it broke off."""
    out, at = [], 200
    while at + 32 <= len(stream):
        file, block, kind, packed, _, _, raw, n, _ = struct.unpack_from("<IIBBHIIIQ", stream, at)
        at += 32
        if file == 0xFFFFFFFF:
            return out, block
        out.append((file, block, kind, packed, stream[at:at + n]))
        at += n
    return out, None


def test_while_it_is_written():
    "records of a version that is being written are listed and sent, and are those of its delta"
    t = Trainer()
    coming = t.begin()
    base = t.agent.get(f"/v1/actor/{t.version - 1}/manifest?run=one")
    assert (coming["version"], coming["run"], coming["base"], coming["base_run"]) == (t.version, "one", t.version - 1, "one"), coming
    assert coming["base_digest"] == base["digest"], coming
    with pytest.raises(urllib.error.HTTPError):
        t.agent.get(f"/v1/actor/{t.version}/manifest?run=one")
    early = t.fetch(t.version, t.version - 1)
    head = early.read(200)
    assert head[160:192] == NO_DIGEST, head
    t.go_on()
    assert t.rank.answer() == f"offloaded {t.version}"
    assert t.rank.ask(f"wait {t.version}") == f"published {t.version}"
    with early:
        got, state = records(head + early.read())
    assert state == 1 and t.coming() is None
    wait_for(lambda: f"base={t.version - 1} version={t.version} " in t.agent.text(), "the delta", 60)
    final, whole = records(t.take())
    assert whole == 0
    assert got and {r[:2]: r for r in got}.items() <= {r[:2]: r for r in final}.items()
    assert len(got) >= len(final) - 4, (len(got), len(final))  # blocks that no rank fills alone


@pytest.mark.parametrize("how", ["killed", "agent ends"])
def test_abandoned(how):
    "a rank that is killed takes what was sent with it; who reads it is told"
    t = Trainer()
    t.begin()
    early = t.fetch(t.version, t.version - 1)
    early.read(200)
    if how == "killed":
        t.rank.kill()
        wait_for(lambda: t.coming() is None, "the agent to forget it")
        got, state = records(bytes(200) + early.read())
        assert state == 1, state
        with pytest.raises(urllib.error.HTTPError):
            t.fetch(t.version, t.version - 1)
        t.rank = t.new_rank()
        t.offload()
        t.offload()
        assert t.coming() is None
    else:
        t.agent.end()
        t.rank.kill()
    early.close()


def test_agent_ends_while_it_gets_them():
    "the offload says that the agent has ended, as wsync.h promises, and the next one connects anew"
    t = Trainer()
    t.begin()
    t.agent.kill()
    t.go_on()
    with pytest.raises(Refused) as e:
        t.rank.answer()
    assert e.value.errno == errno.ECONNRESET, e.value


def test_not_where_nobody_takes_deltas():
    "where no reader takes deltas nothing is given early"
    t = Trainer(takes=False)
    t.version += 1
    t.rank.send(f"stop 600 {t.version}")
    wait_for(lambda: open(f"/proc/{t.rank.pid}/stat").read().rsplit(")", 1)[1].split()[0] == "T", "the rank to stop")
    assert t.coming() is None
    t.go_on()
    assert t.rank.answer() == f"offloaded {t.version}"


def same_bytes(mount, t):
    got, want = tensors_of(mount.file("actor", t.version, "model.safetensors")), expected(t.version, ELEMENTS)
    assert {n: bytes(g[2]) for n, g in got.items()} == {n: w[2] for n, w in want.items()}


def pulled_while_written(mount, t):
    """The next version, pulled by a mount that was told of it in the middle: the line of its status."""
    t.begin()
    time.sleep(1)  # it fetches what there is; nothing below depends on that being enough
    t.go_on()
    assert t.rank.answer() == f"offloaded {t.version}"
    assert t.rank.ask(f"wait {t.version}") == f"published {t.version}"
    wait_for(lambda: os.path.isdir(mount.file("actor", t.version)), f"version {t.version}")
    mount.write(f"pull {t.version}", "actor/ctl")
    same_bytes(mount, t)
    return next(line for line in mount.text("actor/status").splitlines() if line.startswith(f"version.{t.version} "))


def test_mount():
    "a mount patches a spare copy while the version is written, has its bytes right, and gives mounts that pull from it the delta"
    need_fuse()
    t = Trainer()
    m = Relay(t.agent.url, "cache=1G,provisional=on")
    below = Mount(m.url, "cache=1G")
    for mount in m, below:
        mount.wait_version("actor", t.version)
        mount.write(f"pull {t.version}", "actor/ctl")
    lines = []
    while sum("patched while it was written" in line for line in lines) < 2:  # on a busy machine records may come late
        assert len(lines) < 8, lines
        lines.append(pulled_while_written(m, t))
        below.wait_version("actor", t.version)
        below.write(f"pull {t.version}", "actor/ctl")
        line = next(line for line in below.text("actor/status").splitlines() if line.startswith(f"version.{t.version} "))
        assert "full" not in line or "patched" not in lines[-1], line
        same_bytes(below, t)


def test_mount_abandoned():
    "a version that is abandoned costs a mount nothing but the spare, and the next one is right"
    need_fuse()
    t = Trainer()
    m = Mount(t.agent.url, "cache=1G,provisional=on")
    m.wait_version("actor", t.version)
    m.write(f"pull {t.version}", "actor/ctl")
    t.begin()
    t.rank.kill()
    wait_for(lambda: t.coming() is None, "the agent to forget it")
    assert not os.path.isdir(m.file("actor", t.version))
    t.rank = t.new_rank()
    t.offload()
    m.wait_version("actor", t.version)
    m.write(f"pull {t.version}", "actor/ctl")
    same_bytes(m, t)
    pulled_while_written(m, t)


def cached(mount):
    s = os.statvfs(mount.path)
    return (s.f_blocks - s.f_bavail) * s.f_frsize


def test_readers_that_do_not_read():
    "who opens what is sent of a version and does not read it keeps none of it, but for the last version's"
    t = Trainer()
    idle = []
    for _ in range(3):
        t.begin()
        idle.append(t.fetch(t.version, t.version - 1))
        t.go_on()
        assert t.rank.answer() == f"offloaded {t.version}"
        assert t.rank.ask(f"wait {t.version}") == f"published {t.version}"
        t.take()
    for reader in idle[:-1]:
        with pytest.raises((OSError, http.client.HTTPException)):
            while reader.read(1 << 16):
                pass
            raise OSError("it ended")  # what the sockets had room for
        reader.close()


def test_room():
    "a spare gives way to a version that is pulled, and is not made where it is not wanted"
    need_fuse()
    t = Trainer()
    size = 3 * ELEMENTS  # tensors of 2 bytes, and half as many again
    t.agent.publish("other", 1, checkpoint({"x.weight": ("BF16", [size // 2048, 1024])}), timeout=300)
    m, off, auto = (Mount(t.agent.url, f"cache={size * 5 // 2},provisional={how}") for how in ("on", "off", "auto"))
    for mount in m, off, auto:
        mount.wait_version("actor", t.version)
        mount.write(f"pull {t.version}", "actor/ctl")
    t.begin()
    wait_for(lambda: size * 2 <= cached(m), "the spare")
    assert cached(off) < size * 2 and cached(auto) < size * 2  # the trainer is on this machine
    m.write("pull 1", "other/ctl")
    with open(m.file("other/1/model.safetensors"), "rb") as f:
        assert len(f.read()) > size * 9 // 10
    assert os.path.isdir(m.file("actor", t.version - 1))
    t.go_on()
    assert t.rank.answer() == f"offloaded {t.version}"


def spoil_listing(member, value):
    def change(path, text):
        try:
            listing = json.loads(text)
        except ValueError:
            return text
        for model in listing.get("models", ()) if isinstance(listing, dict) else ():
            if "coming" in model:
                model["coming"][member] = value
        return json.dumps(listing).encode()

    return change


def spoil_stream(spoil):
    return lambda path, text: spoil(text) if "/delta?" in path and text[160:192] == NO_DIGEST else text


@pytest.mark.parametrize("change", [
    spoil_listing("blocks", 1), spoil_listing("blocks", 1 << 62), spoil_listing("blocks", "x"), spoil_listing("base_digest", "f" * 32), spoil_listing("base", 1),
    spoil_listing("run", "../x"), spoil_listing("version", 3),
    spoil_stream(lambda t: t[:5000] + bytes([t[5000] ^ 1]) + t[5001:]), spoil_stream(lambda t: t[:9000]), spoil_stream(lambda t: t + t[200:] * 3),
    spoil_stream(lambda t: t[:200] + struct.pack("<II", 0, 1 << 30) + t[208:]),
])
def test_hostile_agent(change):
    "what an agent says of a version on its way, or sends of it, may be anything: the version is right"
    need_fuse()
    t = Trainer()
    between = Between(t.agent)
    between.change = change
    m = Mount(between.url, "cache=1G,provisional=on")
    m.wait_version("actor", t.version)
    m.write(f"pull {t.version}", "actor/ctl")
    pulled_while_written(m, t)


@pytest.mark.parametrize("who", ["mount", "agent"])
def test_ended_in_the_middle(who):
    "a mount that ends while it patches a spare ends at once; one whose agent is killed then has the next agent's versions right"
    need_fuse()
    t = Trainer()
    m = Mount(t.agent.url, "cache=1G,provisional=on")
    m.wait_version("actor", t.version)
    m.write(f"pull {t.version}", "actor/ctl")
    t.begin()
    time.sleep(0.5)
    if who == "mount":
        began = time.monotonic()
        m.end()
        assert "a pull ends later" not in m.text() and time.monotonic() - began < 8 * SLOW
        t.go_on()
        assert t.rank.answer() == f"offloaded {t.version}"
        return
    t.agent.kill()
    t.rank.kill()
    t.agent = Agent(port=t.agent.port, sock=t.agent.sock)
    t.rank = t.new_rank()
    t.offload()
    wait_for(lambda: os.path.isdir(m.file("actor", t.version)), f"version {t.version}")
    m.write(f"pull {t.version}", "actor/ctl")
    same_bytes(m, t)


class Silent(Proxy):
    """Passes on nothing more of what it sends of versions on their way, once `silent` is set."""

    silent = False

    def serve(self, near, far):
        near.settimeout(60 * SLOW)
        head = near.recv(1 << 16)
        far.sendall(head)
        self.pass_both(near, far, marks=b"/delta?" in head)

    def pass_on(self, data, sink, marked):
        while marked and self.silent:
            time.sleep(0.01)
        sink.sendall(data)


def right(mount, version):
    got, want = tensors_of(mount.file("actor", version, "model.safetensors")), expected(version, ELEMENTS)
    assert {n: bytes(g[2]) for n, g in got.items()} == {n: w[2] for n, w in want.items()}


def begun(source, t):
    """A mount that has the newest version, and a spare of the next one, which is half written."""
    m = Mount(source, "cache=1G,provisional=on")
    m.wait_version("actor", t.version)
    m.write(f"pull {t.version}", "actor/ctl")
    has = cached(m)
    t.begin()
    wait_for(lambda: cached(m) > has, "the spare")
    return m


def test_agent_ends_while_a_pull_waits():
    "a pull that waits for records that come no more goes on without them; the agent ends meanwhile, and the next one's versions are right"
    need_fuse()
    t = Trainer()
    silent = Silent(t.agent.port)
    m = begun(silent.url, t)
    silent.silent = True
    t.go_on()
    assert t.rank.answer() == f"offloaded {t.version}"
    assert t.rank.ask(f"wait {t.version}") == f"published {t.version}"
    wait_for(lambda: os.path.isdir(m.file("actor", t.version)), f"version {t.version}")
    pull = threading.Thread(target=pull_if_possible, args=(m, t.version), daemon=True)
    pull.start()
    time.sleep(0.3)  # it waits, mostly
    t.agent.kill()
    t.rank.kill()
    silent.silent = False
    t.agent = Agent(port=t.agent.port, sock=t.agent.sock)
    t.rank = t.new_rank()
    t.offload()
    wait_for(lambda: os.path.isdir(m.file("actor", t.version)), f"version {t.version}")
    m.write(f"pull {t.version}", "actor/ctl")
    right(m, t.version)
    pull.join(60 * SLOW)
    assert not pull.is_alive()


def pull_if_possible(mount, version):
    with contextlib.suppress(OSError):
        mount.write_once(f"pull {version}", "actor/ctl")


def test_silent_source():
    "a source that sends nothing more of a spare does not keep its version from a mount"
    need_fuse()
    t = Trainer()
    silent = Silent(t.agent.port)
    m = begun(silent.url, t)
    silent.silent = True
    t.go_on()
    assert t.rank.answer() == f"offloaded {t.version}"
    wait_for(lambda: os.path.isdir(m.file("actor", t.version)), f"version {t.version}")
    pull = threading.Thread(target=pull_if_possible, args=(m, t.version), daemon=True)
    pull.start()
    time.sleep(3)  # the deltas, too, come after this only
    silent.silent = False
    pull.join(60 * SLOW)
    right(m, t.version)


def test_mount_is_stopped():
    "a mount that is stopped while versions come and go has the newest one right when it goes on"
    need_fuse()
    t = Trainer()
    m = begun(t.agent.url, t)
    suspend(m.process.pid)
    try:
        t.go_on()
        assert t.rank.answer() == f"offloaded {t.version}"
        assert t.rank.ask(f"wait {t.version}") == f"published {t.version}"
        t.offload()
        t.begin()
    finally:
        os.kill(m.process.pid, signal.SIGCONT)
    t.go_on()
    assert t.rank.answer() == f"offloaded {t.version}"
    assert t.rank.ask(f"wait {t.version}") == f"published {t.version}"
    wait_for(lambda: os.path.isdir(m.file("actor", t.version)), f"version {t.version}")
    m.write(f"pull {t.version}", "actor/ctl")
    right(m, t.version)
    pulled_while_written(m, t)
