"""A headless Chromium, driven over its debugging pipe."""
import base64
import json
import os
import shutil
import subprocess
import time

import pytest

from world import SLOW, at_end, unique


class Browser:
    """One page. Messages are JSON, each ended by a zero byte (Chrome DevTools Protocol, --remote-debugging-pipe)."""

    def __init__(self):
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        if not program:
            pytest.skip("chromium is not installed")
        orders, self.orders = os.pipe()
        self.replies, replies = os.pipe()
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec 3<&{orders} 4>&{replies}; exec "$@"', "chromium", program, "--headless=new", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={unique('chromium')}", "--remote-debugging-pipe", "--window-size=1200,1800", "about:blank"],
            pass_fds=(orders, replies), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        at_end(self.process.wait, 30)
        at_end(self.process.terminate)
        os.close(orders)
        os.close(replies)
        self.n, self.rest, self.session, self.complaints = 0, b"", None, []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def message(self):
        while b"\0" not in self.rest:
            more = os.read(self.replies, 1 << 16)
            assert more, "chromium has ended"
            self.rest += more
        text, _, self.rest = self.rest.partition(b"\0")
        return json.loads(text)

    def call(self, method, **params):
        self.n += 1
        order = {"id": self.n, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}
        os.write(self.orders, json.dumps(order).encode() + b"\0")
        while True:
            m = self.message()
            if m.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(m["params"]))
            if m.get("id") == self.n:
                assert "result" in m, m
                return m["result"]

    def run(self, script):
        """The value of an expression, or of a promise."""
        out = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in out, out
        return out["result"].get("value")

    def text(self):
        return self.run("document.body ? document.body.innerText : ''") or ""

    def wait(self, words, seconds=20):
        end = time.monotonic() + seconds * SLOW
        while not all(word in self.text() for word in words):
            assert time.monotonic() < end, f"{words} are not all in: {self.text()}\n{self.complaints}"
            time.sleep(0.1)

    def type(self, text):
        """Into what has the focus; then the key Enter."""
        self.call("Input.insertText", text=text)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r" if kind == "keyDown" else "")

    def picture(self, file):
        with open(file, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))
