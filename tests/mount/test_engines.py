# beside others
# sanitizers: address
# timeout: 720, takes: 200
"""Kinds of engines in a switch: vLLM's and SGLang's failures, both together, and servers described by templates."""
import contextlib
import http.server
import os
import shutil
import threading

from between import Between
from world import *


def world():
    need_fuse()
    agent = Agent()
    folders = {v: checkpoint(MEDIUM, seed=v) for v in (1, 2)}
    for v, f in folders.items():
        agent.publish("actor", v, f)
    mount = Mount(agent.url)
    mount.wait_version("actor", 2)
    return agent, mount, folders


def add(mount, name, engine, options=""):
    mount.write(f"engine add {name} {engine.api} {engine.url} {options}", "actor/ctl")


def sums_of(folders, api):
    return {v: Engine(f, api=api).checksum() for v, f in folders.items()}


def test_vllm():
    "vLLM: switch and back in every pause mode, the recorded version follows, requests during a pause wait for its end"
    _, mount, folders = world()
    sums = sums_of(folders, "vllm")
    engine = Engine(folders[1], api="vllm")
    for mode in ("keep", "wait", "abort"):
        add(mount, "e", engine, f"pause={mode}")
        for version in (2, 1):
            mount.write(str(version), "actor/version")
            assert engine.serves() == str(version) and engine.checksum() == sums[version]
            assert not engine.is_paused() and engine.generate()["object"] == "text_completion"
        mount.write("engine remove e", "actor/ctl")
    assert mount.refused(f"engine add e vllm {engine.url} pause=retract", "actor/ctl") == "EINVAL"
    assert "keep, wait, abort" in mount.text("actor/last_error")


def stale(engine):
    "Which of the engine's caches hold values of other weights, as a request finds them."
    answer = engine.generate()
    return answer.get("stale_cache") or answer["meta_info"]["stale_cache"]


def test_caches():
    "cache=: caches of old weights are flushed before the resume; retried while requests block it, else everything is rolled back"
    _, mount, folders = world()
    cases = [("sglang", "", False, True), ("sglang", "cache=external", False, False), ("sglang", "cache=keep", True, True),
             ("sglang", "pause=in_place cache=external", True, False), ("sglang", "pause=abort", False, True),
             ("vllm", "pause=keep", False, True), ("vllm", "pause=wait cache=external", False, False),
             ("vllm", "cache=keep", True, True)]
    for api, options, local, external in cases:
        engine = Engine(folders[1], "--busy", "4", api=api)
        assert stale(engine) == {"local": False, "external": False}
        add(mount, "e", engine, options)
        mount.write("2", "actor/version")
        assert stale(engine) == {"local": local, "external": external}, (api, options, stale(engine))
        mount.write("engine remove e", "actor/ctl")
        engine.end()
    assert "flushed model=actor version=2 engine=e" in mount.text("actor/events")
    mount.write("1", "actor/version")
    for api in ("sglang", "vllm"):
        engine, other = Engine(folders[1], "--busy", "1000000", api=api), Engine(folders[1], api=api)
        before = engine.checksum()
        add(mount, "e", engine, "pause-timeout=1")
        add(mount, "f", other)
        assert mount.refused("2", "actor/version") == "EREMOTEIO"
        assert "did not empty its caches for version 2" in mount.text("actor/last_error"), mount.text("actor/last_error")
        assert engine.checksum() == before == other.checksum() and other.generate()
        assert mount.engines()["e"].startswith("paused"), mount.engines()  # old weights with keys and values of new ones: not resumed
        for e in ("e", "f"):
            wait_for(lambda: removed(mount, e), f"{e} to be removed")


def removed(mount, engine):
    """Removes the engine, when the mount is not reconciling it."""
    try:
        mount.write(f"engine remove {engine}", "actor/ctl")
    except OSError as e:
        assert e.errno == errno.EBUSY, e
        return False
    return True


def test_vllm_reload_fails():
    "vLLM loses its weights in a failed reload: the old ones are loaded back before it is resumed"
    _, mount, folders = world()
    engine = Engine(folders[1], "--refuse", "2", "--realistic", api="vllm")
    add(mount, "e", engine)
    before = engine.checksum()
    assert mount.refused("2", "actor/version") == "EREMOTEIO"
    assert "Refused" in mount.text("actor/last_error") and "every engine was brought back" in mount.text("actor/last_error")
    assert mount.engines()["e"].startswith("serving default"), mount.engines()
    assert not engine.is_paused() and engine.checksum() == before
    engine.generate()  # would end a vLLM without weights
    assert engine.alive()


def test_vllm_is_broken():
    "if the rollback fails too, the engine is shown as broken and never resumed; a version that it can load repairs it"
    _, mount, folders = world()
    start = checkpoint(MEDIUM, seed=9)
    engine = Engine(start, "--refuse", "2", "--realistic", api="vllm")
    add(mount, "e", engine)
    shutil.rmtree(start)
    assert mount.refused("2", "actor/version") == "EREMOTEIO"
    assert mount.engines()["e"].startswith("broken"), mount.engines()
    assert "restart it" in mount.engines()["e"]
    assert "not brought back, and left as `engines` says: e" in mount.text("actor/last_error"), mount.text("actor/last_error")
    assert engine.is_paused()
    mount.write("1", "actor/version")
    assert mount.engines()["e"].startswith("serving 1") and not engine.is_paused()
    engine.generate()
    assert engine.alive()


