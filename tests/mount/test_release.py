# beside others
# sanitizers: thread
# timeout: 600, takes: 110
"""Fleets: releases in two phases over several mounts, late joiners, lost mounts, engines that span mounts or are driven by a framework."""
import http.server
import signal
import subprocess
import threading
import time
import urllib.error

from world import *

SILENT = 15  # seconds after which a mount counts as lost


class Fleet:
    """An agent with versions 1 and 2 of actor; mounts n0, n1, ... that follow, with an engine each; 1 is released."""

    def __init__(self, n, models=("actor",), tensors=MEDIUM):
        need_fuse()
        self.agent = Agent()
        self.folders = {v: checkpoint(tensors, seed=v) for v in (1, 2, 3)}
        self.models = models
        for model in models:
            self.agent.publish(model, 1, self.folders[1])
        self.mounts, self.engines = [], []
        for i in range(n):
            self.add(f"n{i}")
        if n:
            self.release(1)
        else:
            self.agent.ask("/v1/actor/1/release")
        for model in models:
            self.agent.publish(model, 2, self.folders[2])

    def add(self, host, follow=True):
        mount = Mount(self.agent.url, f"host={host}")
        self.mounts.append(mount)
        for model in self.models:
            mount.wait_version(model, 1)
            engine = Engine(self.folders[1])
            self.engines.append(engine)
            mount.write(f"engine add e sglang {engine.url}", f"{model}/ctl")
            if follow:
                mount.write("follow", f"{model}/policy")
        wait_for(lambda: self.stands(host)["engines"] == 1 and self.stands(host)["follows"] == follow, f"{host} registers")
        return mount

    def stands(self, host, model="actor"):
        found = [m for m in self.agent.get(f"/v1/{model}/mounts") if m["mount"].startswith(host + ":")]
        return found[0] if found else {"engines": 0, "follows": None}

    def command(self, *args, wait=30):
        return [WSYNC, "release", "--agent", self.agent.url, "--wait", str(wait * SLOW), *map(str, args)]

    def release(self, version, wait=30, good=True):
        words = [f"{m}={version}" for m in self.models] if len(self.models) > 1 else ["actor", version]
        done = subprocess.run(self.command(*words, wait=wait), capture_output=True, text=True, timeout=240)
        assert (done.returncode == 0) == good, done.stdout + done.stderr
        return done.stdout + done.stderr

    def serve(self, mounts=None):
        return [m.text("actor/version").strip() for m in (self.mounts if mounts is None else mounts)]


def test_release():
    "a release switches every mount that follows, and nothing moves before it"
    fleet = Fleet(3)
    manual = fleet.add("manual", follow=False)
    time.sleep(1)
    assert fleet.serve(fleet.mounts[:3]) == ["1"] * 3
    out = fleet.release(2)
    assert "released: 3 mounts, 3 engines serve it" in out, out
    assert fleet.serve(fleet.mounts[:3]) == ["2"] * 3 and fleet.serve([manual]) == ["none"]
    assert [e.serves() for e in fleet.engines[:3]] == ["2"] * 3
    assert fleet.stands("n1")["loaded"]["version"] == 2
    fleet.release(1)  # and back
    assert fleet.serve(fleet.mounts[:3]) == ["1"] * 3
    late = fleet.add("late")  # it serves the released version, not the one published last
    wait_for(lambda: fleet.serve([late]) == ["1"], "the late one")
    assert late.text("actor/policy") == "follow-released\n"


