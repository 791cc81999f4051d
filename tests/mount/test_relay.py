# beside others
# sanitizers: thread
# timeout: 900, takes: 100
"""Mounts as sources of other mounts: chains, trees and rings, bytes passed on while they arrive, mounts that send wrong bytes or die;
and nginx in between, which caches what never changes."""
import http.client
import os
import re
import socket
import struct
import threading
import time

from certificates import Authority
from nginx import Nginx
from proxy import Gate
from relay import *


class Drip(Gate):
    """One connection for files gets a trickle, just more than the limit for a dead peer; all other connections for files are closed."""

    def __init__(self, url):
        self.dripping = False
        super().__init__(url, 0)

    def serve(self, near, far):
        first = near.recv(1 << 16)
        if not self.is_of_files(first):
            far.sendall(first)
            return self.pass_both(near, far, False)
        with self.changed:
            first_one, self.dripping = not self.dripping, True
        if first_one:
            far.sendall(first)
            while data := far.recv(1000):
                near.sendall(data)
                time.sleep(0.04)


class Distant(Gate):
    """One connection for files gets nothing at first, as over a long round trip; all others are closed. Once opened it is transparent."""

    def __init__(self, url):
        self.holds = self.opened = False
        super().__init__(url, 0)

    def serve(self, near, far):
        first = near.recv(1 << 16)
        with self.changed:
            closes = self.is_of_files(first) and self.holds and not self.opened
            self.holds = self.holds or self.is_of_files(first)
        if not closes:
            far.sendall(first)
            self.pass_both(near, far, self.is_of_files(first))

    def open(self):
        self.opened = True
        super().open()


def sent(server, kind="agent"):
    """The bytes of files that an agent or a relay has sent."""
    with urllib.request.urlopen(server.url + "/metrics", timeout=20 * SLOW) as r:
        return int(re.search(rf"^wsync_{kind}_sent_bytes_total (\d+)$", r.read().decode(), re.M).group(1))


def file_size(mount, file="model.safetensors"):
    return next(f["size"] for f in json.loads(mount.read("actor/1/.wsync/manifest.json"))["files"] if f["name"] == file)


def error_of(function):
    try:
        function()
    except OSError as e:
        return errno.errorcode[e.errno]
    return None


def raw(url, path, **headers):
    """Status, headers and body, for any status."""
    c = http.client.HTTPConnection("127.0.0.1", int(url.rsplit(":", 1)[1]), timeout=30 * SLOW)
    c.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    r = c.getresponse()
    body = r.read()
    c.close()
    return r.status, r.headers, body


def test_chain():
    "three mounts in a chain: the fourth reads the trainer's bytes and manifest, and learns of new versions at once"
    agent, folder = published("--delta-cache", 0)  # so that bytes can be counted
    chain = [Relay(agent.url)]
    for _ in range(2):
        chain.append(Relay(chain[-1].url))
    leaf = leaf_of(chain[-1].url, options="prefetch")
    assert same(leaf, folder)
    run = agent.get("/v1/models")["models"][0]["run"]
    manifests = [raw(s.url, f"/v1/actor/1/manifest?run={run}") for s in (agent, *chain)]
    assert all(m[0] == 200 and m[2] == manifests[0][2] for m in manifests), [m[2][:300] for m in manifests]
    assert all(m[1]["ETag"] == manifests[0][1]["ETag"] for m in manifests)
    size = size_of(leaf)
    assert sent(agent) == size and [sent(r, "relay") for r in chain] == [size] * 3, (size, sent(agent))
    for v in (2, 3):
        folder = checkpoint(LARGE, seed=v)
        agent.publish("actor", v, folder)
        start = time.monotonic()
        wait_for(lambda v=v: os.path.isdir(leaf.file("actor", v)) and state(leaf, v) == "ready", f"actor/{v} at the leaf")
        print(f"# version {v} was complete at the end of the chain after {time.monotonic() - start:.2f} s", flush=True)
        assert same(leaf, folder, v)
    assert sent(agent) == 3 * size, (sent(agent), size)
    # The agent has dropped version 1, the mounts that hold it have not.
    fresh = Mount(chain[0].url)
    fresh.wait_version("actor", 3)
    if os.path.isdir(fresh.file("actor/1")):
        assert same(fresh, checkpoint(LARGE, seed=1))