def fleet_that_fails(start, api="vllm"):
    "No version is current. e0 is a vLLM that refuses 2 and can go back to `start` only while that is there; e1 refuses 1."
    _, mount, _ = world()
    first = Engine(start, "--refuse", "2", "--realistic", api=api)
    other = Engine(checkpoint(MEDIUM, seed=8), "--refuse", "1", "--realistic", api="vllm")
    add(mount, "e0", first)
    add(mount, "e1", other)
    return mount, first, other


def runs_as_before(mount, name, engine, before):
    assert mount.engines()[name].startswith("serving default "), mount.engines()
    assert engine.generate() and engine.checksum() == before and engine.alive()  # a paused one would hold the request


def test_broken_goes_back_to_its_start():
    """without a current version, an engine that an earlier switch left broken loads the next version, and another engine fails: it goes back to what
    it was started on and runs, or is broken; it is never left paused on a version that no other serves"""
    for api in ("vllm", "sglang"):
        with scope():
            broken_goes_back(api)


def broken_goes_back(api):
    start = checkpoint(MEDIUM, seed=9)
    mount, first, other = fleet_that_fails(start, api)
    before = first.checksum()
    os.rename(start, start + ".away")
    assert mount.refused("2", "actor/version") == "EREMOTEIO"
    assert mount.engines()["e0"].startswith("broken "), mount.engines()
    assert mount.refused("1", "actor/version") == "EREMOTEIO"
    assert mount.engines()["e0"].startswith("broken "), mount.engines()
    assert first.is_paused() if api == "vllm" else not first.is_ready()
    os.rename(start + ".away", start)
    assert mount.refused("1", "actor/version") == "EREMOTEIO"
    runs_as_before(mount, "e0", first, before)
    assert "every engine was brought back" in mount.text("actor/last_error"), mount.text("actor/last_error")
    assert not other.is_paused() and other.generate()


def test_broken_and_restarted():
    "a broken vLLM is restarted, on another folder; the next switch fails, before or after its load: it runs on that folder, and is not left paused"
    for last in ("1", "2"):
        with scope():
            start = checkpoint(MEDIUM, seed=9)
            mount, first, other = fleet_that_fails(start)
            shutil.rmtree(start)
            assert mount.refused("2", "actor/version") == "EREMOTEIO"
            assert mount.engines()["e0"].startswith("broken "), mount.engines()
            first.kill()
            anew = Engine(checkpoint(MEDIUM, seed=10), "--realistic", api="vllm", port=first.port)
            before = anew.checksum()
            if last == "2":  # it fails at the pause, so that e0 is told no load
                other.kill()
                Engine(checkpoint(MEDIUM, seed=8), "--die-at", "pause", api="vllm", port=other.port)
            assert mount.refused(last, "actor/version") in ("EREMOTEIO", "EHOSTUNREACH", "ECONNRESET")
            runs_as_before(mount, "e0", anew, before)


def test_no_way_back_and_no_current():
    "without a current version, a server that cannot say what it served is left paused by a switch that fails: the words say how long"
    _, mount, folders = world()
    engine, other = Engine(folders[1]), Engine(folders[2], "--refuse", "1", api="vllm")
    load = 'load=POST:/update_weights_from_disk:{"model_path":"{path}"}'
    mount.write(f"engine add r remote {engine.url} {load} pause=POST:/pause_generation:{{}} resume=POST:/continue_generation", "actor/ctl")
    add(mount, "e", other)
    assert mount.refused("1", "actor/version") == "EREMOTEIO"
    said = mount.engines()["r"]
    assert said.startswith("paused ") and "until a switch succeeds" in said and "brought along" not in said, said
    mount.write("2", "actor/version")
    assert mount.engines()["r"].startswith("serving 2 ") and engine.generate()


def test_paused_and_resumed_by_hand():
    "an engine that another program pauses and resumes is shown as it says, whether a version is current or not"
    _, mount, folders = world()
    both = {api: Engine(folders[1], api=api) for api in ("vllm", "sglang")}
    ways = {"paused": {"vllm": "/pause", "sglang": "/pause_generation"}, "serving": {"vllm": "/resume", "sglang": "/continue_generation"}}
    for api, engine in both.items():
        engine.ask(ways["paused"][api], {})
        add(mount, api, engine)
        assert mount.engines()[api].startswith("paused default "), mount.engines()
    for state in 2 * ("serving", "paused"):
        for api, engine in both.items():
            engine.ask(ways[state][api], {})
        for api in both:
            wait_for(lambda: mount.engines()[api].startswith(f"{state} default "), f"{api}: {state}, to be noticed", 60)


def test_left_paused_then_restarted():
    "without a current version, an engine that a failed switch left paused is restarted: it is shown as serving, and the next failing switch resumes it"
    start = checkpoint(MEDIUM, seed=9)
    mount, first, other = fleet_that_fails(start)
    late = Late(first)
    mount.write("engine remove e0", "actor/ctl")
    add(mount, "e0", late)
    late.before["/resume"] = first.kill  # after the load on the way back
    assert mount.refused("1", "actor/version") == "EREMOTEIO"
    assert mount.engines()["e0"].startswith("unknown "), mount.engines()
    anew = Engine(start, "--realistic", api="vllm", port=first.port)
    before = anew.checksum()
    wait_for(lambda: mount.engines()["e0"].startswith("serving default "), "the engine to be noticed", 60)
    other.kill()
    Engine(checkpoint(MEDIUM, seed=8), "--die-at", "pause", api="vllm", port=other.port)
    assert mount.refused("2", "actor/version") in ("EHOSTUNREACH", "ECONNRESET")
    runs_as_before(mount, "e0", anew, before)