def test_there_and_back():
    "a release of a mount's former version while its engine still loads another is complete only when the engine serves the former one again"
    fleet = Fleet(1)
    mount, engine = fleet.mounts[0], fleet.engines[0]
    engine.end()
    fleet.engines[0] = Engine(fleet.folders[1], "--slow", "3000", port=engine.port)
    fleet.release(2)
    wsync("release", "--agent", fleet.agent.url, "actor", 1)
    wait_for(lambda: mount.text("actor/events").count("paused model=actor version=1 engine=e") > 1, "the load of 1")
    out = fleet.release(2)
    assert "released: 1 mount, 1 engine serves it" in out, out
    events = mount.text("actor/events")
    switched = [line.split("version=")[1].split()[0] for line in events.splitlines() if "switched model=actor" in line]
    assert switched == ["1", "2", "1", "2"] and fleet.engines[0].serves() == "2", events
    assert "released: 1 mount, 1 engine serves it" in fleet.release(2)  # it has nothing to do, and reports so
    assert wsync("wait", "actor", 2, "--loaded", "all", "--timeout", 0, "--agent", fleet.agent.url).returncode == 0


def test_without_engines():
    "a mount that has the version but no engine does not count as serving it"
    need_fuse()
    agent = Agent()
    folder = checkpoint(SMALL)
    agent.publish("actor", 1, folder)
    release = lambda: wsync("release", "--agent", agent.url, "--wait", 30 * SLOW, "actor", 1).stdout
    mounts = [Mount(agent.url, f"host=n{i}") for i in range(2)]
    for i, mount in enumerate(mounts):
        mount.wait_version("actor", 1)
        mount.write("follow", "actor/policy")
        wait_for(lambda: sum(m["follows"] for m in agent.get("/v1/actor/mounts")) == i + 1, "the mount's word")
        out = release()
        assert f"released: {i + 1} mount{'s have' if i else ' has'} it after" in out and "no engine is attached" in out, out
        assert wsync("wait", "--loaded", i + 1, "--timeout", 0, "--agent", agent.url, "actor", 1).returncode == 0
    engine = Engine(folder)
    mounts[1].write(f"engine add e sglang {engine.url}", "actor/ctl")
    wait_for(lambda: sum(m["engines"] for m in agent.get("/v1/actor/mounts")) == 1, "the engine's word")
    out = release()
    assert "released: 1 mount, 1 engine serves it after" in out and "1 more has it, and no engine attached" in out, out


def test_aborted():
    "a version that one mount cannot prepare is not committed on any; the error names the mount and the reason"
    fleet = Fleet(2)
    tensors = dict(MEDIUM)
    tensors.pop(sorted(tensors)[0])
    fleet.agent.publish("actor", 3, checkpoint(tensors, seed=3))
    before = [e.ask("/model_info") for e in fleet.engines]
    out = fleet.release(3, good=False)
    assert "aborted" in out and "cannot take actor/3" in out and sorted(MEDIUM)[0] in out, out
    assert fleet.serve() == ["1", "1"] and [e.ask("/model_info") for e in fleet.engines] == before
    # the first mount that fails ends the release for the others too, before or after their preflight
    assert any("EPROTO" in m.text("actor/last_error") for m in fleet.mounts)
    fleet.release(2)
    assert fleet.serve() == ["2", "2"]


def test_failed_after_commit():
    """an engine that fails after the commit leaves its mount on the previous version, named, until it is repaired; a dead engine is noticed before
    the commit"""
    fleet = Fleet(2)
    fleet.engines[1].end()
    fleet.engines[1] = Engine(fleet.folders[1], "--refuse", "2", port=fleet.engines[1].port)
    out = fleet.release(2, good=False)
    assert "1 mounts serve it, 1 could not load it" in out and "n1:" in out, out
    assert fleet.serve() == ["2", "1"]
    fleet.engines[1].end()  # its engine is repaired: it carries out the release by itself
    fleet.engines[1] = Engine(fleet.folders[1], port=fleet.engines[1].port)
    wait_for(lambda: fleet.serve() == ["2", "2"], "the second attempt", 40)
    fleet.engines[0].kill()  # a dead engine is noticed before the commit
    fleet.agent.publish("actor", 3, fleet.folders[3])
    out = fleet.release(3, good=False)
    assert "aborted" in out and "n0:" in out and "does not answer" in out, out
    assert fleet.serve() == ["2", "2"] and fleet.engines[1].serves() == "2"
    fleet.engines[0] = Engine(fleet.folders[1], port=fleet.engines[0].port)
    fleet.release(3)
    assert fleet.serve() == ["3", "3"]
    assert fleet.mounts[0].refused("2", "actor/version") == "EPERM"
    assert "set the policy to manual" in fleet.mounts[0].text("actor/last_error")