def test_while_it_arrives():
    "blocks are passed on while the mount in between is still filling"
    agent, folder = published()
    gate = Gate(agent.url, 10 << 20)
    relay = Relay(gate.url, "streams=2")
    leaf = leaf_of(relay.url, options="open=stream,streams=2")
    leaf.write("pull 1 async", "actor/ctl")
    wait_for(lambda: progress(leaf) >= BLOCK, "a block at the leaf", 60)
    assert state(relay) == "pulling" and progress(relay) < size_of(leaf), relay.text("actor/1/.wsync/progress")
    gate.open()
    assert same(leaf, folder)
    assert sent(agent) < 2 * size_of(leaf)  # nothing was abandoned meanwhile except what stalled for long


class DeltaGate(Gate):
    """Of deltas; notes the path of the first request."""

    path = None

    def is_of_files(self, first):
        if b"/delta?" not in first:
            return False
        self.path = self.path or first.split()[1].decode()
        return True

    def cut(self):
        """All connections for deltas end, and so does each that follows."""
        with self.changed:
            self.over = True
            self.changed.notify_all()


def test_record_while_it_arrives():
    "a delta's record is passed on while it comes, all but its last byte, and is whole when it is"
    agent, folder = published()
    gate = DeltaGate(agent.url, 0)
    relay = Relay(gate.url, f"streams=1,{DELTAS}")
    relay.wait_version("actor", 1)
    relay.write("pull 1", "actor/ctl")
    newer = step(folder, 2, share=0.3)
    agent.publish("actor", 2, newer)
    relay.wait_version("actor", 2)
    relay.write("pull 2 async", "actor/ctl")
    wait_for(lambda: gate.path, "the relay to ask for the delta")

    def is_offered():
        gate.let(1)  # what is silent for seconds is given up
        return raw(relay.url, gate.path.replace("/delta?", "/deltas?"))[0] == 200
    wait_for(is_offered, "the relay's delta")
    client = http.client.HTTPConnection("127.0.0.1", relay.port, timeout=30 * SLOW)
    client.request("GET", gate.path)
    gate.let(100000)  # the head of the response with it
    reply = client.getresponse()
    assert reply.status == 200, reply.read()
    came = reply.read(200)

    def trickle():  # the relay tells of what comes every few milliseconds, and of several pieces at once where it was held up
        for _ in range(100):
            time.sleep(0.02)
            gate.let(1300)
    threading.Thread(target=trickle, daemon=True).start()
    came += reply.read(150000 - len(came))
    record = struct.unpack_from("<I", came, 200 + 20)[0]
    assert len(came) == 150000 and record > 250000, (len(came), record)
    gate.open()
    assert came + reply.read() == raw(agent.url, gate.path)[2]
    assert same(relay, newer, 2)


def test_record_whose_source_fails():
    "a mount that passes a record on and loses its own source says so: the delta comes from the next source"
    agent, folder = published()
    gate = DeltaGate(agent.url, 0)
    relay = Relay(gate.url, f"streams=1,{DELTAS}")
    leaf = leaf_of(relay.url, options=f"streams=1,{DELTAS}")
    assert same(leaf, folder)
    newer = step(folder, 2, share=0.3)
    agent.publish("actor", 2, newer)
    leaf.wait_version("actor", 2)
    before = sent(relay, "relay")
    relay.write("pull 2 async", "actor/ctl")
    wait_for(lambda: gate.path, "the relay to ask for the delta")
    gate.let(20000)
    leaf.write("pull 2 async", "actor/ctl")

    def is_passed_on():
        gate.let(5000)
        return sent(relay, "relay") > before + 1000
    wait_for(is_passed_on, "a part of a record at the leaf")
    leaf.write(f"add actor {agent.url}", "ctl")
    wait_for(lambda: f"source {agent.url} up" in leaf.text("status"), "the second source")
    gate.cut()
    wait_for(lambda: state(leaf, 2) == "ready", "the delta")
    assert 'delta from 1' in leaf.text("actor/status"), leaf.text("actor/status")
    assert same(leaf, newer, 2)