def test_wrong_prefix():
    """an engine that cannot see the mount's paths fails load and rollback, and is shown as broken with the prefix= that would help; another version
    repairs it"""
    _, mount, folders = world()
    engine = Engine(folders[1], "--realistic", api="vllm")
    add(mount, "e", engine)
    mount.write("1", "actor/version")
    mount.write("engine remove e", "actor/ctl")
    add(mount, "e", engine, "prefix=/nowhere")  # vLLM does not report the path that it serves
    assert mount.refused("2", "actor/version") == "EREMOTEIO"
    said = mount.engines()["e"]
    assert said.startswith("broken ") and "is prefix=/nowhere where it sees this mount?" in said and "restart it" in said, said
    mount.write("engine remove e", "actor/ctl")
    add(mount, "e", engine)
    mount.write("2", "actor/version")
    assert engine.generate() and engine.serves() == "2" and mount.engines()["e"].startswith("serving 2 ")


def test_vllm_sleeps_on():
    "a vLLM asleep in a switch that ends before its load stays asleep, and paused; the next switch wakes it, although it cannot report it"
    _, mount, folders = world()
    asleep, dies = Engine(folders[1], api="vllm"), Engine(folders[1], "--die-at", "pause")
    add(mount, "e0", asleep)
    add(mount, "e1", dies)
    urllib.request.urlopen(urllib.request.Request(asleep.url + "/sleep", data=b"{}"), timeout=20).close()
    assert mount.refused("2", "actor/version") in ("EHOSTUNREACH", "ECONNRESET")
    assert asleep.is_paused() and asleep.serves() == "default"
    mount.write("engine remove e1", "actor/ctl")
    mount.write("2", "actor/version")
    assert asleep.serves() == "2" and not asleep.is_paused() and asleep.generate()


def test_vllm_added_anew():
    "vLLM does not report the path it loaded; one that was removed and added again still rolls back to the current version"
    _, mount, folders = world()
    engine = Engine(folders[1], "--refuse", "2", "--realistic", api="vllm")
    add(mount, "e", engine)
    mount.write("1", "actor/version")
    before = engine.checksum()
    mount.write("engine remove e", "actor/ctl")
    add(mount, "e", engine)
    assert mount.refused("2", "actor/version") == "EREMOTEIO"
    assert mount.engines()["e"].startswith("serving 1 "), mount.engines()
    assert not engine.is_paused() and engine.checksum() == before


def test_mixed():
    "one vLLM and one SGLang in a switch, either of them fails: both end on the old version"
    _, mount, folders = world()
    for bad in ("sglang", "vllm"):
        pair = {api: Engine(folders[1], *(("--refuse", "2", "--realistic") if api == bad else ()), api=api) for api in ("sglang", "vllm")}
        for api, engine in pair.items():
            add(mount, api, engine)
        mount.write("1", "actor/version")
        before = {api: e.checksum() for api, e in pair.items()}
        assert mount.refused("2", "actor/version") == "EREMOTEIO"
        for api, engine in pair.items():
            assert engine.serves() == "1" and engine.checksum() == before[api], api
            assert mount.engines()[api].startswith("serving 1"), mount.engines()
            engine.generate()
            mount.write(f"engine remove {api}", "actor/ctl")


def test_sglang_dies_of_a_file():
    "SGLang dies of a bad file under force-layout, without a reply: shown as unknown, the version stays"
    agent, mount, folders = world()
    engine = Engine(folders[1], "--lifelike")  # --realistic's former name
    add(mount, "e", engine)
    mount.write("1", "actor/version")
    shapes = {name: (dtype, [n + 1 for n in shape]) for name, (dtype, shape) in MEDIUM.items()}
    agent.publish("actor", 3, checkpoint(shapes, seed=3))
    mount.wait_version("actor", 3)
    assert mount.refused("3", "actor/version") == "EPROTO"
    assert engine.alive() and engine.serves() == "1"
    assert mount.refused("3 force-layout", "actor/version") in ("ECONNRESET", "EHOSTUNREACH", "EREMOTEIO")
    assert mount.engines()["e"].startswith("unknown"), mount.engines()
    assert mount.text("actor/version") == "1\n"


def test_requests_under_switches():
    "with a steady stream of requests while versions change none is lost"
    _, mount, folders = world()
    for api, mode in (("vllm", "keep"), ("sglang", "in_place")):
        engine = Engine(folders[1], "--slow", "20", api=api)
        add(mount, api, engine, f"pause={mode}")
        stop, lost, done = threading.Event(), [], []

        def ask():
            while not stop.is_set():
                try:
                    engine.generate()
                    done.append(1)
                except OSError as e:
                    lost.append(e)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for t in threads:
            t.start()
        try:
            for version in (2, 1, 2, 1):
                mount.write(str(version), "actor/version")
        finally:
            stop.set()
            for t in threads:
                t.join(60)
        assert done and not lost, lost
        mount.write(f"engine remove {api}", "actor/ctl")


