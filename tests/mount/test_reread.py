# beside others
# timeout: 300
# takes: 30
# sanitizers: thread
"""Files that a running server reads again when they change: its certificate and key, the authorities of its clients, its tokens."""
import hashlib
import re
import shutil
import ssl
import threading

from certificates import Authority
from world import *

BIG = SMALL | {"big": ("F32", [4 << 20])}


def put(text, path):
    """As an operator does it: whole, under its name at once."""
    with open(path + ".new", "w") as f:
        f.write(text)
    os.replace(path + ".new", path)


def content(path):
    with open(path) as f:
        return f.read()


class Files:
    """The three files of a server, for one authority after the other."""

    def __init__(self):
        self.cert, self.key, self.ca = (unique(name) + ".pem" for name in ("server", "server-key", "clients"))

    def hold(self, authority, *trusted):
        cert, key = authority.certificate()
        put(content(cert), self.cert)
        put(content(key), self.key)
        put("".join(content(a.file) for a in trusted or (authority,)), self.ca)


def connected(port, authority, shown):
    context = ssl.create_default_context(cafile=authority.file)
    context.load_cert_chain(*shown)
    s = entered(socket.create_connection(("127.0.0.1", port), timeout=60 * SLOW))
    return entered(context.wrap_socket(s, server_hostname="localhost"))


def send(s, target, *headers):
    s.sendall("\r\n".join((f"GET {target} HTTP/1.1", "Host: x", *headers, "", "")).encode())


def answer(s):
    """Status and body of the next answer."""
    got = b""
    while b"\r\n\r\n" not in got:
        more = s.recv(1 << 16)
        assert more, got
        got += more
    head, body = got.split(b"\r\n\r\n", 1)
    length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
    while len(body) < length:
        more = s.recv(1 << 16)
        assert more, (len(body), length)
        body += more
    return int(head.split()[1]), body


def ask(s, target, *headers):
    send(s, target, *headers)
    return answer(s)


def shows(port, server):
    """Does a new connection see a certificate of this authority?"""
    context = ssl.create_default_context(cafile=server.file)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20 * SLOW) as s, context.wrap_socket(s, server_hostname="localhost"):
            return True
    except ssl.SSLCertVerificationError:
        return False


def test_certificates_under_load():
    """A new certificate, key and list of authorities count for new connections; long polls, half-read files and pulls of before go on with
    what they began with"""
    one, two, files = Authority(), Authority(), Files()
    mine, theirs = one.certificate(), two.certificate()
    files.hold(one)
    agent = Process("agent", "--listen", "127.0.0.1:0", "--socket", sock := unique("tls") + ".sock", "--tls-cert", files.cert,
                    "--tls-key", files.key, "--tls-client-ca", files.ca)
    wait_for(lambda: "serving" in agent.text() or not agent.alive(), "the agent")
    port = int(re.search(r"port=([0-9]+)", agent.text())[1])
    wsync("publish", "--agent", f"unix:{sock}", "-m", "actor", "-v", "1", checkpoint(BIG))
    kept = connected(port, one, mine)
    want = ask(kept, "/v1/actor/1/files/model.safetensors")[1]
    seq = json.loads(ask(kept, "/v1/models")[1])["seq"]
    polls = [connected(port, one, mine) for _ in range(30)]
    for s in polls:
        send(s, f"/v1/events?since={seq}&timeout_ms=600000")
    half = [connected(port, one, mine) for _ in range(3)]
    for s in half:
        send(s, "/v1/actor/1/files/model.safetensors")
        s.recv(1)  # the rest is on its way
    stop, failed = threading.Event(), []

    def pull():
        s = connected(port, one, mine)
        while not stop.is_set():
            try:
                status, body = ask(s, "/v1/actor/1/files/model.safetensors")
                if status != 200 or body != want:
                    failed.append(status)
            except OSError as e:
                failed.append(e)
                return

    pulling = threading.Thread(target=pull)
    pulling.start()
    try:
        for turn in range(6):
            new, old = (two, one) if turn % 2 == 0 else (one, two)
            files.hold(new, one, two)
            wait_for(lambda: shows(port, new), "the new certificate")
            assert not shows(port, old) and ask(kept, "/v1/models")[0] == 200
        files.hold(two)
        wait_for(lambda: shows(port, two), "the new certificate")
        wait_for(lambda: ask(connected(port, two, theirs), "/v1/models")[0] == 200, "the new authority")
        wait_for(lambda: ask(connected(port, two, mine), "/v1/models")[0] == 401, "the old authority to count no more")
        time.sleep(0.5)
    finally:
        stop.set()
        pulling.join()
    assert not failed, failed
    for s in half:
        got = 1
        while got < len(want):
            assert (n := len(s.recv(1 << 20))) > 0
            got += n
    wsync("publish", "--agent", f"unix:{sock}", "-m", "actor", "-v", "2", checkpoint(SMALL))
    assert [answer(s)[0] for s in polls] == [200] * len(polls)
    assert agent.text().count("TLS files read again") >= 7, agent.text()


