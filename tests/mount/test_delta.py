# beside others
# timeout: 900, takes: 75
# sanitizers: thread
"""Versions made from deltas: by one delta, by chains, in place and in copies, and under faults."""
import http.client
import http.server
import mmap
import os
import threading

from between import Between
from proxy import Gate
from world import *


def same(mount, version, folder, file="model.safetensors", model="actor"):
    want, got = tensors_of(os.path.join(folder, file)), tensors_of(mount.file(model, version, file))
    assert want == got, [n for n in want if got.get(n) != want[n]][:3]


class Run:
    """A trainer's run: steps published one after the other."""

    def __init__(self, tensors=LARGE, *args):
        need_fuse()
        self.agent = Agent(*args)
        self.folders = {1: checkpoint(tensors, seed=1)}
        self.newest = 1
        self.agent.publish("actor", 1, self.folders[1])
        self.url = self.agent.url

    def step(self, **kw):
        self.newest += 1
        self.folders[self.newest] = step(self.folders[self.newest - 1], self.newest, **kw)
        self.agent.publish("actor", self.newest, self.folders[self.newest])
        return self.newest

    def deltas(self, version=None):
        return self.agent.get(f"/v1/actor/{version or self.newest}/manifest")["deltas"]

    def wait_delta(self):
        return wait_for(lambda: self.deltas() and self.deltas()[0]["state"] != "growing" and self.deltas(), "the delta")


def pull(mount, version):
    wait_for(lambda: os.path.isdir(mount.file("actor", version)), f"version {version}")
    mount.write(f"pull {version}", "actor/ctl")
    return next(line for line in mount.text("actor/status").splitlines() if line.startswith(f"version.{version} "))


@pytest.mark.parametrize("large", [True, False])
def test_growing_after_large(large):
    "a delta that grows is waited for, but not where the one before it was given up as too large"
    run = Run()
    run.newest, run.folders[2] = 2, checkpoint(LARGE, seed=2)
    run.agent.publish("actor", 2, run.folders[2])
    run.wait_delta()
    run.step()
    before = run.wait_delta()[1]
    assert before["state"] == "given-up" and before["bytes"] > os.path.getsize(run.folders[2] + "/model.safetensors") / 2, before
    proxy = Between(run.agent)

    def change(path, text):
        if "/3/deltas" not in path:
            return text
        newest, *others = json.loads(text)["deltas"]
        newest |= {"state": "growing", "bytes": 2000000, "changed": 0, "whole_blocks": 0}
        return json.dumps({"deltas": [newest, *others] if large else [newest]}).encode()

    proxy.change = change
    mount = Mount(proxy.url, DELTAS)
    pull(mount, 2)
    how = pull(mount, 3)
    assert ('how="tcp full: patching would take longer"' if large else 'how="tcp delta from 2') in how, how
    same(mount, 3, run.folders[3])


def test_steps():
    "each step arrives as a delta, in place once there are two versions and no reader has had the older one, and equals the published bytes"
    run = Run()
    unread, mount = Mount(run.url, DELTAS), Mount(run.url, DELTAS)
    assert all('how="tcp full"' in pull(m, 1) for m in (unread, mount))
    same(mount, 1, run.folders[1])
    ways, copies = [], []
    for _ in range(5):
        version = run.step()
        d = run.wait_delta()[0]
        assert d["base"] == version - 1 and d["state"] == "whole" and d["changed"] > 0, d
        assert d["bytes"] < 1.5 * d["changed"], d
        with urllib.request.urlopen(f"{run.agent.url}/v1/actor/{version}/manifest", timeout=60) as reply:
            assert reply.read().count(b'"deltas"') == 1, "a member of a JSON object stands once"
        ways.append(pull(unread, version))
        copies.append(pull(mount, version))
        same(mount, version, run.folders[version])
        unread.write(f"verify {version}", "actor/ctl")
    assert "delta from 1" in ways[0] and "in place" not in ways[0], ways
    assert all("chain of 2" in w and "in place" in w for w in ways[1:]), ways
    assert all("delta from" in w and "in place" not in w for w in copies), copies  # computed from the bytes read
    assert all(int(w.split(" moved=")[1].split()[0]) < 400000 for w in ways + copies), (ways, copies)
    for m in unread, mount:
        same(m, 6, run.folders[6])
        same(m, 5, run.folders[5])  # the previous version is intact too