def test_remote():
    "a server described by templates switches like any other; templates are checked when it is added"
    _, mount, folders = world()
    sums = sums_of(folders, "sglang")
    engine = Engine(folders[1])
    load = 'load=POST:/update_weights_from_disk:{"model_path":"{path}","weight_version":"{version}"}'
    rest = 'pause=POST:/pause_generation:{"mode":"retract"} resume=POST:/continue_generation flush=POST:/flush_cache serving=GET:/model_info:.weight_version'
    mount.write(f"engine add r remote {engine.url} {load} {rest}", "actor/ctl")
    for version in (2, 1):
        mount.write(str(version), "actor/version")
        assert engine.serves() == str(version) and engine.checksum() == sums[version]
    assert mount.engines()["r"].startswith("serving 1 remote")
    for bad in ("", "load=DELETE:/x", f"{load} pause=POST:/p"):
        assert mount.refused(f"engine add x remote {engine.url} {bad}", "actor/ctl") == "EINVAL", bad
    assert mount.refused(f"engine add x sglang {engine.url} {load}", "actor/ctl") == "EINVAL"
    engine.kill()
    engine = Engine(folders[1], port=engine.port)
    wait_for(lambda: mount.engines()["r"].startswith("stale default"), "the restart to be noticed")
    mount.write("engine sync r", "actor/ctl")
    assert engine.serves() == "1" and mount.engines()["r"].startswith("serving 1 remote")
    mount.write("engine remove r", "actor/ctl")
    mount.write(f"engine add r remote {engine.url} {load.replace('{version}', '{number}')} {rest}", "actor/ctl")
    mount.write("2", "actor/version")
    assert engine.serves(whole=True) == "2" and mount.engines()["r"].startswith("serving 2 remote")


def test_twice_and_odd_words():
    "one engine under two spellings of its address is refused; an engine's own version name with odd characters stays one word"
    _, mount, folders = world()
    engine = Engine(folders[1], api="vllm")
    engine.ask("/update_weight_version", {"new_version": "my own\nbroken 9"})
    add(mount, "e", engine)
    assert mount.engines() == {"e": f"serving my_own_broken_9 vllm {engine.url} pause=0.000"}
    for url in (engine.url, engine.url + "/", engine.url.replace("http", "HTTP")):
        assert mount.refused(f"engine add other vllm {url}", "actor/ctl") == "EEXIST", url


class Late:
    """A proxy before an engine. A request whose path begins with `late` is passed on and its answer withheld. After `hold` was set, the
    answer to the next query of the served version is withheld until `held` is cleared. before[path] is called once, before a request
    to that path is passed on; `seen` lists all paths. The next request to `stray` is passed on once `comes` is set. Paths in `lacks`
    are answered with 404."""

    def __init__(self, engine):
        self.url, self.late, self.hold, self.held, done = None, None, False, False, threading.Event()
        self.before, self.seen, self.stray, self.comes, self.lacks = {}, [], None, threading.Event(), ()
        at_end(self.comes.set)
        late = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
                late.before.pop(self.path, lambda: None)()
                late.seen.append(self.path)
                if self.path in late.lacks:
                    self.send_error(404)
                    return
                if self.path == late.stray:
                    late.stray = None
                    late.comes.wait(60)
                request = urllib.request.Request(engine.url + self.path, data=body, headers={"Content-Type": "application/json"})
                try:
                    with urllib.request.urlopen(request, timeout=60) as r:
                        status, text = r.status, r.read()
                except urllib.error.HTTPError as e:
                    status, text = e.code, e.read()
                if late.late and self.path.startswith(late.late):
                    done.wait(60)
                    return
                if late.hold and self.path == "/model_info":
                    late.hold, late.held = False, True
                    while late.held:
                        done.wait(0.02)
                with contextlib.suppress(OSError):  # the client has given up
                    self.send_response(status)
                    self.end_headers()
                    self.wfile.write(text)

            do_POST = do_GET

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url, self.api = f"http://127.0.0.1:{server.server_address[1]}", engine.api
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at_end(server.shutdown)
        at_end(done.set)


def test_pause_answer_lost():
    "if the answer to a pause is late, pause-timeout ends the wait and the engine goes on, in a switch and in a sync"
    _, mount, folders = world()
    engine = Engine(folders[1], api="vllm")
    late = Late(engine)
    add(mount, "e", late, "pause-timeout=1")
    mount.write("1", "actor/version")
    late.late = "/pause"
    start = time.monotonic()
    for command in ("load 2", "engine sync e"):
        assert mount.refused(command, "actor/ctl") == "ETIMEDOUT"
        assert not engine.is_paused() and engine.serves() == "1", command
    assert time.monotonic() - start < 30 * SLOW
    wait_for(lambda: mount.engines()["e"].startswith("serving 1"), "the engine to be asked again")


def caught_up(mount, name):
    wait_for(lambda: f"caught-up model=actor engine={name} version=1 result=ok" in mount.text("actor/events"), f"{name} to be brought along", 90)


