# beside others
"""wsync doctor --fleet: who holds the others back."""
import http.server
import signal
import time

from certificates import Authority
from world import *


def fleet(agent):
    """An agent, or its socket."""
    r = wsync("doctor", "--fleet", "--json", "--agent", f"unix:{getattr(agent, 'sock', agent)}", check=False, timeout=60)
    said = json.loads(r.stdout)
    return r.returncode, [(c["name"], c["state"], c["text"]) for c in said["checks"]]


def post(agent, **more):
    agent.ask("/v1/actor/mounts", {"mount": "hostile:/wsync", "follows": False, "engines": 0, **more})


def mounts_of(agent):
    return {m["mount"]: m for m in agent.get("/v1/actor/mounts")}


def test_good_and_silent():
    "a mount says its machine; one that stands still is first, and the exit status says so"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    good, bad = (Mount(agent.url, f"host={h}") for h in ("good", "bad"))
    wait_for(lambda: len([m for m in mounts_of(agent).values() if "machine" in m]) == 2, "both mounts' word")
    code, said = fleet(agent)
    assert code == 0 and said[0][0] == "agent" and {s[0].split(":")[0] for s in said[1:]} == {"actor good", "actor bad"}, said
    assert all(f"source {agent.url}" in s[2] and "MTU" in s[2] and "kernel" in s[2] for s in said[1:]), said
    os.kill(bad.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: any(m["silent"] for m in mounts_of(agent).values()), "the agent to miss it", 120)
        code, said = fleet(agent)
        assert code == 1 and said[1][0].startswith("actor bad") and said[1][1] == "broken" and "silent" in said[1][2], said
        assert said[2][1] == "ok", said
    finally:
        os.kill(bad.pid, signal.SIGCONT)
    assert good.alive()


def test_hostile_and_old_reports():
    "what a report says is bounded and printable; one that says nothing, as of 0.1, is no error"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    post(agent)
    assert "machine" not in mounts_of(agent)["hostile:/wsync"]
    code, said = fleet(agent)
    assert code == 0 and "not said" in said[1][2], said
    for machine in (7, [], "x", {"wsync": 1, "memory": "x", "now_us": "y", "mtu": -1}, {"unknown": {"a": "b" * 5000}}):
        post(agent, machine=machine)
        assert fleet(agent)[0] == 0
    for said in (7, [], {"how": 1, "moved": -5}, {"how": "h\x1b[2J" * 500, "moved": 2**62, "other": "x"}):
        post(agent, came=said, last_error=said)
        assert len(json.dumps(mounts_of(agent)["hostile:/wsync"])) < 8192
    assert "other" not in mounts_of(agent)["hostile:/wsync"]["came"] and "\x1b" not in mounts_of(agent)["hostile:/wsync"]["came"]["how"]
    post(agent, machine={"wsync": "v\x1b[2J" + "x" * 10000, "link": 2**62, "memory": 2**62, "now_us": 1, "unknown": "u" * 1000})
    kept = mounts_of(agent)["hostile:/wsync"]["machine"]
    assert len(json.dumps(kept)) < 4096 and "unknown" not in kept and "\x1b" not in kept["wsync"], kept
    assert kept["clock_ms"] == -86400000, kept
    code, said = fleet(agent)
    assert code == 0 and "its clock is off" in said[1][2], said


def test_round_trip_and_certificates():
    "a line has speed and round trip to the source; a client certificate that ends soon is a note, and the agent's own is one as well"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    mount = Mount(agent.url)
    wait_for(lambda: any(m.get("machine", {}).get("rtt_us", 0) > 0 for m in mounts_of(agent).values()), "the kernel's round trip")
    code, said = fleet(agent)
    assert code == 0 and "round trip" in said[1][2] and "kernel" in said[0][2] and "of it free" in said[0][2], said
    assert "certificate" not in said[0][2] + said[1][2], said
    mount.detach()
    now = int(time.time())
    for days, state, words in ((40, "ok", "client certificate ends in 40 days"), (3, "note", "to be renewed"), (-2, "note", "ended 2 days ago")):
        post(agent, machine={"wsync": "0.2.0", "link": 5000000, "rtt_us": 1234, "certificate_end": now + days * 86400 + 3600})
        line = next(s for s in fleet(agent)[1] if s[0].startswith("actor hostile"))
        assert line[1] == state and words in line[2] and "5.00 MB/s" in line[2] and "round trip 1.23 ms" in line[2], line


def test_agents_certificate():
    "an agent whose certificate ends soon says so; one whose certificate has ended is broken"
    for days, state, words, status in ((3, "note", "its certificate is to be renewed", 0), (-1, "broken", "its certificate ended 1 days ago", 1)):
        cert, key = Authority().certificate(days=days)
        sock = unique("tls") + ".sock"
        agent = Process("agent", "--listen", "127.0.0.1:0", "--socket", sock, "--tls-cert", cert, "--tls-key", key, "--insecure")
        wait_for(lambda: "serving" in agent.text() or not agent.alive(), "the agent")
        code, said = fleet(sock)
        assert code == status and said[0][1] == state and words in said[0][2], said


def test_failed_first():
    "a mount that failed comes before those that serve, with its error"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    post(agent)
    agent.ask("/v1/actor/mounts", {"mount": "a:/wsync", "follows": False, "engines": 0})
    agent.ask("/v1/actor/1/failed", {"mount": "hostile:/wsync", "error": "the disk of it burns"})
    code, said = fleet(agent)
    assert code == 1 and said[1][0].startswith("actor hostile") and "the disk of it burns" in said[1][2], said


def test_agent_that_is_gone():
    "it says so, and fails"
    agent = Agent()
    agent.kill()
    code, said = fleet(agent)
    assert code == 1 and said[0][1] == "broken", said


def test_stale_token():
    "a mount that sends the token which a killed agent left is told the file, and that it may be stale"
    before = Agent(makes_token=True)
    port = before.port
    before.kill()
    left = f"/run/wsync/{port}.token"
    at_end(lambda: os.unlink(left))
    token = unique("token")
    with open(token, "w") as f:
        f.write("the-token-of-another-agent\n")
    agent = Agent("--token-file", token, port=port)
    mount = Mount(agent.url)
    wait_for(lambda: left in mount.text("status"), "the mount's error", 60)
    assert "may have left" in mount.text("status") and "the-token" not in mount.text("status"), mount.text("status")


def test_strange_agent():
    "names that an agent makes up move no cursor, and one that is cut within a character is listed"
    mounts = [{"mount": "\x1b[2Jh:/x\nok", "age": 0}, {"mount": "a" + "\u00e9" * 200 + ":/x", "age": 0}]
    body = json.dumps({"models": [{"name": "\x1b[31mactor", "mounts": mounts}]}).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
    at_end(server.server_close)
    at_end(server.shutdown)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    said = wsync("doctor", "--fleet", "--agent", url, check=False).stdout
    assert "actor" in said and "\x1b" not in said and len(said.splitlines()) == 3, said
    assert len(json.loads(wsync("doctor", "--fleet", "--json", "--agent", url, check=False).stdout)["checks"]) == 3