def test_no_room_for_a_delta():
    "a delta that does not fit the cache causes a warning with what to do; a version that changed completely causes none"
    run = Run(LARGE, "--delta-cache", "16K")
    run.step()
    line = wait_for(lambda: next((l for l in run.agent.text().splitlines() if "no delta model=actor" in l), None), "the warning", 60)
    assert line.startswith("warn ") and "room=16384" in line and "--delta-cache=SIZE makes room" in line, line

    def given_up():
        with urllib.request.urlopen(f"{run.agent.url}/metrics", timeout=20) as reply:
            return next(int(l.split()[1]) for l in reply.read().decode().splitlines() if 'result="given-up"' in l and "agent_deltas_total" in l)

    for n in (2, 3):
        run.step()
        wait_for(lambda: given_up() == n, "a delta that is given up")
    assert run.agent.text().count("larger than the room") == 1, run.agent.text()  # of a reason a model is warned once
    run = Run(LARGE)
    run.agent.publish("actor", 2, checkpoint(LARGE, seed=2))
    line = wait_for(lambda: next((l for l in run.agent.text().splitlines() if "no delta model=actor" in l), None), "the line", 60)
    assert line.startswith("info ") and "half as large as the version" in line, line


def test_missed():
    "a mount that missed steps fetches the chain; one that missed more than is kept, or turned deltas off, fetches the whole version"
    run = Run()
    mount, plain = Mount(run.url, DELTAS), Mount(run.url, "delta-cache=0")
    pull(mount, 1)
    pull(plain, 1)
    for _ in range(3):
        run.step()
        run.wait_delta()
    assert [d["base"] for d in run.deltas()] == [3, 2, 1]
    line = pull(mount, 4)
    assert "chain of 3 from 1" in line, line
    same(mount, 4, run.folders[4])
    assert 'how="tcp full"' in pull(plain, 4)
    for _ in range(10):  # longer than the longest chain
        run.step()
        run.wait_delta()
    assert 'how="tcp full"' in pull(mount, run.newest)
    same(mount, run.newest, run.folders[run.newest])


def test_speeds():
    "configured speeds decide, whatever is measured; malformed speeds are refused"
    run = Run()
    patches, pulls = Mount(run.url, DELTAS), Mount(run.url, "speeds=50G:1M:1M")
    opened = Mount(run.url, "threads=2,speeds=3G:5G:1900M")  # copying is faster than pulling the whole version, which needs as much memory
    for m in (patches, pulls, opened):
        pull(m, 1)
    for _ in range(3):
        run.step()
        run.wait_delta()
        assert "delta" in (line := pull(patches, run.newest)) or "chain" in line, line
        line = pull(pulls, run.newest)
        assert 'how="tcp full: patching would take longer"' in line, line
        same(pulls, run.newest, run.folders[run.newest])
        same(opened, run.newest - 1, run.folders[run.newest - 1])
        line = pull(opened, run.newest)
        assert f"delta from {run.newest - 1}" in line and "in place" not in line, line
    for wrong in ("1M", "1M:1M", "1M:1M:1M:1M", "1M:0:1M", "1M::1M", "1M:1M:", "fast", "1M:1M:1M:"):
        r = wsync("mount", "-o", f"speeds={wrong}", run.url, unique("none"), check=False)
        assert r.returncode != 0 and "measured|LINK:PATCH:COPY" in r.stderr, (wrong, r.stderr)