def test_reader_goes_first():
    "blocks that a reader waits for are fetched first"
    agent, folder = published()
    gate = Gate(agent.url, 0)
    relay = Relay(gate.url, "streams=1")
    leaf = leaf_of(relay.url, options="open=stream,streams=1")
    end = file_size(leaf)
    got = []
    with open(leaf.file("actor/1/model.safetensors"), "rb") as f:
        reader = threading.Thread(target=lambda: got.append(os.pread(f.fileno(), 1000, end - 1000)))
        reader.start()
        time.sleep(0.3)  # it waits
        with gate.changed:
            gate.left += BLOCK * 3
            gate.changed.notify_all()
        reader.join(60 * SLOW)
        here = progress(relay)
        gate.open()
        reader.join()
    assert got[0] == leaf.read("actor/1/model.safetensors")[-1000:] and same(leaf, folder)
    print(f"# the last block was here with {here} of {size_of(leaf)} bytes", flush=True)
    assert here < size_of(leaf)


def test_tree():
    "an agent, a mount that serves, three leaves at once: the agent sends one version"
    agent, folder = published()
    relay = Relay(agent.url)
    leaves = [leaf_of(relay.url) for _ in range(3)]
    threads = [threading.Thread(target=lambda l=l: l.read("actor/1/model.safetensors")) for l in leaves]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(same(l, folder) for l in leaves)
    size = size_of(leaves[0])
    assert sent(agent) == size and sent(relay, "relay") == 3 * size, (sent(agent), sent(relay, "relay"), size)
    # On the trainer's host the mount shares the trainer's own memory and copies no byte.
    near = Relay(f"unix:{agent.sock}")
    assert same(leaf_of(near.url), folder)
    assert 'how="ipc"' in near.text("actor/status") and sent(agent) == size


def test_wrong_bytes():
    "a mount that sends wrong bytes is caught at the block; with a second source the leaf gets the right ones"
    agent, folder = published()
    relay = Relay(agent.url)
    leaf = Mount(f"unix:{unique('nobody')}.sock")
    leaf.write(f"add actor fault:flip=100:{relay.url}", "ctl")
    leaf.wait_version("actor", 1)
    assert error_of(lambda: leaf.read("actor/1/model.safetensors")) == "EBADMSG"
    assert "not the manifest's" in leaf.text("actor/last_error"), leaf.text("actor/last_error")
    leaf.write(f"add actor {agent.url}", "ctl")
    wait_for(lambda: error_of(lambda: leaf.read("actor/1/model.safetensors")) is None, "the other source")
    assert same(leaf, folder) and int(leaf.status()["bad_blocks"]) > 0


def test_invented_manifest():
    "a source with an invented manifest contradicts the agent: neither is read, and both are named"
    agent, folder = published()
    run = agent.get("/v1/models")["models"][0]["run"]
    other = Agent()
    other.publish("actor", 1, checkpoint(LARGE, seed=99), "--run", run)
    relay = Relay(other.url)
    leaf = leaf_of(relay.url, agent.url)
    wait_for(lambda: leaf.text("status").count(" up transport=") == 2, "both to be heard")  # a single source is believed
    assert error_of(lambda: leaf.read("actor/1/model.safetensors")) == "EBADMSG"
    pulled = wsync("pull", "--mount", leaf.path, "actor", "1", check=False)
    for said in (leaf.text("actor/status"), pulled.stderr, leaf.text("actor/last_error")):
        assert "disagree" in said and relay.url in said and agent.url in said, said
    assert "EBADMSG" in leaf.text("actor/last_error") and relay.get("/v1/models")["models"]
    # What was read before the contradiction stays, and is marked.
    early = leaf_of(relay.url)
    early.read("actor/1/model.safetensors")
    early.write(f"add actor {agent.url}", "ctl")
    wait_for(lambda: "disagree" in early.text("actor/status"), "the contradiction")
    agent.publish("actor", 2, folder)
    leaf.wait_version("actor", 2)
    assert same(leaf, folder, 2)


