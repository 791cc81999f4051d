# sanitizers: thread
"""The raw answers of the four HTTP servers, as in 0.1 but for what vLLM's list of models says of adapters (parent) and for the page at /: status, headers,
body, and whether the connection stays open. They are in tests/fixtures/http_answers; HTTP_ANSWERS=FILE writes them to FILE instead."""
import difflib
import http.client
import os
import re
import zlib

from world import *

ANSWERS = os.path.join(os.path.dirname(__file__), "../fixtures/http_answers")
TOKEN = "a-token-for-tests"
KNOWN = f"Authorization: Bearer {TOKEN}"
LINES = []


def one(s, head):
    """Reads one response: status, headers and body."""
    r = http.client.HTTPResponse(s, method="HEAD" if head else "GET")
    r.begin()
    return r, r.read()


def ask(port, server, what, target, *headers, method="GET", body=b"", split=False):
    """Sends the request, and then a request with a known answer on the same connection if it is still open."""
    head = "".join(f"{h}\r\n" for h in (f"{method} {target} HTTP/1.1", "Host: x", *headers))
    length = f"Content-Length: {len(body)}\r\n" if body and "Content-Length" not in head and "Transfer-Encoding" not in head else ""
    with socket.create_connection(("127.0.0.1", port), timeout=60 * SLOW) as s:
        if split:
            s.sendall(head[:9].encode())
            time.sleep(0.05)
            s.sendall(f"{head[9:]}{length}\r\n".encode() + body[:1])
            time.sleep(0.05)
            s.sendall(body[1:])
        else:
            s.sendall(f"{head}{length}\r\n".encode())
            try:
                s.sendall(body)
            except OSError:
                pass  # it was refused for its head
        try:
            r, got = one(s, method == "HEAD")
        except (OSError, http.client.HTTPException):
            LINES.append(f"== {server}: {what}\n   no answer\n")
            return
        try:
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            on = one(s, False)[0].status > 0
        except (OSError, http.client.HTTPException):
            on = False
    binary = r.getheader("Content-Type") == "application/octet-stream"
    text = f"{len(got)} bytes, CRC-32 {zlib.crc32(got):08x}" if binary and got else got.decode(errors="replace")
    for number, name in ((r'"(seq|agent|created_ns|pid|started_ns)": ?\d+', r'"\1":N'), (r'"run": ?"[^"]*"', '"run":"R"'), (r'"digest": ?"[^"]*"', '"digest":"D"'), (r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS"), ("Date: .*", "Date")):
        text = re.sub(number, name, text)
    text = re.sub(r"\s+", " ", text).replace(TESTDIR, "TESTDIR")
    if text.startswith("<!doctype html>"):
        text = "a page"  # which tests/mount/test_page.py looks at
    if "# TYPE" in text or text.startswith("# HELP"):
        text = "metrics"
    LINES.append(f"== {server}: {what}\n{r.status} {r.reason}{'' if on else ', and the connection ends'}\n")
    for k, v in sorted(r.getheaders()):
        v = re.sub(r"('sha256-[^']*' ?)+", "HASHES", v)
        if k not in ("Date", "Content-Length") or (k == "Content-Length" and not re.search("[NRD]\"|metrics|a page|ADDRESS|TESTDIR|:N", text)):
            LINES.append(f"   {k}: {'T' if k == 'ETag' else 'R' if k == 'X-Wsync-Run' else v}\n")
    if text:
        LINES.append(f"   {text}\n")


def common(port, server, target, other, *headers):
    """Requests for every server. target: a path served to GET; other: a path served to POST."""
    def a(what, *args, **kw):
        ask(port, server, what, *args, *headers, **kw)
    a("GET", target)
    if " with" in server and "without" not in server:
        return  # what needs the token
    a("HEAD", target, method="HEAD")
    a("POST of what is read", target, method="POST", body=b"{}")
    a("PUT", target, method="PUT", body=b"{}")
    a("OPTIONS", target, method="OPTIONS")
    a("a path that is not there", "/nothing/here")
    a("POST of a path that is not there", "/nothing/here", method="POST", body=b"{}")
    a("HEAD of a path that is not there", "/nothing/here", method="HEAD")
    a("DELETE of a path that is not there", "/nothing/here", method="DELETE")
    a("the root", "/")
    a("a slash too many", target + "/")
    a("63 arguments", target + "?" + "&".join(f"a{i}=1" for i in range(63)))
    a("500 arguments", target + "?" + "&".join(f"a{i}=1" for i in range(500)))
    a("a long argument", target + "?a=" + "x" * 17000)
    a("headers that do not fit", target, "X: " + "x" * 40000)
    a("a body in pieces", other, method="POST", body=b'{"a":1}', split=True)
    a("a body that is no JSON", other, method="POST", body=b"{")
    a("a body that is a list", other, method="POST", body=b"[1]")
    a("a body of GET", target, body=b"{}")
    a("a length that is none", target, "Content-Length: x")
    a("a body without its length", other, "Transfer-Encoding: chunked", method="POST", body=b"2\r\n{}\r\n0\r\n\r\n")
    a("HTTP/1.1 with an argument", target + "?x=%20y")


def test_answers():
    "four servers give the recorded answers to raw requests: paths, methods, HEAD, tokens, bodies, ranges, tags"
    need_fuse()
    token = unique("token")
    with open(token, "w") as f:
        f.write(TOKEN)
    os.chmod(token, 0o600)
    folder = checkpoint(SMALL)
    flow, probes = free_port(), free_port()
    agent = Agent("--token-file", token, "--astraflow", f"127.0.0.1:{flow}")
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"listen=127.0.0.1:{probes},token-file={token}")
    mount.wait_version("actor", 1)
    engines = {api: Engine(folder, "--api-key-file", token, api=api) for api in ("sglang", "vllm")}

    p = agent.port
    for who, headers in (("", (KNOWN,)), (" without a token", ()), (" with a wrong token", (KNOWN + "x",)),
                         (" with the token's beginning", (KNOWN[:-1],)), (" with another scheme", (f"Authorization: Basic {TOKEN}",))):
        server = "the agent" + who
        common(p, server, "/v1/models", "/v1/nothing", *headers)
        ask(p, server, "health", "/healthz", *headers)
        ask(p, server, "POST of health", "/healthz", *headers, method="POST", body=b"{}")
        ask(p, server, "PUT of health", "/healthz", *headers, method="PUT", body=b"{}")
        ask(p, server, "a length over the limit", "/v1/x/y", "Content-Length: 99999999999", *headers, method="POST")
        ask(p, server, "a length over the limit of GET", "/v1/models", "Content-Length: 99999999999", *headers)
        ask(p, server, "a manifest", "/v1/actor/1/manifest", *headers)
        ask(p, server, "POST of a manifest", "/v1/actor/1/manifest", *headers, method="POST", body=b"{}")
        ask(p, server, "metrics", "/metrics", *headers)
    ask(p, "the agent", "health by another name", "/%68ealthz/x", KNOWN)
    big = b"x" * (17 << 20)
    ask(p, "the agent", "a body over the limit in chunks", "/v1/x/y", "Transfer-Encoding: chunked", KNOWN, method="POST",
        body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(big), big))
    f = "/v1/actor/1/files/model.safetensors"
    etag = http.client.HTTPConnection("127.0.0.1", p)
    etag.request("GET", f, headers={"Authorization": f"Bearer {TOKEN}"})
    r = etag.getresponse()
    tag, _ = r.getheader("ETag"), r.read()
    etag.close()
    for what, *headers in (("whole",), ("range", "Range: bytes=0-9"), ("the end", "Range: bytes=-5"), ("open range", "Range: bytes=7-"),
                           ("outside", "Range: bytes=99999999-"), ("two ranges", "Range: bytes=0-1,3-4"), ("no range", "Range: lines=1"),
                           ("known", f"If-None-Match: {tag}"), ("known weakly", f"If-None-Match: \"a\", W/{tag}"), ("any", "If-None-Match: *"),
                           ("other", 'If-None-Match: "x"'), ("range if the same", "Range: bytes=0-9", f"If-Range: {tag}"),
                           ("range if another", "Range: bytes=0-9", 'If-Range: "x"')):
        ask(p, "the agent", "a file, " + what, f, KNOWN, *headers)
    for what, target in (("of a file", f), ("of a manifest", "/v1/actor/1/manifest")):
        ask(p, "the agent", "HEAD " + what, target, KNOWN, method="HEAD")
        ask(p, "the agent", "POST " + what, target, KNOWN, method="POST")
        ask(p, "the agent", "PUT " + what, target, KNOWN, method="PUT")
    for what, target in (("no such file", "/v1/actor/1/files/x"), ("no such version", "/v1/actor/9/manifest"), ("no such model", "/v1/critic/1/manifest"),
                         ("a long file name", "/v1/actor/1/files/" + "x" * 300), ("%zz", "/v1/%zz/1/manifest"), ("no number", "/v1/actor/x/manifest"),
                         ("a slash after the file", f + "/"), ("a slash after the manifest", "/v1/actor/1/manifest/"), ("deltas", "/v1/actor/1/deltas"),
                         ("no delta", "/v1/actor/1/delta?base=7"), ("a delta of nothing", "/v1/actor/1/delta"), ("events", "/v1/events?since=0"),
                         ("events at their end", "/v1/events?since=999999&timeout_ms=50"), ("events of a model", "/v1/actor/events?since=0"),
                         ("events since x", "/v1/events?since=x"), ("of another run", "/v1/actor/1/manifest?run=other"),
                         ("a run that is too long", "/v1/actor/1/manifest?run=" + "x" * 99), ("status", "/v1/nothing/x?y")):
        ask(p, "the agent", what, target, KNOWN)
    ask(p, "the agent", "POST since x", "/v1/events?since=x", KNOWN, method="POST")

    common(probes, "the probes", "/healthz", "/ready/actor")
    for what, target in (("metrics", "/metrics"), ("a model", "/ready/actor"), ("no model", "/ready/"), ("ready", "/ready"), ("an engine", "/ready/actor/x"),
                         ("behind", "/ready/actor?behind=1"), ("behind x", "/ready/actor?behind=x"), ("behind nothing", "/ready/actor?behind"),
                         ("percent", "/%68ealthz")):
        ask(probes, "the probes", what, target)
    ask(probes, "the probes", "a large body", "/healthz", method="POST", body=b"x" * (2 << 20))
    ask(probes, "the probes", "a length over the limit", "/healthz", "Content-Length: 9", body=b"123456789")

    for api, target, other in (("sglang", "/get_model_info", "/update_weight_version"), ("vllm", "/v1/models", "/v1/completions")):
        p = engines[api].port
        for who, headers in (("", (KNOWN,)), (" without a key", ()), (" with a wrong key", (KNOWN + "x",))):
            server = f"the reference engine as {api}{who}"
            common(p, server, target, other, *headers)
            ask(p, server, "health", "/health", *headers)
            ask(p, server, "HEAD of health", "/health", *headers, method="HEAD")
            ask(p, server, "a large body", other, *headers, method="POST", body=b"x" * (2 << 20))
            ask(p, server, "a large body of a path that is not there", "/nothing", *headers, method="POST", body=b"x" * (2 << 20))
            ask(p, server, "both", "/flush_cache?timeout=1", *headers, method="POST", body=b'{"x":1}')
            ask(p, server, "GET of what is both", "/flush_cache?timeout=1", *headers)
            ask(p, server, "an argument", "/pause?mode=never", *headers, method="POST")
            ask(p, server, "an argument beside a body", "/pause?mode=never", *headers, method="POST", body=b'{"mode":"abort"}')

    common(flow, "AstraFlow's listener", "/get_version", "/request_transfer")
    ask(flow, "AstraFlow's listener", "a large body", "/request_transfer", method="POST", body=b"x" * (80 << 10))
    ask(flow, "AstraFlow's listener", "a large body of a path that is not there", "/nothing", method="POST", body=b"x" * (80 << 10))
    ask(flow, "AstraFlow's listener", "a transfer", "/request_transfer", method="POST", body=b'{"instance_id":"x","mode":"half"}')
    ask(flow, "AstraFlow's listener", "a registration", "/register_sglang_instance", method="POST", body=b'{"x":1}')

    if os.environ.get("HTTP_ANSWERS"):
        with open(os.environ["HTTP_ANSWERS"], "w") as out:
            out.writelines(LINES)
    else:
        with open(ANSWERS) as want:
            differ = list(difflib.unified_diff(list(want), "".join(LINES).splitlines(True), "as they were", "as they are"))
        assert not differ, "".join(differ)