def test_reader_stays():
    "a version that a reader still maps is never written to: the next one is patched in a copy"
    run = Run()
    mount = Mount(run.url, DELTAS)
    pull(mount, 1)
    fd = os.open(mount.file("actor/1/model.safetensors"), os.O_RDONLY)
    mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    os.close(fd)  # as engines do: map, close, keep reading
    want = bytes(mapped)
    stop = threading.Event()
    torn = []

    def read_on():
        while not stop.is_set():
            if mapped[:] != want:
                torn.append(1)
                return

    reader = threading.Thread(target=read_on)
    reader.start()
    try:
        for _ in range(3):
            run.step()
            run.wait_delta()
            pull(mount, run.newest)
            same(mount, run.newest, run.folders[run.newest])
    finally:
        stop.set()
        reader.join()
    assert not torn and mapped[:] == want
    mapped.close()


def test_pinned():
    "pinned and current versions serve as bases, and are never patched in place"
    run = Run()
    mount = Mount(run.url, DELTAS)
    pull(mount, 1)
    mount.write("pin 1", "actor/ctl")
    for _ in range(3):
        run.step()
        run.wait_delta()
        pull(mount, run.newest)
    same(mount, 1, run.folders[1])
    mount.write("verify 1", "actor/ctl")
    same(mount, run.newest, run.folders[run.newest])


def test_faults():
    "blocks of damaged, truncated and interrupted deltas are fetched whole, and every byte is right"
    run = Run()
    plans = ("seed=1,flip=30", "seed=2,lie=30", "seed=3,cut=30", "seed=4,flip=45", "seed=5,fail=40", "seed=6,cut=10,lie=10")
    for plan in plans[::3] if SANITIZER else plans:
        with scope():
            first = run.newest
            faulty = Mount(f"unix:{unique('nobody')}.sock", DELTAS)
            faulty.write(f"add actor fault:{plan}:{run.agent.url}", "ctl")
            wait_for(lambda f=faulty, v=first: quiet(lambda: pull(f, v)), "the first pull", 60)
            for _ in range(2):
                run.step()
                run.wait_delta()
                line = wait_for(lambda f=faulty: quiet(lambda: pull(f, run.newest)), "the next pull", 60)
                same(faulty, run.newest, run.folders[run.newest])
            print("#", plan, line.split("how=")[1])


def quiet(function):
    try:
        return function()
    except OSError:
        return None


def test_agent_restart():
    "a restarted agent has no earlier deltas; mounts continue with a whole version, then with deltas again"
    run = Run()
    mount = Mount(run.url, DELTAS)
    pull(mount, 1)
    run.step()
    run.wait_delta()
    pull(mount, 2)
    run.agent.kill()
    run.agent = Agent(port=run.agent.port, sock=run.agent.sock)
    line = None
    for _ in range(2):
        version = run.step()
        line = wait_for(lambda v=version: quiet(lambda: pull(mount, v)), "the pull", 60)
        same(mount, version, run.folders[version])
        wait_for(lambda: version == 3 or run.wait_delta(), "the delta")
    assert "delta from 3" in line or "chain" in line, line


def test_given_up():
    "a trainer that publishes fast never waits for a delta: the agent abandons it and says so, and the version is pulled whole or in part"
    tensors = {f"layer.{i}.weight": ("BF16", [1024, 2048]) for i in range(10 if SANITIZER else 40)}  # 160 MiB
    run = Run(tensors, "--slots", "2")
    mount = Mount(run.agent.url, DELTAS)
    pull(mount, 1)
    other = step(run.folders[1], 99)
    for version in range(2, 8):  # without a pause
        run.agent.publish("actor", version, other if version % 2 == 0 else run.folders[1])
    run.newest = 7
    pull(mount, 7)
    same(mount, 7, run.folders[1])


