# beside others
# timeout: 600
# takes: 75
# sanitizers: address
"""What clients without an identity, and slow ones, cost an agent: little memory, and no time of the clients that are known."""
import contextlib
import re
import resource
import select
import ssl
import threading

from certificates import Authority
from ranks import rss
from world import *

TOKEN = "a-token-for-tests"
KNOWN = f"Host: x\r\nAuthorization: Bearer {TOKEN}\r\n"
ASK = f"GET /v1/models HTTP/1.1\r\n{KNOWN}\r\n".encode()
MOST_BYTES = 32 << 20
MOST_SECONDS = 1 if not SANITIZER else 20
FOLLOWERS = 2000 if not SANITIZER else 200


def token_file():
    with open(path := unique("token"), "w") as f:
        f.write(TOKEN)
    os.chmod(path, 0o600)
    return path


def agent_with_token(*more):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return Agent("--token-file", token_file(), *more)


def connected(port, data=b""):
    s = entered(socket.create_connection(("127.0.0.1", port), timeout=60 * SLOW))
    with contextlib.suppress(OSError):
        s.sendall(data)
    return s


def answer(s):
    """The status of the next answer, whose body is read, too."""
    got = b""
    while b"\r\n\r\n" not in got:
        if not (more := s.recv(1)):
            return 0
        got += more
    length = int(re.search(rb"(?i)content-length: (\d+)", got)[1])
    while length:
        length -= len(s.recv(length))
    return int(got.split()[1])


def poll(agent):
    """The request of one who waits for news."""
    request = urllib.request.Request(agent.url + "/v1/models", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=60 * SLOW) as r:
        seq = json.load(r)["seq"]
    return f"GET /v1/events?since={seq}&timeout_ms=600000 HTTP/1.1\r\n{KNOWN}\r\n".encode()


def is_ended(s):
    """The server has ended it: it was reset, or what is there ends."""
    s.settimeout(0)
    try:
        while True:
            if not s.recv(1 << 16):
                return True
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        s.settimeout(60 * SLOW)