def test_half_written_certificates():
    "a file that is half written, or a certificate without its key, leaves what was read before; the log names it, and the whole one counts"
    one, two, files = Authority(), Authority(), Files()
    mine = one.certificate()
    files.hold(one)
    agent = Process("agent", "--listen", "127.0.0.1:0", "--socket", unique("tls") + ".sock", "--tls-cert", files.cert,
                    "--tls-key", files.key, "--tls-client-ca", files.ca)
    wait_for(lambda: "serving" in agent.text() or not agent.alive(), "the agent")
    port = int(re.search(r"port=([0-9]+)", agent.text())[1])
    before = {path: content(path) for path in (files.cert, files.key, files.ca)}
    cert, key = two.certificate()
    broken = [(files.cert, content(cert)[:300]), (files.cert, content(cert)), (files.key, content(key)[:100]), (files.ca, content(two.file)[:200]),
              (files.ca, ""), (files.cert, "")]
    for n, (path, text) in enumerate(broken):
        put(text, path)
        wait_for(lambda: shows(port, one) and agent.text().count("TLS files of before hold on") > n, f"the broken file {n}")
        assert ask(connected(port, one, mine), "/v1/models")[0] == 200
        put(before[path], path)
        wait_for(lambda: shows(port, one) and agent.text().count("read again") > n, "the whole file")
    os.unlink(files.key)
    wait_for(lambda: shows(port, one) and "hold on" in agent.text().splitlines()[-1], "the file that is gone")
    assert ask(connected(port, one, mine), "/v1/models")[0] == 200
    files.hold(two, one)
    wait_for(lambda: shows(port, two), "the new certificate")


def test_tokens_on_a_connection_that_stays_open():
    "a token whose line is gone is refused within 2 s on a connection that stays open, and a new line's is served"
    def line(name, token):
        return f"{name} read blake2b:{hashlib.blake2b(token.encode(), digest_size=32).hexdigest()}\n"

    tokens = unique("tokens")
    with open(tokens, "w") as f:
        f.write(line("first", "one") + line("second", "two"))
    os.chmod(tokens, 0o600)
    agent = Agent("--tokens", tokens)
    with socket.create_connection(("127.0.0.1", agent.port), timeout=20 * SLOW) as s:
        def status(token):
            return ask(s, "/v1/models", f"Authorization: Bearer {token}")[0]

        assert [status(t) for t in ("one", "two", "three")] == [200, 200, 401]
        put(line("second", "two") + line("third", "three"), tokens)
        os.chmod(tokens, 0o600)
        began = time.monotonic()
        wait_for(lambda: status("one") == 401, "the token to be refused")
        assert time.monotonic() - began < 2 * SLOW
        assert [status(t) for t in ("one", "two", "three")] == [401, 200, 200]


def test_fifos_in_place_of_files():
    "a FIFO where the tokens, or the certificate, were stops no server: those of before hold on, and it ends when it is told to"
    files, authority, tokens = Files(), Authority(), unique("tokens")
    files.hold(authority)
    secret = wsync("token", "add", "a", "--role", "read", "--file", tokens).stdout.strip()
    agent = Agent("--tokens", tokens)
    tls = Process("agent", "--listen", f"127.0.0.1:{(port := free_port())}", "--socket", unique("tls") + ".sock", "--tls-cert", files.cert,
                  "--tls-key", files.key, "--insecure")
    context = ssl.create_default_context(cafile=authority.file)
    healthy = lambda: urllib.request.urlopen(f"https://localhost:{port}/healthz", timeout=20 * SLOW, context=context).status == 200
    wait_for(lambda: try_(healthy), "the agent with TLS")
    for path in (tokens, files.cert):
        os.unlink(path)
        os.mkfifo(path)
    for _ in range(3):  # it looks at them once a second
        time.sleep(0.7)
        assert agent.get("/v1/models", Authorization=f"Bearer {secret}")["models"] == [] and healthy()
    wait_for(lambda: "no plain file" in agent.text() and "no plain file" in tls.text(), "the reason in both logs")


def try_(condition):
    try:
        return condition()
    except OSError:
        return False
