# beside others
# timeout: 600
# takes: 40
# sanitizers: address
"""What a client with the role read alone, of one model, costs an agent and a serving mount, and what it learns: little memory, no place of
others, nothing of other models."""
import contextlib
import resource
import threading

from clients import Http
from ranks import rss
from world import *

MOST_BYTES = 32 << 20
READERS = 512 if not SANITIZER else 64
TENSORS = {f"layer.{i}": ("BF16", [1024, 1024]) for i in range(8)}


def world(*more, tensors=SMALL):
    """An agent with actor/1, and the tokens of a reader of actor, and of another client."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    file = unique("tokens")
    reader = wsync("token", "add", "reader", "--role", "read", "--model", "actor*", "--file", file).stdout.strip()
    other = wsync("token", "add", "other", "--role", "read,report", "--file", file).stdout.strip()
    agent = Agent("--tokens", file, *more)
    folder = checkpoint(tensors)
    agent.publish("actor", 1, folder)
    agent.tokens = file
    return agent, reader, other, folder


def asks(port, token, target, method="GET", more="", body=b""):
    """A connection that has asked, and takes little of an answer."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(60 * SLOW)
    s.connect(("127.0.0.1", port))
    at_end(s.close)
    with contextlib.suppress(OSError):  # it may be refused before it has sent all
        s.sendall(f"{method} {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{more}\r\n".encode() + body)
    return s


def trickle(sockets):
    """Takes a little of all of them each second, so that none is ended as too slow."""
    ends = threading.Event()

    def work():
        while not ends.wait(1):
            for s in list(sockets):
                with contextlib.suppress(OSError):
                    s.settimeout(0)
                    s.recv(2048)

    thread = threading.Thread(target=work)
    thread.start()
    at_end(thread.join)
    at_end(ends.set)


def poll(agent, token):
    seq = json.loads(Http(agent.url, token).ask("GET", "/v1/models")[1])["seq"]
    return f"/v1/events?since={seq}&timeout_ms=100000"


def test_large_bodies():
    "large bodies that clients send slowly share a limit, small ones go on, and a reader may send none"
    agent, reader, other, _ = world()
    refused = asks(agent.port, reader, "/v1/actor/1/broadcast", "POST", "Content-Length: 2\r\n", b"{}")
    assert refused.recv(12) == b"HTTP/1.1 403"
    before = rss(agent.pid)
    n = 1 << 20
    senders = [asks(agent.port, other, "/v1/actor/1/broadcast", "POST", f"Content-Length: {n}\r\n", b"[" + b" " * (n - 2)) for _ in range(48)]
    time.sleep(1)
    assert rss(agent.pid) - before < MOST_BYTES
    assert Http(agent.url, other).ask("POST", "/v1/actor/mounts", {"mount": "h:/m"})[0] == 200
    with contextlib.suppress(OSError):  # it may have been answered, and ended, by now
        senders[-1].sendall(b"]")
    assert senders[-1].recv(12) in (b"HTTP/1.1 503", b"")
    for s in senders:
        s.close()

    def is_answered():
        answer = asks(agent.port, other, "/v1/actor/1/broadcast", "POST", f"Content-Length: {n}\r\n", b"[" + b" " * (n - 2) + b"]").recv(12)
        return answer == b"HTTP/1.1 405"  # nothing is broadcast

    wait_for(is_answered, "room for large bodies")


def test_slow_readers_of_a_delta():
    "many slow readers of a delta have little memory each"
    agent, reader, _, folder = world(tensors=TENSORS)
    agent.publish("actor", 2, step(folder, 1, 0.2))
    delta = "/v1/actor/2/delta?base=1"
    wait_for(lambda: Http(agent.url, reader).ask("GET", delta)[0] == 200, "the delta")
    before = rss(agent.pid)
    readers = [asks(agent.port, reader, delta) for _ in range(READERS)]
    time.sleep(2)
    assert rss(agent.pid) - before < MOST_BYTES
    assert all(s.recv(12) == b"HTTP/1.1 200" for s in readers)


def test_dropped_deltas():
    "a delta that the agent's cache has dropped is kept for no slow reader"
    agent, reader, _, folder = world("--delta-cache", "8M", tensors=TENSORS)
    readers = []
    trickle(readers)
    for version in range(2, 4):
        folder = step(folder, version, 0.6)  # more than a socket's buffers take, and the cache has room for one
        agent.publish("actor", version, folder)
        delta = f"/v1/actor/{version}/delta?base={version - 1}"
        wait_for(lambda: f"delta whole model=actor base={version - 1}" in agent.text(), "the delta")
        readers.append(asks(agent.port, reader, delta))

    def is_cut(s):
        s.settimeout(0)
        try:
            while s.recv(1 << 16):
                pass
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    wait_for(lambda: all(is_cut(s) for s in readers[:1]), "the reader of the dropped delta to be cut")


def test_places():
    "an identity that takes all places loses some where others come"
    agent, reader, other, _ = world()
    target = poll(agent, reader)
    polls = [asks(agent.port, reader, target) for _ in range(4300)]
    began = time.monotonic()
    assert Http(agent.url, other).ask("GET", "/v1/models")[0] == 200
    assert time.monotonic() - began < 20 * SLOW  # without room it is never answered
    assert len(polls) == 4300


def test_revoked_while_it_waits():
    "a poll that waits is refused when its token has been taken away meanwhile"
    agent, reader, _, folder = world()
    s = asks(agent.port, reader, poll(agent, reader))
    wsync("token", "remove", "reader", "--file", agent.tokens)
    time.sleep(1.5)  # the file is looked at once a second
    agent.publish("actor", 2, step(folder, 1))
    assert s.recv(12) == b"HTTP/1.1 401"


def test_relay():
    "a serving mount tells a reader of some models nothing of all: by no path its metrics"
    need_fuse()
    agent, reader, other, _ = world()
    token = unique("token")
    with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
        f.write(other)
    port = free_port()
    mount = Mount(agent.url, f"serve=127.0.0.1:{port},serve-tokens={agent.tokens},token-file={token}")
    mount.wait_version("actor", 1)
    client = Http(f"http://127.0.0.1:{port}", reader)
    assert client.ask("GET", "/metrics")[0] == 403
    status, text = client.ask("GET", "/v1/actor/1/map")
    assert status == 405 and "wsync_relay" not in text, text