def test_min_engines():
    "a release that asks for more engines than have prepared it is aborted at its deadline, and one that asks for fewer names them"
    fleet = Fleet(2)
    done = subprocess.run([*fleet.command("--min-engines", 3, wait=2), "actor", "2"], capture_output=True, text=True, timeout=120)
    assert done.returncode and "2 engines are at the mounts that have prepared it, and 3 are asked for" in done.stderr, done.stderr
    assert fleet.serve() == ["1", "1"]
    done = subprocess.run([*fleet.command("--min-engines", 2), "actor", "2"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "released: 2 mounts, 2 engines serve it" in done.stdout, done.stdout + done.stderr
    for words in (("--min-engines", "0"), ("--quorum", "0"), ("--quorum", "101%"), ("--quorum", "most")):
        assert wsync("release", *words, "actor", 2, check=False).returncode == 2, words


def test_quorum():
    "with a quorum the release goes on without an engine that refuses and a mount that stands still: they are named, and paused rather than serve what is older"
    fleet = Fleet(4)
    fleet.engines[3].end()
    fleet.engines[3] = Engine(fleet.folders[1], "--refuse", "2", port=fleet.engines[3].port)
    wait_for(lambda: fleet.mounts[3].engines()["e"].startswith("serving"), "the engine's state")
    done = subprocess.run([*fleet.command("--quorum", "80%"), "actor", "2"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "fewer serve it than --quorum asks for" in done.stderr, done.stdout + done.stderr
    assert "in quarantine" in done.stderr and "n3:" in done.stderr and "refuse" in done.stderr, done.stderr
    done = subprocess.run([*fleet.command("--quorum", "70%"), "actor", "2"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "released: 3 mounts, 3 engines serve it" in done.stdout, done.stdout + done.stderr
    assert fleet.serve() == ["2", "2", "2", "1"] and fleet.engines[3].serves() != "2"
    wait_for(lambda: fleet.mounts[3].engines()["e"].startswith("paused"), fleet.mounts[3].text("actor/engines"))
    assert not fleet.engines[3].is_ready()
    wait_for(lambda: fleet.mounts[3].status("actor")["quarantined"] == "yes", "the quarantine in the status")
    assert fleet.mounts[0].status("actor")["quarantined"] == "no"
    assert "quarantined model=actor version=1 engines=1" in fleet.mounts[3].text("actor/events")
    fleet.engines[3].end()  # it is repaired, and comes back on what is older: it is brought along
    fleet.engines[3] = Engine(fleet.folders[1], port=fleet.engines[3].port)
    wait_for(lambda: fleet.serve() == ["2"] * 4 and fleet.engines[3].serves() == "2" and fleet.engines[3].is_ready(), "the last one", 60)
    assert fleet.mounts[3].status("actor")["quarantined"] == "no"

    fleet.agent.publish("actor", 3, fleet.folders[3])
    suspend(fleet.mounts[0].pid)
    try:
        done = subprocess.run([*fleet.command("--quorum", "75%", wait=16), "actor", "3"], capture_output=True, text=True, timeout=120)
    finally:
        os.kill(fleet.mounts[0].pid, signal.SIGCONT)
    assert done.returncode == 0 and "n0:" in done.stderr and "released: 3 mounts, 3 engines serve it" in done.stdout, done.stdout + done.stderr
    wait_for(lambda: fleet.serve() == ["3"] * 4 and all(e.serves() == "3" and e.is_ready() for e in fleet.engines), "the one that stood still", 60)
    suspend(fleet.mounts[0].pid)
    try:
        done = subprocess.run([*fleet.command("--quorum", "90%", wait=4), "actor", "2"], capture_output=True, text=True, timeout=120)
    finally:
        os.kill(fleet.mounts[0].pid, signal.SIGCONT)
    assert done.returncode and "3 of 4 engines had prepared it in time" in done.stderr and "n0:" in done.stderr.splitlines()[-1], done.stderr


def test_models():
    "several models are released together or not at all"
    fleet = Fleet(2, models=("actor", "critic"))
    fleet.release(2)
    for mount in fleet.mounts:
        assert mount.text("actor/version") == mount.text("critic/version") == "2\n"
    fleet.agent.publish("actor", 3, fleet.folders[3])
    fleet.agent.publish("critic", 3, checkpoint({"other": ("BF16", [4, 4])}))
    out = fleet.release(3, good=False)
    assert "aborted" in out and "critic/3" in out, out
    for mount in fleet.mounts:
        assert mount.text("actor/version") == mount.text("critic/version") == "2\n"


def test_silent():
    "a killed mount is left out after its lease, named, and catches up when it is back"
    fleet = Fleet(2)
    lost = fleet.mounts[1]
    lost.kill()
    subprocess.run(["umount", "-l", lost.path], check=True)
    start = time.monotonic()
    out = fleet.release(2, wait=60)
    assert "left out" in out and "n1:" in out and "released: 1 mount, 1 engine serves it" in out, out
    assert time.monotonic() - start < (SILENT + 10) * SLOW
    assert fleet.serve(fleet.mounts[:1]) == ["2"]
    assert fleet.stands("n1")["silent"]
    again = Mount(fleet.agent.url, "host=n1", path=lost.path)
    again.wait_version("actor", 2)
    wait_for(lambda: fleet.serve([again]) == ["2"], "the one that is back")
    wait_for(lambda: fleet.engines[1].serves() == "2", "its engine")
    wait_for(lambda: not fleet.stands("n1")["silent"], "the agent's word of it")


def test_deadline_and_interrupt():
    "a mount that is not ready in time aborts the release for all, as do ^C and SIGTERM; a newer release replaces an older one"
    fleet = Fleet(1, tensors=LARGE)  # of seven blocks
    slow = Mount("fault:delay=1200:" + fleet.agent.url, "host=slow,streams=1,delta-cache=0")
    slow.wait_version("actor", 2)
    slow.write("follow", "actor/policy")
    wait_for(lambda: fleet.stands("slow")["follows"], "the slow one registers")
    wait_for(lambda: fleet.serve([slow]) == ["1"], "the slow one", 60)
    fleet.agent.publish("actor", 3, fleet.folders[3])
    for sig in (signal.SIGINT, signal.SIGTERM):
        p = subprocess.Popen(fleet.command("actor", 3), stderr=subprocess.PIPE, text=True)
        wait_for(lambda: fleet.agent.get("/v1/releases")[0]["phase"] == "preparing", "the release")
        p.send_signal(sig)
        code, err = p.wait(20), p.stderr.read()
        assert code == 1 and "aborted" in err, (code, err)
    p = subprocess.Popen(fleet.command("actor", 3), stderr=subprocess.PIPE, text=True)
    wait_for(lambda: fleet.agent.get("/v1/releases")[0]["phase"] == "preparing", "the release")
    out = fleet.release(2, wait=60)
    assert "released: 1 mount, 1 engine serves it" in out and "1 more has it" in out, out
    assert p.wait(20) == 1 and "a newer release" in p.stderr.read()
    assert fleet.serve() == ["2"] and fleet.serve([slow]) == ["2"]
    fleet.agent.publish("actor", 4, fleet.folders[1])
    fleet.mounts[0].wait_version("actor", 4)
    fleet.mounts[0].write("pull 4", "actor/ctl")  # the other mount takes eight seconds, on any machine
    p = subprocess.run([WSYNC, "release", "--agent", fleet.agent.url, "--wait", "4", "actor", "4"], capture_output=True,
                       text=True, timeout=60)
    assert p.returncode == 1 and "had not prepared it in time" in p.stderr, p.stderr
    assert "slow:" in p.stderr or SANITIZER, p.stderr  # one late mount is named; under a sanitizer both may be


def test_interrupt_without_answer():
    "a signal while the agent does not answer still aborts the release; if it cannot be aborted, that is reported"
    release = {"id": 7, "phase": "preparing", "settled": False, "passed": False, "why": "", "models": {}, "mounts": []}
    aborted = dict(release, phase="aborted", settled=True, why="ended")
    asked, started, reaches = [], threading.Event(), True

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, reply):
            body = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            asked.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if reaches or not self.path.endswith("/abort"):
                self.answer(aborted if self.path.endswith("/abort") else release)

        def do_GET(self):  # the agent does not answer
            started.wait(60)
            p.send_signal(signal.SIGTERM)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    at_end(server.server_close)
    at_end(server.shutdown)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for reaches in (True, False):
        started.clear()
        url = f"http://127.0.0.1:{server.server_port}"
        p = subprocess.Popen([WSYNC, "release", "--agent", url, "--wait", "600", "actor", "1"],
                             stderr=subprocess.PIPE, text=True)
        started.set()
        err = p.communicate(timeout=60 * SLOW)[1]
        assert p.returncode == 1 and ("was aborted" if reaches else "release 7 goes on without this command") in err, err
    assert asked == ["/v1/release", "/v1/releases/7/abort"] * 2, asked


def test_agent_without_answer():
    "commands do not wait long for an agent that stands still or has ended, name it, and say what to look at"
    fleet = Fleet(0)
    addresses = fleet.agent.url, "unix:" + fleet.agent.sock
    suspend(fleet.agent.pid)
    try:
        for address in addresses:
            start = time.monotonic()
            done = subprocess.run([WSYNC, "release", "--agent", address, "--wait", "4", "actor", "2"], capture_output=True, text=True, timeout=120)
            assert time.monotonic() - start < 20 * SLOW
            assert done.returncode == 1 and f"the agent at {address} does not answer: look whether its process" in done.stderr, done.stderr
    finally:
        os.kill(fleet.agent.pid, signal.SIGCONT)
    fleet.agent.end()
    for command in ("release", "actor", "2"), ("topology", "actor"), ("wait", "actor", "2", "--loaded", "all"):
        for address, says in zip(addresses, ("does 'wsync agent --listen' run there", "running?")):
            done = wsync(command[0], "--agent", address, *command[1:], check=False)
            assert done.returncode == 1 and address.rsplit("/", 1)[1] in done.stderr and says in done.stderr, done.stderr


def test_wait_loaded():
    "wait --loaded all, N or a name returns when the fleet serves the version, and names the mounts that do not"
    fleet = Fleet(2)
    wait = lambda who, v, t: subprocess.run([WSYNC, "wait", "--agent", fleet.agent.url, "--loaded", who, "--timeout",
                                             str(t), "actor", str(v)], capture_output=True, text=True, timeout=60)
    for mount in fleet.mounts:
        mount.write("manual", "actor/policy")
    fleet.mounts[0].write("2", "actor/version")
    assert wait("1", 2, 10 * SLOW).returncode == 0 and wait("n0", 2, 10 * SLOW).returncode == 0
    for who in ("all", "2", "n1", "nobody"):
        p = wait(who, 2, 1)
        assert p.returncode == 1 and "is not loaded after 1 s" in p.stderr, p.stderr
    assert "n1:" in wait("all", 2, 1).stderr
    fleet.mounts[1].write("2", "actor/version")
    for who in ("all", "2", "n1", f"n1:{fleet.mounts[1].path}"):
        assert wait(who, 2, 10 * SLOW).returncode == 0, who


def test_agent_restarts():
    "a restarted agent learns the mounts' states again, at once; an unmounted mount leaves its list"
    fleet = Fleet(2)
    for _ in range(4):
        fleet.agent.end()
        fleet.agent = Agent(port=fleet.agent.port)
        fleet.agent.publish("actor", 2, fleet.folders[2])
        start = time.monotonic()
        wait_for(lambda: all(fleet.stands(h)["follows"] for h in ("n0", "n1")), "the mounts' word")
        assert time.monotonic() - start < 4 * SLOW, "only the next poll brought it"
    fleet.agent.publish("actor", 3, fleet.folders[3])
    for mount in fleet.mounts:
        mount.wait_version("actor", 3)
    fleet.release(2)
    assert fleet.serve() == ["2", "2"]
    for mount in fleet.mounts:  # never released, by the previous agents neither
        events = mount.text("actor/events")
        assert "release-kept model=actor version=1" in events and events.count("switched model=actor") == 2, events
    fleet.mounts[1].end()
    wait_for(lambda: fleet.stands("n1")["follows"] is None, "its leaving")
    assert "released: 1 mount, 1 engine serves it" in fleet.release(2)


def test_two_words():
    "follow-released waits for a release and follow-published does not take part in it; follow is written out as what it means, over a restart too"
    need_fuse()
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    mounts = {word: Mount(agent.url, f"host={word}") for word in ("follow-released", "follow-published", "follow")}
    for word, mount in mounts.items():
        mount.wait_version("actor", 1)
        mount.write(word, "actor/policy")

    def serve():
        return {word: mount.text("actor/version").strip() for word, mount in mounts.items()}

    wait_for(lambda: serve() == {"follow-released": "none", "follow-published": "1", "follow": "1"}, "what is published")
    assert mounts["follow"].text("actor/policy") == "follow-published until=release\n"
    assert "policy-unclear model=actor" in mounts["follow"].text("actor/events")
    assert not any("policy-unclear" in mounts[w].text("actor/events") for w in ("follow-released", "follow-published"))
    mounts["follow"].kill()
    subprocess.run(["umount", "-l", mounts["follow"].path], check=True)
    mounts["follow"] = Mount(agent.url, "host=follow", path=mounts["follow"].path)
    mounts["follow"].wait_version("actor", 1)
    wait_for(lambda: mounts["follow"].text("actor/policy") == "follow-published until=release\n", "its settings")
    follows = {"follow-released:": True, "follow-published:": False, "follow:": True}
    wait_for(lambda: {m["mount"].split("/")[0]: m["follows"] for m in agent.get("/v1/actor/mounts")} == follows, "their words")
    agent.publish("actor", 2, checkpoint(SMALL, seed=2))
    wait_for(lambda: serve() == {"follow-released": "none", "follow-published": "2", "follow": "2"}, "what is published")
    wsync("release", "--agent", agent.url, "--wait", 30, "actor", 1)
    assert serve() == {"follow-released": "1", "follow-published": "2", "follow": "1"}
    wait_for(lambda: mounts["follow"].text("actor/policy") == "follow-released\n", "what follow means now")
    agent.publish("actor", 3, checkpoint(SMALL, seed=3))
    wait_for(lambda: serve()["follow-published"] == "3", "what is published")
    assert serve() == {"follow-released": "1", "follow-published": "3", "follow": "1"}
    assert mounts["follow-released"].refused("follow-released every=2", "actor/policy") == "EINVAL"
    assert mounts["follow-released"].refused("follow-released until=release", "actor/policy") == "EINVAL"
    mounts["follow"].write("follow", "actor/policy")  # no longer unclear
    assert mounts["follow"].text("actor/policy") == "follow-released\n"
    assert mounts["follow"].text("actor/events").count("policy-unclear") == 0


def test_releases_end():
    "a restarted trainer that releases nothing is followed once an operator has set the policy to manual and back"
    fleet = Fleet(1)
    mount = fleet.mounts[0]
    fleet.agent.end()
    fleet.agent = Agent(port=fleet.agent.port)
    fleet.agent.publish("actor", 2, fleet.folders[2])
    wait_for(lambda: "release-kept" in mount.text("actor/events"), "the new agent's word")
    mount.wait_version("actor", 2)
    assert mount.refused("2", "actor/version") == "EPERM"
    mount.kill()
    subprocess.run(["umount", "-l", mount.path], check=True)
    mount = Mount(fleet.agent.url, "host=n0", path=mount.path)  # restarted, too
    mount.wait_version("actor", 2)
    wait_for(lambda: "release-kept" in mount.text("actor/events"), "the new mount's word")
    assert mount.refused("2", "actor/version") == "EPERM" and mount.text("actor/version") != "2\n"
    mount.write("follow every=1", "actor/policy")
    assert mount.text("actor/version") != "2\n"
    mount.write("manual", "actor/policy")
    mount.write("follow", "actor/policy")
    wait_for(lambda: mount.text("actor/version") == "2\n", "what is published")


def test_bad_requests():
    "wrong requests get a status and a message"
    need_fuse()
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))

    def post(path, body):
        request = urllib.request.Request(agent.url + path, data=body.encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=20) as r:
                return r.status, json.load(r)
        except urllib.error.HTTPError as e:
            return e.code, json.load(e)

    for path, body, status, word in (
            ("/v1/release", "{}", 400, "models"),
            ("/v1/release", '{"models":{"actor":"1"}}', 400, "number"),
            ("/v1/release", '{"models":{"actor":-1}}', 400, "number"),
            ("/v1/release", '{"models":{"nobody":1}}', 404, "nobody"),
            ("/v1/release", '{"models":{"actor":2}}', 404, "newest is 1"),
            ("/v1/actor/1/release", '{"prepare_s":0}', 400, "prepare_s"),
            ("/v1/actor/mounts", "{}", 400, "HOST"),
            ("/v1/actor/mounts", '{"mount":"%s"}' % ("x" * 600), 400, "HOST"),
            ("/v1/actor/mounts", '{"mount":"a:/m","follows":true,"engines":%d}' % (1 << 62), 400, "engines"),
            ("/v1/actor/1/prepared", '{"mount":"a:/m","engines":1025}', 400, "engines"),
            ("/v1/actor/1/loaded", "[]", 400, "HOST"),
            ("/v1/actor/1/wanted", '{"mounts":[1]}', 400, "names"),
            ("/v1/actor/1/wanted", '{"mounts":[]}', 400, "mounts"),
            ("/v1/actor/1/eaten", "{}", 404, "no POST"),
            ("/v1/releases/12/abort", "", 404, "no such release"),
            ("/v1/releases/x", "", 404, "no POST"),
            ("/v1/release", "{", 400, "JSON")):
        got, reply = post(path, body)
        assert got == status and word in reply["error"], (path, body, got, reply)
    status, reply = post("/v1/actor/1/release", "{}")
    assert status == 200 and reply["phase"] == "committed" and reply["settled"], reply
    assert post(f"/v1/releases/{reply['id']}/abort", "")[0] == 409
    p = subprocess.run([WSYNC, "release", "--agent", agent.url, "--wait", "5", "actor", "1"], capture_output=True, text=True)
    assert p.returncode == 1 and "none that follows releases" in p.stderr, p.stderr
    for words in (["actor"], ["actor", "x"], ["actor=1", "actor=1"], ["actor=1", "critic"]):
        p = subprocess.run([WSYNC, "release", "--agent", agent.url, *words], capture_output=True, text=True)
        assert p.returncode == 2, (words, p.stderr)
    p = subprocess.run([WSYNC, "release", "--agent", "http://127.0.0.1:1", "actor", "1"], capture_output=True, text=True)
    assert p.returncode == 1 and "cannot ask" in p.stderr, p.stderr


def test_external():
    "engines that a framework drives: follow stages, the mount drives nothing, `loaded` moves current and reaches the agent"
    fleet = Fleet(0)
    mount = Mount(fleet.agent.url, "host=ext")
    mount.wait_version("actor", 2)
    mount.write("engine add a external", "actor/ctl")
    mount.write("engine add b external", "actor/ctl")
    assert mount.refused("engine add c sglang http://127.0.0.1:1", "actor/ctl") in ("EHOSTUNREACH", "EINVAL")
    assert mount.refused("engine add c external http://x", "actor/ctl") == "EINVAL"
    assert mount.refused("2", "actor/version") in ("EOPNOTSUPP", "ENOTSUP") and "loaded 2" in mount.text("actor/last_error"), mount.text("actor/last_error")
    assert mount.refused("loaded 2", "actor/ctl") == "ENODATA"
    mount.write("follow", "actor/policy")
    wait_for(lambda: "staged model=actor version=1" in mount.text("actor/events"), "the released version is staged")
    assert mount.text("actor/version") == "none\n"
    mount.write("loaded 1 engine=a", "actor/ctl")
    assert mount.text("actor/version") == "none\n" and mount.engines()["a"].startswith("serving 1 external")
    mount.write("loaded 1 engine=b", "actor/ctl")
    assert mount.text("actor/version") == "1\n"
    wait_for(lambda: fleet.stands("ext")["loaded"] and fleet.stands("ext")["loaded"]["version"] == 1, "the report")
    release = subprocess.Popen(fleet.command("actor", 2), stdout=subprocess.PIPE, text=True)
    wait_for(lambda: "staged model=actor version=2" in mount.text("actor/events"), "version 2 is staged")
    mount.write("loaded 2", "actor/ctl")
    assert release.wait(20) == 0 and "1 mount, 2 engines serve it" in release.stdout.read()
    assert mount.refused("loaded 2 engine=x", "actor/ctl") == "ENOENT"


def test_peer_mounts():
    "an engine that reads other mounts too is paused only once they have the version; an unknown mount's name is reported"
    need_fuse()
    agent = Agent()
    folders = {v: checkpoint(MEDIUM, seed=v) for v in (1, 2)}
    for v in (1, 2):
        agent.publish("actor", v, folders[v])
    head, other, third = (Mount(agent.url, f"host={h}") for h in ("head", "node2", "node3"))
    for m in (head, other, third):
        m.wait_version("actor", 2)
    engine = Engine(folders[1])
    head.write(f"engine add tp sglang {engine.url} mounts=node2,node3:{third.path}", "actor/ctl")
    head.write("2", "actor/version")
    for m in (other, third):
        assert m.text("actor/2/.wsync/state").split()[0] in ("ready", "active"), m.text("actor/2/.wsync/state")
        assert m.text("actor/version") == "none\n"
    assert engine.serves() == "2"
    head.write("engine remove tp", "actor/ctl")
    head.write(f"engine add tp sglang {engine.url} mounts=nobody", "actor/ctl")
    before = engine.ask("/model_info")
    assert head.refused("1 deadline=2", "actor/version") == "ETIMEDOUT"
    assert "nobody" in head.text("actor/last_error") and engine.ask("/model_info") == before
    assert "paused" not in head.text("actor/events").split("errno=ETIMEDOUT")[0].split("switched")[-1]


def test_slow_following():
    "every= and min-interval= delay following; versions in between are skipped"
    need_fuse()
    agent = Agent()
    folders = [checkpoint(SMALL, seed=v) for v in range(6)]
    mount = Mount(agent.url)
    agent.publish("actor", 1, folders[1])
    mount.wait_version("actor", 1)
    for bad in ("follow every=0", "follow every=x", "pull every=2", "manual min-interval=3", "follow min-interval=-1"):
        assert mount.refused(bad, "actor/policy") == "EINVAL", bad
    mount.write("follow every=3", "actor/policy")
    assert mount.text("actor/policy") == "follow-published until=release every=3\n"
    wait_for(lambda: mount.text("actor/version") == "1\n", "the first version")
    for v in (2, 3):
        agent.publish("actor", v, folders[v])
        mount.wait_version("actor", v)
    time.sleep(1)
    assert mount.text("actor/version") == "1\n"
    agent.publish("actor", 4, folders[4])
    wait_for(lambda: mount.text("actor/version") == "4\n", "version 4")
    mount.write("follow min-interval=600", "actor/policy")
    agent.publish("actor", 5, folders[5])
    mount.wait_version("actor", 5)
    time.sleep(1)
    assert mount.text("actor/version") == "4\n"
    mount.write("follow min-interval=1", "actor/policy")
    wait_for(lambda: mount.text("actor/version") == "5\n", "version 5")
