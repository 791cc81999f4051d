# timeout: 120, takes: 20
"""The web page of agents and mounts: its headers, and what a real browser shows."""
import base64
import hashlib
import os
import re
import signal
import subprocess
import urllib.error

from browser import Browser
from clients import Http
from world import *


def secret(file, name, role):
    return wsync("token", "add", name, "--role", role, "--file", file).stdout.strip()


def fetch(url, method="GET"):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=20) as r:
            return r.status, r.headers, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.headers, e.read().decode()


def check_page(url):
    status, headers, text = fetch(url + "/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    csp = headers["Content-Security-Policy"]
    assert csp.startswith("default-src 'none';") and "connect-src 'self'" in csp and "unsafe" not in csp and "*" not in csp, csp
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
    for tag in ("style", "script"):
        parts = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.S)
        assert parts
        for part in parts:
            assert base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() in csp, tag
    assert not re.search(r"<(?:link|img|script|iframe)[^>]*(?:src|href)=(?!\"data:)", text), "a resource from outside"
    status, head, body = fetch(url + "/", "HEAD")
    assert status == 200 and body == "" and int(head["Content-Length"]) == len(text.encode())


def test_headers():
    "agent and mount serve the page without a token, by GET and HEAD, with a policy that names its scripts by hash; data asks for a token"
    need_fuse()
    file, port = unique("tokens"), free_port()
    secret(file, "reader", "read")
    agent = Agent("--tokens", file)
    check_page(agent.url)
    assert fetch(agent.url + "/", "POST")[0] in (401, 405)
    for path, want in (("/v1/status", 401), ("/metrics", 401), ("/nothing", 401)):
        assert fetch(agent.url + path)[0] == want, path
    plain = Agent()
    Mount(plain.url, f"listen=127.0.0.1:{port}")
    check_page(f"http://127.0.0.1:{port}")
    assert fetch(f"http://127.0.0.1:{port}/", "POST")[0] == 405


def test_no_data_as_markup():
    "the page's script makes text of what it gets, never markup or code"
    with open(os.path.join(os.environ["ROOT"], "transports/http/page/page.js")) as f:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|localStorage", f.read())


def test_browser():
    "three mounts, an engine that fails, a release that times out, a hostile error; a wrong token, a right one, a token that is taken away"
    need_fuse()
    browser = Browser()
    file, port, folder = unique("tokens"), free_port(), checkpoint(SMALL)
    token, mover = secret(file, "reader", "read"), secret(file, "mover", "read,report,release")
    agent = Agent("--tokens", file)
    key = unique("token")
    with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
        f.write(mover + "\n")
    for v in (1, 2):
        agent.publish("actor", v, folder)
    mounts = [Mount(agent.url, f"host=n{i},token-file={key}" + (f",listen=127.0.0.1:{port}" if i == 0 else "")) for i in range(3)]
    engines = [Engine(folder) for _ in mounts]
    for i, (mount, engine) in enumerate(zip(mounts, engines)):
        mount.wait_version("actor", 2)
        mount.write(f"engine add e{i} sglang {engine.url}", "actor/ctl")
        mount.write("follow-released", "actor/policy")
    client = Http(agent.url, mover)
    listed = lambda: json.loads(client.ask("GET", "/v1/actor/mounts")[1])
    wait_for(lambda: sum(m["engines"] for m in (listed()["mounts"] if isinstance(listed(), dict) else listed())) == 3, "the mounts' reports")
    assert client.ask("POST", "/v1/actor/2/release", {"prepare_s": 60})[0] == 200
    wait_for(lambda: all(e.serves() == "2" for e in engines), "version 2 at all engines", 30)
    hostile = "<img src=x onerror=window.hurt=1>"
    assert client.ask("POST", "/v1/actor/2/failed", {"mount": "n9:/m", "engines": 1, "serving": 0, "error": hostile})[0] == 200
    suspend(mounts[1].pid)
    at_end(os.kill, mounts[1].pid, signal.SIGCONT)
    assert client.ask("POST", "/v1/actor/1/release", {"prepare_s": 1})[0] == 200
    wait_for(lambda: client.ask("GET", "/v1/releases")[1].count('"aborted"') == 1, "the release's deadline")
    os.kill(mounts[1].pid, signal.SIGCONT)
    engines[2].end()
    assert client.ask("POST", "/v1/actor/1/release", {"prepare_s": 60})[0] == 200
    wait_for(lambda: client.ask("GET", "/v1/releases")[1].count('"aborted"') == 2, "the release that an engine fails", 30)
    browser.call("Page.navigate", url=agent.url + "/")
    browser.wait(["A token is needed."])
    browser.run("document.getElementById('token').focus()")
    browser.type("wsync_" + "A" * 43)
    browser.wait(["wrong or has expired"])
    browser.run("document.getElementById('token').focus()")
    browser.type(token)
    browser.wait(["Live.", "n0:", "n1:", "n2:", "actor/1", "aborted", "(waiting)", "(failed: engine e2", hostile], 30)
    browser.picture(os.path.join(os.environ["TESTDIR"], "agent.png"))
    assert browser.run("window.hurt") is None and browser.run("document.querySelectorAll('main img').length") == 0
    assert browser.run("[...document.querySelectorAll('table')].every(t => t.caption.textContent && t.querySelector('th[scope=col]'))")
    assert browser.run("localStorage.length") == 0 and token not in browser.run("location.href + document.cookie")
    assert not [c for c in browser.complaints if "Content Security Policy" in c or "exception" in c], browser.complaints
    wsync("token", "remove", "reader", "--file", file)
    browser.wait(["wrong or has expired"], 30)
    assert "n0:" not in browser.text() and browser.run("sessionStorage.length") == 0
    browser.call("Page.navigate", url=f"http://127.0.0.1:{port}/")
    browser.wait(["Live.", "actor", "Engines", "used"], 30)
    browser.picture(os.path.join(os.environ["TESTDIR"], "mount.png"))


def test_without_charts():
    "without chart.js the page is built with one script, and its policy names that one alone"
    root, out = os.environ["ROOT"], unique("page")
    subprocess.run([os.path.join(root, ".ci/page"), os.path.join(root, "transports/http/page"), out], check=True, timeout=60)
    with open(os.path.join(out, "page.html")) as page, open(os.path.join(out, "page_csp.h")) as csp:
        assert page.read().count("<script>") == 1 and csp.read().count("'sha256-") == 2