def test_pause_unconfirmed():
    "an SGLang that cannot report whether it is paused, and does not answer pauses, is not shown as serving; it is reconciled once it answers one"
    _, mount, folders = world()
    engine = Engine(folders[1])
    late = Late(engine)
    late.lacks = ("/ready",)
    add(mount, "e", late, "pause-timeout=1")
    mount.write("1", "actor/version")
    late.late = "/pause_generation"
    assert mount.refused("2", "actor/version") == "ETIMEDOUT"
    said = mount.engines()["e"]
    assert said.startswith("paused 1 ") and "paused, or may be, and will be brought along" in said, said
    assert "not brought back, and left as `engines` says: e" in mount.text("actor/last_error"), mount.text("actor/last_error")
    seen = len(late.seen)
    wait_for(lambda: late.seen[seen:].count("/pause_generation") > 1, "another try", 60)
    assert not mount.engines()["e"].startswith("serving "), mount.engines()
    late.late = None
    caught_up(mount, "e")
    assert mount.engines()["e"].startswith("serving 1 ") and engine.serves() == "1" and engine.generate()


def test_pause_refused():
    "an engine that does not take a pause goes on as it was: the switch fails, and resumes nothing that another program may have paused"
    _, mount, folders = world()
    engine = Engine(folders[1], api="vllm")
    late = Late(engine)
    add(mount, "e", late)
    mount.write("1", "actor/version")
    late.seen.clear()
    late.lacks = ("/pause?mode=keep&clear_cache=true",)
    assert mount.refused("2", "actor/version") == "EPROTO"
    assert late.lacks[0] in late.seen and "/resume" not in late.seen, late.seen
    late.lacks = ()
    wait_for(lambda: mount.engines()["e"].startswith("serving 1 "), "it to be called serving again", 60)
    assert engine.serves() == "1" and engine.generate()


def test_pause_comes_late():
    "a pause that takes effect after later requests is noticed, and the engine is reconciled"
    _, mount, folders = world()
    for api, pause in (("sglang", "/pause_generation"), ("vllm", "/pause?mode=keep&clear_cache=true")):
        engine = Engine(folders[1], api=api)
        late = Late(engine)
        add(mount, api, late, "pause-timeout=1")
        mount.write("1", "actor/version")
        late.seen.clear()
        late.stray = pause
        assert mount.refused("2", "actor/version") == "ETIMEDOUT"
        assert late.seen.count(pause) == 2, late.seen
        assert mount.engines()[api].startswith("serving 1 ") and engine.generate()
        late.comes.set()
        wait_for(lambda: late.seen.count(pause) == 3, "the engine to be brought along", 60)
        caught_up(mount, api)
        assert mount.engines()[api].startswith("serving 1 ") and engine.serves() == "1" and engine.generate()
        mount.write(f"engine remove {api}", "actor/ctl")


def test_busy_at_rollback():
    "an engine too busy to answer its rollback that answers shortly after is not shown as broken: it is reconciled"
    _, mount, folders = world()
    engine, free = Engine(folders[1], "--refuse", "2"), threading.Event()
    at_end(free.set)
    late = Late(engine)
    add(mount, "e", late, "timeout=2 pause-timeout=60")
    mount.write("1", "actor/version")
    late.late = "/update_weights_from_disk"
    late.before[late.late] = lambda: late.before.update({"/server_info": lambda: free.wait(60)})
    assert mount.refused("2", "actor/version") == "ETIMEDOUT"
    late.late = None
    free.set()
    assert not mount.engines()["e"].startswith("broken "), mount.engines()
    caught_up(mount, "e")
    assert mount.engines()["e"].startswith("serving 1 ") and engine.serves() == "1" and engine.generate()


def test_resume_answer_lost():
    "if the answer to a resume is late, an engine that can report its state is believed; an older SGLang is not shown as broken and is reconciled"
    _, mount, folders = world()
    for api, lacks in (("vllm", ()), ("sglang", ()), ("sglang", ("/ready",))):
        engine = Engine(folders[1], api=api)
        late = Late(engine)
        late.lacks = lacks
        add(mount, "e", late, "pause-timeout=1")
        mount.write("1", "actor/version")
        late.late = "/continue_generation" if api == "sglang" else "/resume"
        if not lacks:
            mount.write("2", "actor/version")
            assert mount.engines()["e"].startswith("serving 2 ") and engine.generate()
        else:
            assert mount.refused("2", "actor/version") == "ETIMEDOUT"
            said = mount.engines()["e"]
            assert said.startswith("paused ") and "will be brought along" in said, said
            late.late = None
            caught_up(mount, "e")
            assert mount.engines()["e"].startswith("serving 1 ") and engine.serves() == "1" and engine.generate()
        mount.write("engine remove e", "actor/ctl")


def test_restarted_before_resume():
    "an engine that dies between load and resume, and is back in time for the resume, serves its first weights: the switch fails"
    _, mount, folders = world()
    for api, resume in (("sglang", "/continue_generation"), ("vllm", "/resume")):
        engine = Engine(folders[1], api=api)
        late = Late(engine)
        add(mount, api, late)
        mount.write("1", "actor/version")
        before = engine.checksum()

        def anew():
            engine.kill()
            Engine(folders[1], api=api, port=engine.port)

        late.before[resume] = anew
        assert mount.refused("2", "actor/version") == "EREMOTEIO"
        assert "it was restarted" in mount.text("actor/last_error"), mount.text("actor/last_error")
        assert engine.checksum() == before and engine.generate(), api
        assert mount.text("actor/version") == "1\n" and mount.engines()[api].startswith("serving 1 "), mount.engines()
        mount.write(f"engine remove {api}", "actor/ctl")