def test_killed():
    "a mount dies during a pull: the leaf continues with its second source, or fails, says why, and continues later"
    agent, folder = published()
    gate = Gate(agent.url, 10 << 20)
    port = free_port()
    relay = Relay(gate.url, "streams=2", port=port)
    two = leaf_of(relay.url, agent.url, options="streams=2")
    one = leaf_of(relay.url, options="streams=2,deadline=3")
    for leaf in (two, one):
        leaf.write("pull 1 async", "actor/ctl")
    wait_for(lambda: progress(two) >= BLOCK and progress(one) >= BLOCK, "a block at both", 60)
    relay.kill()
    assert same(two, folder)
    wait_for(lambda: state(one) == "failed", "the end of its patience", 60)
    said = wait_for(lambda: one.text("actor/last_error"), "its reason, which is told a moment after", 60)
    assert "EHOSTUNREACH" in said or "ETIMEDOUT" in said, said
    assert relay.url.split("//")[1] in said or "connect" in said, said
    gate.open()
    Relay(gate.url, port=port, path=relay.path)
    wait_for(lambda: error_of(lambda: one.read("actor/1/model.safetensors")) is None, "the relay's return")
    assert same(one, folder)


def test_drips():
    "a lane whose source sends next to nothing while others are fast returns its extent, and the version is complete"
    agent, folder = published()
    drip = Drip(agent.url)
    leaf = Mount(f"{drip.url},{agent.url}", "streams=4")
    leaf.wait_version("actor", 1, sources=2)
    leaf.write("pull 1", "actor/ctl")
    assert drip.dripping and same(leaf, folder)
    assert "is much slower than others" in leaf.text() and drip.url in leaf.text(), leaf.text()


def test_distance():
    "a lane whose first bytes take long does not count as slow while there is other work: its source stays in use"
    agent, folder = published()
    distant, near = Distant(agent.url), Gate(agent.url, 13 << 20)  # three extents of other lanes, and part of a fourth
    leaf = Mount(f"{distant.url},{near.url}", "streams=2")
    leaf.wait_version("actor", 1, sources=2)
    pulling = threading.Thread(target=leaf.write, args=("pull 1", "actor/ctl"))
    pulling.start()
    wait_for(lambda: near.left == 0, "the blocks of the near source", 60)
    assert distant.holds
    distant.open()
    near.end()
    pulling.join()
    assert same(leaf, folder)
    assert "is much slower than others" not in leaf.text(), leaf.text()


def test_follow():
    "a mount that follows another mount acts on releases, not on publishes"
    agent, folder = published()
    agent.ask("/v1/actor/1/release")
    relay = Relay(agent.url)
    leaf = leaf_of(relay.url)
    engine = Engine(folder)
    leaf.write(f"engine add e sglang {engine.url}", "actor/ctl")
    leaf.write("follow", "actor/policy")
    wait_for(lambda: leaf.text("actor/version") == "1\n", "version 1")
    agent.publish("actor", 2, checkpoint(LARGE, seed=2))
    leaf.wait_version("actor", 2)
    time.sleep(1)
    assert engine.serves() == "1" and leaf.text("actor/version") == "1\n"
    agent.ask("/v1/actor/2/release")
    wait_for(lambda: engine.serves() == "2", "version 2", 30)
    assert "did not take a report" not in leaf.text(), leaf.text()


def test_rings():
    "mounts that have each other, or themselves, as sources serve, forget and end like others"
    agent, folder = published()
    ports = [free_port() for _ in range(3)]
    url = lambda i: f"http://127.0.0.1:{ports[i]}"
    ring = [Relay(",".join([url((i + 2) % 3), url(i)] + ([agent.url] if i == 0 else [])), port=ports[i],
                  options=f"deadline={5 * SLOW}") for i in range(3)]
    for mount in ring:
        mount.wait_version("actor", 1)
    via = lambda: [len(r.get("/v1/models")["models"][0]["versions"][0]["via"]) for r in ring]
    wait_for(lambda: via() == [1, 2, 3], "what is settled", 60)
    before = [r.get("/v1/models")["seq"] for r in ring]
    time.sleep(1)
    assert before == [r.get("/v1/models")["seq"] for r in ring] and via() == [1, 2, 3]
    assert same(ring[2], folder)
    assert all(state(r) == "ready" for r in ring)
    # No mount holds version 2 when the agent forgets it: the ring forgets it too.
    for v in (2, 3):
        agent.publish("actor", v, checkpoint(LARGE, seed=v))
        for mount in ring:
            mount.wait_version("actor", v)
    agent.publish("actor", 4, checkpoint(LARGE, seed=4))
    listed = lambda r: [v["version"] for v in r.get("/v1/models")["models"][0]["versions"]]
    wait_for(lambda: all(listed(r) == [1, 3, 4] for r in ring), f"version 2 to be forgotten: {[listed(r) for r in ring]}")
    agent.kill()
    start = time.monotonic()
    assert error_of(lambda: ring[1].read("actor/4/model.safetensors")) in ("EHOSTUNREACH", "ETIMEDOUT", "ESTALE")
    assert time.monotonic() - start < 60 * SLOW
    assert same(ring[1], folder)


