# beside others
"""wsync why: the story of one version on one mount."""
import http.server
import re
import threading
import time

from proxy import Gate
from world import *


def test_story():
    "from published to switched, in order, with durations and where most of the time went"
    agent = Agent()
    folder = checkpoint(SMALL)
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    engine = Engine(folder)
    mount.write(f"engine add e1 sglang {engine.url}", "actor/ctl")
    mount.write(1, "actor/version")
    said = json.loads(wsync("why", "--json", "actor", 1, mount.path).stdout)
    steps = [s["step"] for s in said["steps"]]
    wanted = ["begun", "published", "known", "pulling", "verifying", "ready", "paused", "loaded", "resumed", "switched"]
    assert [s for s in steps if s in wanted] == wanted, steps
    assert all(s["seconds"] >= 0 for s in said["steps"]) and said["agent_error"] is None, said
    assert said["most"] in {s.get("spent") for s in said["steps"]} and said["most_seconds"] <= said["seconds"], said
    assert abs(said["clock_offset"]) <= said["clock_error"] + 1, said
    text = wsync("why", "actor", 1, mount.path).stdout
    assert text.splitlines()[-1].startswith("most of the time: ") and "published" in text and "this machine's" in text, text


def test_agent_that_says_nothing():
    "without an agent the mount's part is told, and why the rest is missing"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    agent.kill()
    text = wsync("why", "actor", 1, mount.path).stdout
    assert "published: not said: " in text and "known" in text, text


def test_wrong_words():
    "a version that the mount never heard of, no number, and no mount are said"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    r = wsync("why", "actor", 9, mount.path, check=False)
    assert r.returncode == 1 and "no event of actor/9" in r.stderr, r.stderr
    assert wsync("why", "actor", "nine", mount.path, check=False).returncode == 2
    assert "is not a wsync mount" in wsync("why", "actor", 1, TESTDIR, check=False).stderr


def test_first_byte_and_stall():
    "a fetch in which nothing came for a while says when its first byte came, and for how long none did; history has it, too"
    agent = Agent()
    agent.publish("actor", 1, checkpoint({"w": ("F32", [1 << 20])}))
    gate = Gate(agent.url, 1 << 20)
    mount = Mount(gate.url)
    mount.wait_version("actor", 1)
    mount.write_once("pull 1 async", "actor/ctl")
    wait_for(lambda: gate.left == 0, "the first bytes")
    time.sleep(2.5)
    gate.open()
    wsync("wait", "actor", 1, "--state", "ready", "--timeout", 60, "--mount", mount.path)
    said = json.loads(wsync("why", "--json", "actor", 1, mount.path).stdout)
    steps = [s["step"] for s in said["steps"]]
    assert steps.index("pulling") + 1 == steps.index("first-byte") < steps.index("verifying"), steps
    assert said["stalls"] >= 1 and 1 <= said["stalled_seconds"] <= said["seconds"], said
    assert said["most"] == "fetching" and next(s for s in said["steps"] if s["step"] == "first-byte")["spent"] == "waiting for the first byte", said
    assert re.search(r"no byte came for a second or more: \d+ times, ", wsync("why", "actor", 1, mount.path).stdout)
    history = json.loads(wsync("status", "--json", "--mount", mount.path).stdout)["models"][0]["history"]
    assert len(history) == 1 and history[0]["stalls"] == said["stalls"] and history[0]["first"] >= 0, history


def agent_with_clock(seconds, run):
    """The URL of a server that tells the story of any version as an agent whose clock is so many seconds before this machine's."""

    class Story(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            now = int((time.time() + seconds) * 1e6)
            text = json.dumps({"run": run, "now_us": now, "begun_us": now - 9_000_000, "published_us": now - 8_000_000, "delta_us": now - 7_500_000})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Story)
    at_end(server.server_close)
    at_end(server.shutdown)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def test_clocks_that_differ():
    "the agent's times are put on this machine's clock, whichever way its own is off, and a line says by how much"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    for off in (5000, -5000):
        url = agent_with_clock(off, "r")
        before = time.time()
        said = json.loads(wsync("why", "--json", "--agent", url, "actor", 1, mount.path).stdout)
        assert abs(said["clock_offset"] - off) <= said["clock_error"] + 1, said
        published = next(s for s in said["steps"] if s["step"] == "published")
        assert abs(published["at"] - (before - 8)) < 60 * SLOW, (published, before)
        assert all(s["seconds"] >= 0 for s in said["steps"]) and abs(said["delta_seconds"] - 0.5) < 0.001, said
        words = "before" if off > 0 else "behind"
        assert re.search(rf"the agent's clock is \d+\.\d+ s {words} this machine's", wsync("why", "--agent", url, "actor", 1, mount.path).stdout)