def test_restarted_in_rollback():
    "an engine that dies between its rollback's load and resume, and is back in time for the resume, does not count as rolled back"
    _, mount, folders = world()
    for api, resume in (("sglang", "/continue_generation"), ("vllm", "/resume")):
        engine = Engine(folders[1], "--refuse", "2", "--realistic", api=api)
        late = Late(engine)
        add(mount, api, late)
        mount.write("1", "actor/version")

        def anew():
            engine.kill()
            Engine(folders[2], api=api, port=engine.port)

        late.before[resume] = anew
        assert mount.refused("2", "actor/version") == "EREMOTEIO"
        assert f"not brought back, and left as `engines` says: {api}" in mount.text("actor/last_error"), mount.text("actor/last_error")
        mount.write(f"engine remove {api}", "actor/ctl")


def test_killed_in_the_first_switch():
    "a daemon is killed in the load of the very first switch: the next daemon switches the engine to the requested version"
    for api, load in (("sglang", "/update_weights_from_disk"), ("vllm", "/collective_rpc")):
        with scope():
            agent, mount, folders = world()
            engine = Engine(checkpoint(MEDIUM, seed=9), api=api)
            late = Late(engine)
            add(mount, "e", late)
            late.before[load] = mount.kill
            with contextlib.suppress(OSError):
                mount.write("2", "actor/version")
            wait_for(lambda: load in late.seen, "the load")
            assert api == "sglang" or engine.is_paused(), late.seen
            again = Mount(agent.url, path=mount.path)
            wait_for(lambda: again.engines().get("e", "").startswith("serving 2 "), "the engine")
            assert engine.serves() == "2" and engine.generate()
            assert again.text("actor/version") == "2\n" and os.readlink(again.file("actor/current")) == "2"


def test_first_switch_version_is_gone():
    "the same if the requested version is gone by then: the mount reports it with what to do, and resumes no engine before a load"
    agent, mount, folders = world()
    engine = Engine(checkpoint(MEDIUM, seed=9), api="vllm")
    late = Late(engine)
    add(mount, "e", late)
    late.before["/collective_rpc"] = mount.kill
    with contextlib.suppress(OSError):
        mount.write("2", "actor/version")
    wait_for(lambda: "/collective_rpc" in late.seen, "the load")
    for v in (3, 4, 5):
        agent.publish("actor", v, folders[1])
    again = Mount(agent.url, path=mount.path)
    again.wait_version("actor", 5)
    wait_for(lambda: "version 2 " in again.text("actor/last_error"), "the words", 60)
    assert "ESTALE" in again.text("actor/last_error") and "write one that is there" in again.text("actor/last_error")
    assert again.engines()["e"].split()[0] in ("paused", "broken") and engine.is_paused(), again.engines()
    again.write("latest", "actor/version")
    assert engine.generate() and engine.serves() == "5" and not again.text("actor/last_error")


def test_refused_first_switch():
    "the very first switch is refused: a daemon started later does not repeat it"
    agent, mount, folders = world()
    engine = Engine(checkpoint(MEDIUM, seed=9), "--refuse", "2")
    add(mount, "e", engine)
    assert mount.refused("2", "actor/version") == "EREMOTEIO"
    before = engine.ask("/model_info")
    mount.kill()
    again = Mount(agent.url, path=mount.path)
    wait_for(lambda: again.engines().get("e", "unknown").split()[0] != "unknown", "the engine")
    assert engine.ask("/model_info") == before and "restored" not in again.text("actor/events")
    assert again.text("actor/version") == "none\n", again.text("actor/version")


def test_vllm_is_woken_for_a_switch():
    "vLLM asleep: the switch wakes its weights for the load and the rest with the resume, and resumes nothing before"
    _, mount, folders = world()
    engine = Engine(folders[1], api="vllm")
    late = Late(engine)
    add(mount, "e", late)
    late.seen.clear()
    urllib.request.urlopen(urllib.request.Request(engine.url + "/sleep", data=b"{}"), timeout=20).close()
    mount.write("2", "actor/version")
    order = [p for p in late.seen if p in ("/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache", "/resume")]
    assert order == ["/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache", "/resume"], late.seen
    assert engine.serves() == "2" and not engine.is_paused() and engine.generate()
    late.seen.clear()
    mount.write("1", "actor/version")  # awake now
    assert engine.serves() == "1" and not any("wake_up" in p for p in late.seen if "?" in p), late.seen


