# timeout: 240, takes: 60
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
    releases = json.loads(client.ask("GET", "/v1/releases")[1])
    releases = releases if isinstance(releases, list) else releases["releases"]
    assert all(r["id"] > 1 << 53 and str(r["id"]) in browser.text() for r in releases), "JavaScript has rounded a release's number"
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


class Site:
    """An agent with five versions, and three mounts with an engine each that had them one after the other; a fourth mount never loaded any, the
    third one's engine is gone."""

    def __init__(self):
        self.port, self.relay, folder = free_port(), free_port(), checkpoint(SMALL)
        self.agent = Agent()
        self.agent.publish("actor", 1, folder)
        more = {0: f",listen=127.0.0.1:{self.port},serve=127.0.0.1:{self.relay},serve-insecure"}
        self.mounts = [Mount(self.agent.url, f"host=n{i}" + more.get(i, "")) for i in range(4)]
        self.engines = [Engine(folder) for _ in range(3)]
        for i, engine in enumerate(self.engines):
            self.mounts[i].wait_version("actor", 1)
            self.mounts[i].write(f"engine add e{i} sglang {engine.url}", "actor/ctl")
        for version in range(1, 6):
            if version > 1:
                self.agent.publish("actor", version, folder)
            if version == 5:
                self.engines[2].end()
            for mount in self.mounts[:3]:
                mount.wait_version("actor", version)
                if version < 5 or mount is not self.mounts[2]:
                    mount.write(version, "actor/version")
        assert self.mounts[2].refused("5", "actor/version")

    def rows(self, browser, title):
        """Texts of the cells of a table, by row."""
        return browser.run(f"[...[...document.querySelectorAll('table')].find(t => t.caption.textContent.startsWith('{title}')).tBodies[0].rows]"
                           ".map(r => [...r.cells].map(c => c.innerText))")


def no_overflow(browser):
    assert browser.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), browser.text()
    wide = browser.run("[...document.querySelectorAll('main *, #charts *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
                       ".map(e => e.outerHTML.slice(0, 200))")
    assert not wide, wide


def look(browser, width, dark=False):
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])


def test_history():
    "which mount has which version and how it came, versions over time with bytes and time to loaded, pauses by engine, last errors, charts of that"
    need_fuse()
    browser, site = Browser(), Site()
    listed = lambda: {m["mount"].split(":")[0]: m for m in site.agent.get("/v1/actor/mounts")}
    wait_for(lambda: len(listed()) == 4 and "last_error" in listed()["n2"] and listed()["n0"]["serving"] == 1, "the mounts' reports", 60)
    browser.call("Page.navigate", url=site.agent.url + "/")
    browser.wait(["Live.", "n3:", "Versions over time", "Last errors"], 30)
    mounts = {row[0].split(":")[0]: row for row in site.rows(browser, "Mounts")}
    assert mounts["n0"][2:4] == ["5", "0"] and mounts["n2"][2:4] == ["4", "1"] and mounts["n3"][2] == "none", mounts
    assert "tcp" in mounts["n0"][7] and mounts["n0"][9], mounts
    over = site.rows(browser, "Versions over time")
    assert [row[0] for row in over] == [f"actor/{v}" for v in (5, 4, 3, 2, 1)] and [row[5] for row in over] == ["2", "3", "3", "3", "3"], over
    assert over[4][4] not in ("", "0 B") and all(row[6] for row in over), over
    errors = site.rows(browser, "Last errors")
    assert any(row[0].startswith("n2:") and "engine e2" in row[2] for row in errors), errors
    points = browser.run("charts.drawn.moved.data.datasets[0].data.length") if browser.run("typeof Chart !== 'undefined'") else 5
    assert points == 5
    browser.call("Page.navigate", url=f"http://127.0.0.1:{site.port}/")
    browser.wait(["Live.", "Engines and their pauses", "Versions over time"], 30)
    engine = site.rows(browser, "Engines")[0]
    assert engine[0] == "e0" and engine[3] == "5" and engine[5] == "5" and engine[6] and engine[7], engine
    over = site.rows(browser, "Versions over time")
    assert [row[0] for row in over] == [f"actor/{v}" for v in (5, 4, 3, 2, 1)] and all("tcp" in row[6] and row[5] for row in over), over
    assert "driver" in browser.run("document.querySelector('details div').textContent")
    with urllib.request.urlopen(f"http://127.0.0.1:{site.port}/v1/status", timeout=20) as r:
        status = json.load(r)
    command = json.loads(wsync("status", "--json", "--mount", site.mounts[0].path).stdout)
    for one in (status, command):
        for source in one["sources"]:
            source.pop("contact"), source.pop("rtt")
    assert status == command
    browser.call("Page.navigate", url=f"http://127.0.0.1:{site.relay}/")
    browser.wait(["Live.", "Engines and their pauses", "actor/5"], 30)
    assert not [c for c in browser.complaints if "exception" in c], browser.complaints


def test_widths_and_keyboard():
    "nothing is wider than the page at 1280 and 400 pixels, light or dark; the keyboard reaches what can be opened, which stays open"
    need_fuse()
    browser, site = Browser(), Site()
    for url, words in ((site.agent.url, ["n3:", "actor/5"]), (f"http://127.0.0.1:{site.port}", ["e0", "actor/5"])):
        for width in (1280, 400):
            for dark in (False, True):
                look(browser, width, dark)
                browser.call("Page.navigate", url=url + "/")
                browser.wait(["Live.", *words], 30)
                no_overflow(browser)
                colors = browser.run("(s => [s.color, getComputedStyle(document.documentElement).colorScheme])(getComputedStyle(document.body))")
                assert colors[1] == "light dark" and (colors[0] == "rgb(255, 255, 255)") == dark, colors
                if browser.run("typeof Chart !== 'undefined'"):
                    assert browser.run("charts.drawn.moved.options.color") == colors[0]
                browser.picture(os.path.join(os.environ["TESTDIR"], f"page-{width}-{dark}.png"))
    browser.run("document.querySelector('.skip').focus()")
    for _ in range(40):
        for kind in ("rawKeyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        if browser.run("document.activeElement.tagName") == "SUMMARY":
            break
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    browser.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter", windowsVirtualKeyCode=13)
    assert browser.run("document.activeElement.tagName === 'SUMMARY' && document.activeElement.parentElement.open"), browser.text()
    site.agent.publish("actor", 6, checkpoint(SMALL))
    browser.wait(["actor/6"], 30)
    assert browser.run("document.activeElement.tagName === 'SUMMARY' && document.activeElement.parentElement.open"), "a new version took the reader's place"


def test_without_charts():
    "without chart.js the page is built with one script, and its policy names that one alone"
    root, out = os.environ["ROOT"], unique("page")
    subprocess.run([os.path.join(root, ".ci/page"), os.path.join(root, "transports/http/page"), out], check=True, timeout=60)
    with open(os.path.join(out, "page.html")) as page, open(os.path.join(out, "page_csp.h")) as csp:
        assert page.read().count("<script>") == 1 and csp.read().count("'sha256-") == 2