def left(relay):
    return relay.text().count("a ring of ")


def test_waiting_rings():
    "of two or three mounts with each other as first source one leaves the ring at once; nothing waits for a time-out"
    agent, folder = published()
    for n, at_once in ((2, False), (3, False), (2, True), (3, True)):
        ports = [free_port() for _ in range(n)]
        ring = [Relay(f"http://127.0.0.1:{ports[(i + 1) % n]},{agent.url}", port=ports[i]) for i in range(n)]
        for mount in ring:
            mount.wait_version("actor", 1, sources=2)
        for mount in ring if at_once else ():
            mount.write("pull 1 async", "actor/ctl")
        for mount in ring:  # the first mount's pull makes all others pull
            mount.write("pull 1", "actor/ctl")
            assert same(mount, folder) and mount.status()["retries"] == "0", mount.text("status")
        line = f"a ring of {n} mounts that wait for each other is left model=actor version=1"
        assert at_once or line in "".join(m.text() for m in ring), [m.text() for m in ring]
        assert all("waits" not in r.get("/v1/models")["models"][0]["versions"][0] for r in ring)


def test_dead_rings():
    "mounts with each other and an ended agent as sources: their pulls fail, and no mount keeps waiting in the ring"
    for n in (2, 3):
        agent, _ = published()
        ports = [free_port() for _ in range(n)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        ring = [Relay(",".join(urls[i + 1:] + urls[:i] + [agent.url]), f"deadline={SLOW}", port=ports[i]) for i in range(n)]
        for mount in ring:
            mount.wait_version("actor", 1, sources=n)
        agent.kill()
        for mount in ring:
            wait_for(lambda: f"source does not answer, retrying url={agent.url}" in mount.text(), "the agent's end", 60)
        for mount in ring:
            mount.write("pull 1 async", "actor/ctl")
        for mount in ring:
            wait_for(lambda: "command=\"pull 1 async\" why=" in mount.text("actor/events"), "the pull to fail", 60)
        assert n > 2 or not any(map(left, ring)), "there was nobody to go to"
        seconds = re.search(r'how="" seconds=([0-9.]+)', ring[0].text("actor/events"))
        assert float(seconds[1]) < 100 * SLOW, seconds[0]


def test_waiting_chain():
    "a chain of waiting mounts reports that it waits, is not taken for a ring, and no mount leaves it"
    agent, folder = published()
    gate = Gate(agent.url, 0)
    chain = [Relay(gate.url)]
    for _ in range(2):
        chain.append(Relay(f"{chain[-1].url},{gate.url}"))
        chain[-1].wait_version("actor", 1, sources=2)

    def waits(relay):
        return relay.get("/v1/models")["models"][0]["versions"][0].get("waits")

    chain[2].write("pull 1 async", "actor/ctl")
    wait_for(lambda: len(waits(chain[2]) or []) == 2 and waits(chain[2])[1:] == waits(chain[1]), "all to wait", 60)
    assert waits(chain[0]) is None
    gate.open()
    chain[2].write("pull 1", "actor/ctl")
    assert same(chain[2], folder) and not any(map(left, chain))


def test_eviction():
    "a slow reader does not hold memory that the cache needs: its connection is closed"
    agent, _ = published()
    agent.publish("actor", 2, checkpoint(LARGE, seed=2))
    relay = Relay(agent.url, "cache=30M,keep=1")
    relay.wait_version("actor", 1)
    relay.read("actor/1/model.safetensors")
    run = relay.get("/v1/models")["models"][0]["run"]
    with socket.create_connection(("127.0.0.1", relay.port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.sendall(f"GET /v1/actor/1/files/model.safetensors?run={run} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
        start = time.monotonic()
        wsync("pull", "--mount", relay.path, "actor", "2")
        print(f"# the memory was there after {time.monotonic() - start:.2f} s", flush=True)
        got = 0
        slow.settimeout(30 * SLOW)
        with contextlib.suppress(ConnectionError):
            while data := slow.recv(1 << 20):
                got += len(data)
        assert got < size_of(relay, 2), got
    leaf = Mount(relay.url)
    leaf.wait_version("actor", 2)
    assert same(leaf, checkpoint(LARGE, seed=2), 2)


def test_end():
    "a mount that serves ends at once while others wait for bytes that it does not have"
    agent, _ = published()
    gate = Gate(agent.url, 6 << 20)
    relay = Relay(gate.url)
    leaf = leaf_of(relay.url, options="open=stream")
    leaf.write("pull 1 async", "actor/ctl")
    wait_for(lambda: gate.left <= 0, "requests", 60)  # over several streams these bytes need not form a whole block
    time.sleep(0.5)
    start = time.monotonic()
    relay.end()
    assert time.monotonic() - start < 10 * SLOW


def test_guards():
    "tokens and TLS as for the agent: required beyond loopback; the sources' token unless another one is set"
    need_fuse()
    path = unique("m")
    os.makedirs(path)
    r = wsync("mount", "-f", "--serve", f"0.0.0.0:{free_port()}", "http://127.0.0.1:1", path, check=False)
    assert r.returncode == 1 and "beyond loopback" in r.stderr, r.stderr
    token, other = unique("token"), unique("token")
    for file, word in ((token, "secret"), (other, "another")):
        with open(file, "w") as f:
            f.write(word + "\n")
    agent, folder = published("--token-file", token)
    relay = Relay(agent.url, f"token-file={token}")
    assert raw(relay.url, "/v1/models")[0] == 401
    assert raw(relay.url, "/healthz")[0] == 200
    assert raw(relay.url, "/v1/models", Authorization="Bearer secret")[0] == 200
    authority = Authority()
    cert, key = authority.certificate()
    safe = Relay(relay.url, f"token-file={token},serve-token-file={other},serve-cert={cert},serve-key={key}")
    leaf = leaf_of(safe.url.replace("http:", "https:"), options=f"token-file={other},ca-file={authority.file}")
    assert same(leaf, folder)


def test_headers():
    "paths that name a lineage are immutable for caches, others are revalidated, and a known tag is answered with 304"
    agent, folder = published()
    relay = Relay(agent.url)
    relay.wait_version("actor", 1)
    run = agent.get("/v1/models")["models"][0]["run"]
    for server in (agent, relay):
        for path in ("/v1/actor/1/manifest", "/v1/actor/1/files/config.json"):
            status, headers, body = raw(server.url, f"{path}?run={run}")
            assert status == 200 and headers["Cache-Control"] == "public, max-age=31536000, immutable", headers
            tag = headers["ETag"]
            for known in (tag, f'"x", W/{tag}', "*"):
                status, headers, none = raw(server.url, f"{path}?run={run}", If_None_Match=known)
                assert (status, none) == (304, b"") and headers["ETag"] == tag and "immutable" in headers["Cache-Control"]
            assert raw(server.url, f"{path}?run={run}", If_None_Match='"x"')[0] == 200
            status, headers, again = raw(server.url, path)
            assert (status, headers["Cache-Control"], headers["ETag"], again) == (200, "no-cache", tag, body)
        file = f"/v1/actor/1/files/model.safetensors?run={run}"
        whole = raw(server.url, file)[2]
        status, headers, part = raw(server.url, file, Range="bytes=100-299")
        assert status == 206 and part == whole[100:300] and headers["Content-Range"] == f"bytes 100-299/{len(whole)}"
        tag = headers["ETag"]
        assert raw(server.url, file, Range="bytes=100-299", If_Range=tag)[2] == part
        assert len(raw(server.url, file, Range="bytes=100-299", If_Range='"x"')[2]) == len(whole)
        for path, want in (("/v1/models", 200), ("/v1/actor/9/manifest", 404), ("/v1/actor/1/files/none", 404), ("/v1/x/1/manifest", 404)):
            status, headers, _ = raw(server.url, path)
            assert (status, headers["Cache-Control"]) == (want, "no-store"), (path, status, headers)


CACHE = "    proxy_cache_path %(dir)s/cache keys_zone=wsync:10m max_size=2g inactive=1d use_temp_path=off;"
CACHED = """
        if ($http_authorization != "Bearer secret") { return 401; }  # what is in the cache the agent is not asked about
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_read_timeout 150s;                                     # long polls
        location / { proxy_pass AGENT; }
        location ~ ^/v1/[^/]+/[0-9]+/(manifest$|files/) {
            slice 4m;
            proxy_set_header Range $slice_range;
            proxy_cache wsync;
            proxy_cache_key $request_uri$slice_range;
            proxy_cache_lock on;
            proxy_hide_header X-Wsync-XXH3;                          # of the first slice alone
            proxy_pass AGENT;
        }
        location ~ ^/v1/[^/]+/[0-9]+/delta$ {                        # kept once it is whole
            proxy_cache wsync;
            proxy_cache_key $request_uri;
            proxy_pass AGENT;
        }
"""


def test_nginx():
    "nginx between agent and mounts: the second mount costs the agent no byte of a file; a token is still required"
    token = unique("token")
    with open(token, "w") as f:
        f.write("secret\n")
    agent, folder = published("--token-file", token)
    bearer = {"Authorization": "Bearer secret"}
    figure = lambda: int(re.search(r"wsync_agent_sent_bytes_total (\d+)", raw(agent.url, "/metrics", **bearer)[2].decode()).group(1))
    server = Nginx(CACHED.replace("AGENT", agent.url), CACHE)
    url = server.url
    first = leaf_of(url, options=f"token-file={token}")
    assert same(first, folder)

    def figure_at_rest():
        "nginx goes on to fetch a slice for its cache when the mount has taken the request back"
        before = figure()
        time.sleep(1)
        return figure() == before and before

    cost = wait_for(figure_at_rest, "the end of what nginx fetches")
    assert size_of(first) <= cost <= 2 * size_of(first), (cost, size_of(first))  # a slice may be fetched twice
    second = leaf_of(url, options=f"token-file={token}")
    assert same(second, folder)
    log = server.text("access.log")
    assert log.count("/files/") >= 2 and figure() == cost, (cost, figure(), log)
    run = json.loads(second.read("actor/1/.wsync/manifest.json"))["run"]
    for path in (f"/v1/actor/1/manifest?run={run}", f"/v1/actor/1/files/config.json?run={run}", "/v1/models"):
        assert raw(url, path)[0] == 401 and raw(url, path, **bearer)[0] == 200, path
    served = raw(url, f"/v1/actor/1/files/model.safetensors?run={run}", Range=f"bytes={BLOCK - 10}-{2 * BLOCK + 9}", **bearer)
    assert served[0] == 206 and served[2] == second.read("actor/1/model.safetensors")[BLOCK - 10 : 2 * BLOCK + 10]
    assert figure() == cost
    agent.publish("actor", 2, checkpoint(LARGE, seed=2))  # polls pass through
    second.wait_version("actor", 2)
    assert same(second, checkpoint(LARGE, seed=2), 2)
    first.write("pull 2", "actor/ctl")
    third = step(checkpoint(LARGE, seed=2), 3)
    agent.publish("actor", 3, third)
    deltas = lambda: json.loads(raw(agent.url, "/v1/actor/3/deltas", **bearer)[2])["deltas"]
    wait_for(lambda: deltas()[0]["state"] == "whole", "the delta")
    costs = [figure()]
    for mount in (first, second):
        mount.wait_version("actor", 3)
        mount.write("pull 3", "actor/ctl")
        assert same(mount, third, 3)
        costs.append(figure())
    how = [next(line for line in m.text("actor/status").splitlines() if line.startswith("version.3 ")) for m in (first, second)]
    if all("delta from 2" in line or "chain" in line for line in how):  # the source is chosen by measured speed
        assert 0 < costs[1] - costs[0] < 500000 and costs[2] == costs[1], (costs, how)