def test_vllm_sleeps_on_purpose():
    "a vLLM that its framework has put to sleep is shown and left alone, behind or not, by the reconciler too; awake it is brought along, and so it is by a command"
    _, mount, folders = world()
    engine, other = Engine(folders[1], api="vllm"), Engine(folders[1])
    late = Late(engine)
    late.api = "vllm"
    add(mount, "e", late)
    add(mount, "o", other)
    mount.write("1", "actor/version")
    mount.write("commit quorum=1", "actor/ctl")  # what is behind is brought along without a command

    def post(path):
        urllib.request.urlopen(urllib.request.Request(engine.url + path, data=b"{}"), timeout=20).close()

    def looks():
        return late.seen.count("/is_sleeping")

    def stays_asleep(word):
        wait_for(lambda: "it sleeps" in mount.engines()["e"] and mount.engines()["e"].startswith(word), "it to be seen asleep")
        now = looks()
        wait_for(lambda: looks() > now + 1, "two more looks")
        assert engine.is_paused() and not any("/wake_up?" in p for p in late.seen) and "caught-up" not in mount.text("actor/events")

    post("/sleep?level=1")
    stays_asleep("paused 1 ")
    assert "engine-asleep model=actor engine=e" in mount.text("actor/events")
    engine.ask("/update_weight_version", {"new_version": "another"})
    stays_asleep("paused another ")
    post("/wake_up")
    wait_for(lambda: mount.engines()["e"].startswith("serving 1 "), "it to be brought along once it is awake")
    assert "engine-awake model=actor engine=e" in mount.text("actor/events") and engine.serves() == "1" and engine.generate()
    post("/sleep?level=1")
    wait_for(lambda: "it sleeps" in mount.engines()["e"], "it to be seen asleep")
    mount.write("engine sync e", "actor/ctl")
    assert mount.engines()["e"].startswith("serving 1 ") and engine.generate() and not engine.is_paused()


def test_vllm_asleep_goes_back():
    "a vLLM that sleeps without its weights and whose switch fails after the load loads the version before whole"
    _, mount, folders = world()
    engine, refuses = Engine(folders[1], api="vllm"), Engine(folders[1], "--refuse", "2")
    add(mount, "e", engine)
    add(mount, "r", refuses)
    mount.write("1", "actor/version")
    one = engine.checksum()
    engine.ask("/sleep?level=2", {})
    assert engine.checksum() != one
    assert mount.refused("2", "actor/version") == "EREMOTEIO"
    assert engine.checksum() == one and engine.serves() == "1" and engine.generate() and not engine.is_paused()
    assert mount.engines()["e"].startswith("serving 1 ")
    engine.ask("/sleep?level=2", {})
    engine.ask("/wake_up?tags=weights", {})  # undefined, and awake
    assert mount.refused("2", "actor/version") == "EREMOTEIO"
    assert engine.checksum() == one and engine.serves() == "1" and engine.generate()
    engine.ask("/sleep?level=2", {})
    mount.write("engine remove r", "actor/ctl")
    mount.write("2", "actor/version")
    assert engine.checksum() == sums_of(folders, "vllm")[2] and engine.generate()


def test_old_answer():
    "an answer that an engine gave before a switch does not count after it"
    _, mount, folders = world()
    late = Late(Engine(folders[1]))
    add(mount, "e", late)
    mount.write("1", "actor/version")
    mount.write("commit quorum=1", "actor/ctl")
    late.hold = True
    wait_for(lambda: late.held, "the mount to ask")
    mount.write("2", "actor/version")
    late.held = False
    end = time.monotonic() + 2
    while time.monotonic() < end:
        assert mount.engines()["e"].startswith("serving 2"), mount.text("actor/events")
    assert "caught-up" not in mount.text("actor/events")


def test_wrong_kind():
    "an engine added as the wrong kind is refused, and the error says which kind it is not"
    _, mount, folders = world()
    vllm, sglang = Engine(folders[1], api="vllm"), Engine(folders[1])
    assert mount.refused(f"engine add e sglang {vllm.url}", "actor/ctl") == "EPROTO"
    assert mount.refused(f"engine add e vllm {sglang.url}", "actor/ctl") == "EPROTO"
    assert mount.refused(f"engine add e trt {sglang.url}", "actor/ctl") == "EINVAL"
    assert "sglang, vllm, remote" in mount.text("actor/last_error")
    assert mount.text("actor/engines") == ""


def test_first_switch_is_gated():
    "a first switch is compared with what the engine was started on: a folder, or a version of the mount"
    need_fuse()
    agent = Agent()
    folder = checkpoint(MEDIUM, seed=1)
    agent.publish("actor", 1, folder)
    agent.publish("actor", 2, checkpoint({k: v for k, v in MEDIUM.items() if k != "tail"}, seed=2))
    for api in ("sglang", "vllm"):
        for start in (folder, None):
            mount = Mount(agent.url)
            mount.wait_version("actor", 2)
            engine = Engine(start or mount.file("actor/1"), api=api)
            add(mount, "e", engine)
            assert mount.refused("2", "actor/version") == "EPROTO"
            assert "missing tail" in mount.text("actor/last_error"), mount.text("actor/last_error")
            assert engine.serves() == "default"
            mount.write("1", "actor/version")
            assert engine.serves() == "1"
            engine.end()
            mount.end()