def test_relays():
    "deltas pass through a chain of mounts while they arrive: each link carries a step's changes and no more"
    run = Run()
    relays, source = [], run.url
    for _ in range(3):
        port = free_port()
        relays.append(Mount(source, f"serve=127.0.0.1:{port},prefetch,{DELTAS}"))
        source = f"http://127.0.0.1:{port}"
    leaf = Mount(source, DELTAS)
    pull(leaf, 1)
    for _ in range(3):
        run.step()
        line = pull(leaf, run.newest)
        same(leaf, run.newest, run.folders[run.newest])
        assert "delta" in line or "chain" in line, line
        assert int(line.split(" moved=")[1].split()[0]) < 400000, line
    for relay in relays:
        same(relay, run.newest, run.folders[run.newest])
        assert int(relay.status()["moved_bytes"]) < 30000000, relay.text("status")


def test_second_source():
    "deltas that the first source lacks come from the second"
    run = Run()
    port = free_port()
    Mount(run.agent.url, f"serve=127.0.0.1:{port},prefetch,delta-cache=0")
    leaf = Mount(f"http://127.0.0.1:{port},{run.url}", DELTAS)
    pull(leaf, 1)
    for _ in range(3):
        run.step()
        run.wait_delta()
        leaf.wait_version("actor", run.newest, sources=2)
        line = pull(leaf, run.newest)
        same(leaf, run.newest, run.folders[run.newest])
        assert int(line.split(" moved=")[1].split()[0]) < 400000, line


class Understates:
    """A proxy that understates the size of each delta."""

    def __init__(self, url):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                headers = {k: v for k, v in self.headers.items() if k in ("Range", "Accept")}
                try:
                    with urllib.request.urlopen(urllib.request.Request(url + self.path, headers=headers), timeout=60 * SLOW) as r:
                        status, body, kept = r.status, r.read(), r.headers.get("Content-Range")
                except urllib.error.HTTPError as e:
                    status, body, kept = e.code, e.read(), None
                except (OSError, http.client.HTTPException):  # the agent has ended
                    self.close_connection = True
                    return
                if self.path.split("?")[0].endswith("/deltas") and status == 200:
                    body = json.dumps({"deltas": [{**d, "bytes": 300} for d in json.loads(body)["deltas"]]}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if kept:
                    self.send_header("Content-Range", kept)
                self.end_headers()
                self.wfile.write(body)

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at_end(server.server_close)
        at_end(server.shutdown)
        self.url = f"http://127.0.0.1:{server.server_port}"


def test_more_than_offered():
    "of a delta longer than its source offered no more is read than offered; the version is pulled whole and right"
    run = Run()
    mount = Mount(Understates(run.url).url, DELTAS)
    pull(mount, 1)
    run.step()
    run.wait_delta()
    line = pull(mount, run.newest)
    same(mount, run.newest, run.folders[run.newest])
    assert "delta from 1" in line and "the rest whole" in line, line
    log = mount.text()
    assert "errno=E2BIG" in log and "300 bytes that its source offered" in log, log[-2000:]


def test_slow_link():
    "on a link where a whole pull takes five steps the mount still converges: it patches what it has and fetches the rest of the newest version"
    tensors = {f"layer.{i}.weight": ("BF16", [1024, 1024]) for i in range(20)}  # 40 MiB
    run = Run(tensors, "--slots", "2")
    gate = Gate(run.agent.url, 0)
    mount = Mount(gate.url, f"prefetch,streams=2,{DELTAS}")
    mount.wait_version("actor", 1)
    ready = lambda: [line for line in mount.text("actor/events").splitlines() if " ready model=actor" in line]
    for _ in range(30):
        gate.let(8 << 20)
        wait_for(lambda: gate.left <= 0 or ready(), "a fifth of a pull", 60)
        if ready():
            break
        run.step(share=0.002)
    assert ready() and "version=1 " not in ready()[0] and "the rest whole" in ready()[0], mount.text("actor/events")
    print(f"# {ready()[0]}")
    gate.open()
    wait_for(lambda: f" ready model=actor version={run.newest} " in mount.text("actor/events"), "the newest", 60)
    same(mount, run.newest, run.folders[run.newest])