def number(agent, name):
    request = urllib.request.Request(agent.url + "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=60 * SLOW) as r:
        return int(re.search(rf"^{re.escape(name)} (\d+)$", r.read().decode(), re.M)[1])


def metric(agent, reason):
    return number(agent, f'wsync_agent_ended_total{{reason="{reason}"}}')


class Watch:
    """While it runs, a known client that stays connected and one that connects anew ask an agent again and again; what the agent's
    memory grows by, and the longest time to an answer, are what an attack costs."""

    def __init__(self, agent):
        self.agent, self.before, self.grown, self.longest, self.n, self.failed = agent, rss(agent.pid), 0, 0, 0, []
        self.kept, self.stop = connected(agent.port, ASK), threading.Event()
        assert answer(self.kept) == 200
        self.thread = threading.Thread(target=self.work)

    def ask(self, s):
        began = time.monotonic()
        try:
            if not s:
                with socket.create_connection(("127.0.0.1", self.agent.port), timeout=60 * SLOW) as s:
                    s.sendall(ASK)
                    status = answer(s)
            else:
                s.sendall(ASK)
                status = answer(s)
        except OSError as e:
            status = e
        if status != 200:
            self.failed.append(("kept" if s is self.kept else "new", status))
        self.longest = max(self.longest, time.monotonic() - began)
        self.n += 1

    def work(self):
        while not self.stop.wait(0.02):
            self.ask(self.kept)
            self.ask(None)
            self.grown = max(self.grown, rss(self.agent.pid) - self.before)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.stop.set()
        self.thread.join()
        print(f"memory grew by {self.grown / (1 << 20):.1f} MiB, the longest of {self.n} answers took {self.longest:.3f} s, failed {self.failed[:3]}")
        if not error[0]:
            assert not self.failed and self.n >= 4, (self.n, self.failed)
            assert SANITIZER or self.grown < MOST_BYTES, self.grown
            assert self.longest < MOST_SECONDS * 5, self.longest  # on a busy machine; the figure alone is under MOST_SECONDS


def test_bodies_without_an_identity():
    "what clients without a token send after a head is not taken"
    agent = agent_with_token()
    with Watch(agent):
        senders = [connected(agent.port, head.encode()) for head in
                   ("POST /v1/actor/mounts HTTP/1.1\r\nHost: x\r\nContent-Length: 65011712\r\n\r\n",
                    "POST /v1/actor/node HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
                    "GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
                    "POST /v1/actor/mounts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\nContent-Length: 65011712\r\n\r\n")]
        for _ in range(62):
            for s in senders:
                with contextlib.suppress(OSError):
                    s.sendall(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
        wait_for(lambda: all(map(is_ended, senders)), "the server to end them")


def test_half_sent_requests():
    "4,200 half-sent requests leave room, and are ended after 5 s"
    agent = agent_with_token()
    with Watch(agent):
        half = [connected(agent.port, b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 2000) for _ in range(4200 if not SANITIZER else 1000)]
        wait_for(lambda: all(map(is_ended, half)), "the server to end them", 30)
    assert metric(agent, "room") + metric(agent, "address") + metric(agent, "head") == len(half)


@pytest.mark.parametrize("asked_before, share", [(False, 1), (True, 4)])
def test_memory_of_followers(asked_before, share):
    "2,000 who wait for events cost so little that 4,200 of them have room in 32 MiB, or in four times that once each has asked before"
    agent = agent_with_token()
    before, n_before, asks = rss(agent.pid), number(agent, "wsync_agent_requests_total"), poll(agent)
    followers = [connected(agent.port, ASK if asked_before else asks) for _ in range(FOLLOWERS)]
    if asked_before:
        assert all(answer(s) == 200 for s in followers)
        for s in followers:
            s.sendall(asks)
    wait_for(lambda: number(agent, "wsync_agent_requests_total") >= n_before + FOLLOWERS * (1 + asked_before), "all requests")
    if not SANITIZER:  # a request is counted before it waits, and its connection has what it needed to read it until then
        wait_for(lambda: (rss(agent.pid) - before) / FOLLOWERS * 4200 < share * MOST_BYTES, "the followers to cost less", 8)
        assert not any(map(is_ended, followers[::100]))
    print(f"memory grew by {(rss(agent.pid) - before) / FOLLOWERS / 1024:.1f} KiB each")


def test_silent_connections():
    "connections that say nothing, or a byte a second, are ended after 5 s, and so is the head of a later request of a known client"
    agent = agent_with_token()
    silent, slow, later = connected(agent.port), connected(agent.port, b"G"), connected(agent.port, ASK)
    assert answer(later) == 200
    later.sendall(b"GET /v1/m")
    began = time.monotonic()
    with Watch(agent):
        while time.monotonic() - began < 60 * SLOW and not all(map(is_ended, (silent, slow, later))):
            with contextlib.suppress(OSError):
                slow.sendall(b"E")
            time.sleep(1)
    assert all(map(is_ended, (silent, slow, later)))
    assert time.monotonic() - began > 4
    assert metric(agent, "head") == 3


def test_slow_handshakes():
    "TLS handshakes that do not end are ended, and cost little memory"
    authority = Authority()
    cert, key = authority.certificate()
    agent = Process("agent", "--listen", "127.0.0.1:0", "--socket", unique("tls") + ".sock", "--tls-cert", cert, "--tls-key", key,
                    "--token-file", token_file())
    wait_for(lambda: "serving" in agent.text() or not agent.alive(), "the TLS agent")
    port = int(re.search(r"port=([0-9]+)", agent.text())[1])
    hello = client_hello()
    before = rss(agent.pid)
    shaking = [connected(port, data) for data in (b"", hello[:40], hello) for _ in range(300 if not SANITIZER else 50)]
    grown = 0
    end = time.monotonic() + 30 * SLOW
    while not all(map(is_ended, shaking)):
        assert time.monotonic() < end, "the server did not end them"
        grown = max(grown, rss(agent.pid) - before)
        time.sleep(0.1)
    print(f"memory grew by {grown / (1 << 20):.1f} MiB")
    assert SANITIZER or grown < MOST_BYTES, grown


def client_hello():
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(into, out, server_hostname="localhost").do_handshake()
    return out.read()


def test_heads():
    "huge, invalid and pipelined heads cost little, and leave the agent as it was"
    agent = agent_with_token()
    with Watch(agent):
        for data in (b"GET /" + b"x" * (1 << 20), b"\x00" * 100000, b"GET / HTTP/9.9\r\n\r\n", b"X: " + b"y" * 40000 + b"\r\n", b"\r\n" * 50000,
                     b"GET /v1/models HTTP/1.1\r\n" + b"A: b\r\n" * 20000 + b"\r\n", b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                     b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
                     b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"):
            for _ in range(20):
                connected(agent.port, data)
        piped = connected(agent.port, ASK * 200)
        assert [answer(piped) for _ in range(200)] == [200] * 200
        unread = [connected(agent.port) for _ in range(8)]
        for s in unread:  # answers that are not read are made one after the other
            s.settimeout(0.5)
            with contextlib.suppress(OSError):
                s.sendall(ASK * 20000)



def test_two_lengths():
    "a request with two lengths of its body ends its connection: a proxy in front might take the other one for the right one"
    agent = Agent()
    for heads in ("Content-Length: 2\r\nContent-Length: 30", "Content-Length: 2\r\ncontent-length: 2", "Content-Length: 30\r\nTransfer-Encoding: chunked"):
        with socket.create_connection(("127.0.0.1", agent.port), 20 * SLOW) as s:
            s.sendall(f"POST /v1/actor/mounts HTTP/1.1\r\nHost: x\r\n{heads}\r\n\r\n{{}}GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            with contextlib.suppress(ConnectionResetError):
                assert s.recv(4096) == b"", heads

def test_followers():
    "2,000 known clients wait for events while strangers from the same address fill what they may, and new known ones come in"
    agent = agent_with_token()
    asks = poll(agent)
    followers = [connected(agent.port, asks) for _ in range(FOLLOWERS)]
    wait_for(lambda: number(agent, "wsync_agent_connections") >= FOLLOWERS, "the followers")
    with Watch(agent):
        strangers = [connected(agent.port, b"GET /v1" if i % 2 else b"") for i in range(1500)]
        new = [connected(agent.port, asks) for _ in range(100)]
        wait_for(lambda: all(map(is_ended, strangers)), "the server to end the strangers", 30)
    assert not any(map(is_ended, followers + new))
    agent.publish("actor", 1, checkpoint(SMALL))
    assert [answer(s) for s in followers + new] == [200] * (FOLLOWERS + 100)


def test_slow_bodies_and_readers():
    """A body that comes too slowly, and an answer that is not read, are ended and counted, also of known clients; a slow but living
    reader, and a sender, are not"""
    agent = agent_with_token()
    agent.publish("actor", 1, checkpoint(SMALL | {"big": ("F32", [8 << 20])}))
    fetch = f"GET /v1/actor/1/files/model.safetensors HTTP/1.1\r\n{KNOWN}\r\n".encode()
    post = f"POST /v1/actor/mounts HTTP/1.1\r\n{KNOWN}Content-Length: 10000\r\n\r\n".encode()
    sender, waiting = connected(agent.port, post), connected(agent.port, poll(agent))
    reader = connected(agent.port, fetch)
    living = entered(socket.socket())
    living.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    living.connect(("127.0.0.1", agent.port))
    living.sendall(fetch)
    began, taken = time.monotonic(), 0
    with Watch(agent):
        while time.monotonic() - began < 40 or not metric(agent, "body") or not metric(agent, "reader"):
            assert time.monotonic() - began < 120 * SLOW, (metric(agent, "body"), metric(agent, "reader"))
            with contextlib.suppress(OSError):
                sender.sendall(b" ")
            if select.select([living], [], [], 0)[0]:
                assert (n := len(living.recv(4096))) > 0
                taken += n
            time.sleep(0.5)
    assert metric(agent, "body") == 1 and metric(agent, "reader") == 1
    assert is_ended(sender) and not is_ended(waiting) and time.monotonic() - began > 29
    while more := reader.recv(1 << 20) if not closed(reader) else b"":
        pass
    while (n := len(living.recv(1 << 20))) and taken < 32 << 20:
        taken += n
    assert taken >= 32 << 20, taken


def test_servers_where_nobody_has_an_identity():
    "silent, half-sent and idle connections keep no probe, receiver or control plane out of a mount's probes, AstraFlow's listener and an engine"
    need_fuse()
    flow, probes = free_port(), free_port()
    agent = Agent("--astraflow", f"127.0.0.1:{flow}")
    agent.publish("actor", 1, folder := checkpoint(SMALL))
    mount = Mount(agent.url, f"listen=127.0.0.1:{probes}")
    mount.wait_version("actor", 1)
    engine = Engine(folder)
    for port, path, n in ((probes, "/healthz", 600), (flow, "/get_version", 600), (engine.port, "/health", 80)):
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        for data in (b"", b"GET /hea", request, b"POST /request_transfer HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"):
            few, longest = [], 0
            for more in (min(64, n), n - 64):
                few += [connected(port, data) for _ in range(more)]
                for _ in range(3):
                    began = time.monotonic()
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60 * SLOW) as r:
                        assert r.status == 200
                    longest = max(longest, time.monotonic() - began)
            print(f"{path} with {len(few)} that sent {data[:12]}: {longest:.3f} s")
            assert longest < MOST_SECONDS * 5, (path, data, longest)
            for s in few:
                s.close()


def closed(s):
    try:
        return not s.recv(1, socket.MSG_PEEK)
    except OSError:
        return True