def test_gate_fetches_what_is_served():
    "if the served version was dropped, it is fetched for the comparison; if that fails, the switch is refused"
    need_fuse()
    agent = Agent()
    agent.publish("actor", 1, checkpoint(MEDIUM, seed=1))
    agent.publish("actor", 2, checkpoint({k: v for k, v in MEDIUM.items() if k != "tail"}, seed=2))
    mount = Mount(agent.url, "deadline=2")
    mount.wait_version("actor", 2)
    engine = Engine(mount.file("actor/1"))
    add(mount, "e", engine)
    assert mount.refused("check 2", "actor/ctl") == "ENOENT" and "pull it first" in mount.text("actor/last_error")
    mount.write("drop 1", "actor/ctl")
    assert mount.refused("2", "actor/version") == "EPROTO"
    assert "missing tail" in mount.text("actor/last_error"), mount.text("actor/last_error")
    mount.write("drop 1", "actor/ctl")
    assert mount.refused("check 2", "actor/ctl") == "ENOENT" and "cannot be compared" in mount.text("actor/last_error")
    agent.kill()
    mount.refused("2", "actor/version")
    assert "cannot be compared with what engine e serves, version 1" in mount.text("actor/last_error")
    assert engine.serves() == "default" and mount.engines()["e"].split()[0] == "serving"


def test_restarted_engine():
    "an engine restarted on another folder is queried again, and the next switch switches it"
    _, mount, folders = world()
    for api in ("vllm", "sglang"):
        engine = Engine(folders[1], api=api)
        add(mount, api, engine)
        mount.write("2", "actor/version")
        engine.kill()
        engine = Engine(folders[1], api=api, port=engine.port)
        mount.write("1", "actor/version")
        assert engine.serves() == "1" and mount.engines()[api].startswith("serving 1")
        mount.write(f"engine remove {api}", "actor/ctl")


def test_restarted_is_tried_at_once():
    "an engine that could not be brought along is tried less and less often; one that was started anew in its place, at the next look"
    _, mount, folders = world()
    engine = Engine(folders[1], "--refuse", "2", api="vllm")
    between, asked = Between(engine), []
    add(mount, "e", between)
    add(mount, "mate", Engine(folders[1], api="vllm"))
    mount.write("1", "actor/version")
    mount.write("commit quorum=1", "actor/ctl")
    mount.write("2", "actor/version")
    failed = lambda: [l for l in mount.text("actor/events").splitlines() if " caught-up " in l and " engine=e " in l and "result=ok" not in l]
    wait_for(lambda: len(failed()) >= 3, "three tries", 120)  # the next one is more than a look away
    between.change = lambda path, text: asked.append(path) or text
    engine.kill()
    asked.clear()
    engine = Engine(folders[1], api="vllm", port=engine.port)
    wait_for(lambda: engine.serves() == "2", "the new one to be brought along", 120)
    before = asked[:next(i for i, path in enumerate(asked) if path.startswith("/pause"))]
    probe = next(i for i, path in enumerate(before) if path.startswith("/server_info"))  # of the try, and not of another look
    assert "/weight_info" not in before[probe:], before


def test_restarted_and_noticed():
    "vLLM is restarted on another folder and the mount has noticed: a failed switch rolls it back to that folder"
    _, mount, folders = world()
    own = checkpoint(MEDIUM, seed=9)
    engine = Engine(folders[1], api="vllm")
    add(mount, "e", engine)
    mount.write("1", "actor/version")
    engine.kill()
    engine = Engine(own, "--refuse", "2", "--realistic", api="vllm", port=engine.port)
    before = engine.checksum()
    wait_for(lambda: mount.engines()["e"].startswith("stale default"), "the restart to be noticed")
    assert "engine sync e brings it along" in mount.engines()["e"], mount.engines()
    wait_for(lambda: mount.text("actor/last_error"), "its error")
    assert "serves version default instead of 1@" in mount.text("actor/last_error"), mount.text("actor/last_error")
    assert mount.refused("2", "actor/version") == "EREMOTEIO"
    assert engine.checksum() == before and mount.engines()["e"].startswith("stale default")


def test_load_comes_late():
    "a load that takes effect after the rollback is reported in engines, last_error and events; engine sync repairs it"
    _, mount, folders = world()
    engine = Engine(folders[1])
    late = Late(engine)
    add(mount, "e", late, "timeout=2")
    mount.write("1", "actor/version")
    late.stray = "/update_weights_from_disk"
    assert mount.refused("2", "actor/version") == "ETIMEDOUT"
    assert engine.serves() == "1" and mount.engines()["e"].startswith("serving 1 ")
    late.comes.set()
    wait_for(lambda: mount.engines()["e"].startswith("stale 2 "), "the load to be noticed")
    wait_for(lambda: "serves version 2@" in mount.text("actor/last_error"), "its error")
    assert "`engine sync e` brings it along" in mount.text("actor/last_error"), mount.text("actor/last_error")
    assert "engine-serves model=actor engine=e version=2@" in mount.text("actor/events")
    mount.write("engine sync e", "actor/ctl")
    assert engine.serves() == "1" and mount.engines()["e"].startswith("serving 1 ")
    wait_for(lambda: not mount.text("actor/last_error"), "the error to be over")


def test_questions_before_the_pause():
    "what an engine serves is asked first, which one that is stopped is waited for shortly; then it is waited for as a load may last; not again in the pause"
    _, mount, folders = world()
    between, asked = Between(Engine(folders[1])), []
    add(mount, "e", between)
    mount.write("1", "actor/version")
    between.before = lambda path, body: asked.append(path)
    mount.write("2", "actor/version")
    paused, loaded = asked.index("/pause_generation"), asked.index("/update_weights_from_disk")
    assert asked.index("/model_info") < asked.index("/server_info") < paused < loaded, asked
    assert "/server_info" not in asked[paused:loaded] and "/model_info" not in asked[paused:loaded], asked
