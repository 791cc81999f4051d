"""wsync.BroadcastSender without torch: the requests to engines and the state in which each is left, with servers that have only their
routes. tests/real sends tensors, also to real engines."""
import errno
import http.server
import json
import threading
import types

import pytest
import world
import wsync
from wsync.engines import _broadcast
from wsync.engines._http import Http, Refused

LAYOUT = {"a": ("F32", (2,))}
SAID = "version 9 was not loaded: ValueError. /wsync/actor/1 was loaded again and is served"


class Fake:
    """An engine of either kind. on[path]: its answer instead, (status, value); "drop": it acts and does not answer; "late": it does not
    answer, and acts after the next request for another path."""

    def __init__(self, kind, **said):
        self.kind, self.said = kind, {"tp_size": 1, "pp_size": 1, "dp_size": 1, "version": "0.5.23", "world": 1, "replica": 1, "parallel": {}, **said}
        self.version, self.paused, self.sleeping, self.on, self.asked, self.late = "default", False, False, {}, [], []
        self.lock = threading.Lock()
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.do_POST()

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
                with fake.lock:
                    found = fake.answer(self.command, self.path, body, self.headers.get("Authorization"))
                if found is None:
                    return
                text = json.dumps(found[1]).encode()
                self.send_response(found[0])
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        world.at_end(lambda: (self.server.shutdown(), self.server.server_close()))

    def answer(self, method, path, body, key):
        route = path.partition("?")[0]
        self.asked.append(route)
        how = self.on.get(route)
        if isinstance(how, list):
            how = how.pop(0) if how else None
        if how == "late":
            self.late.append((route, body))
            return None
        if isinstance(how, tuple):
            return how
        found = 200, self.do(route, path, body)
        for known in [one for one in self.late if one[0] != route]:
            self.late.remove(known)
            self.do(*known[:1], *known)
        return None if how == "drop" else found

    def do(self, route, path, body):
        if route in ("/pause", "/pause_generation"):
            self.paused = True
        elif route in ("/resume", "/continue_generation"):
            self.paused = False
        elif route in ("/update_weights_from_distributed", "/finish_weight_update", "/update_weight_version"):
            self.version = body.get("weight_version") or body.get("new_version") or self.version
        return {"/model_info": {"model_path": "/none", "weight_version": self.version}, "/weight_info": {"weight_version": self.version},
                "/server_info": {**self.said, "vllm_config": {"parallel_config": self.said["parallel"]}}, "/is_paused": {"is_paused": self.paused or self.sleeping}, "/is_sleeping": {"is_sleeping": self.paused or self.sleeping},
                "/pause": {"status": "paused"}, "/resume": {"status": "resumed"}, "/pause_generation": {"status": "ok"},
                "/continue_generation": {"status": "ok"}, "/update_weight_version": {"success": True}, "/reset_prefix_cache": {"success": True},
                "/get_world_size": {"world_size": self.said["replica" if "include_dp=false" in path else "world"]}}.get(route, {})

    def resumed(self):
        return any(route in ("/resume", "/continue_generation") for route in self.asked)


class Group:
    """Every sent tensor arrives; or none, with the reason."""

    why = None

    def start(self, tensor):
        return tensor

    def wait(self, works, failed=None):
        if self.why:
            raise _broadcast.Lost(self.why)

    def abort(self):
        pass

    close = abort


@pytest.fixture
def send(monkeypatch):
    """Sends version 9@r to the engines by a sender that does everything except move tensors; returns the results."""
    monkeypatch.setattr(_broadcast, "Buckets", lambda *_: types.SimpleNamespace(parts=[["a"], ["b"]], tensors=lambda i, *_: [i]))
    monkeypatch.setattr(_broadcast, "broadcast_request", lambda part, *_: {"names": part, "dtypes": ["float32"], "shapes": [[2]]})

    def join(self, members):
        self._group, self._members, self._device, self._buckets = send.group, members, "cpu", True

    monkeypatch.setattr(_broadcast.BroadcastSender, "_join", join)
    weights = types.SimpleNamespace(framework="torch", version=9, run="r", path="/weights", layout=lambda: LAYOUT)

    def send(*fakes, timeout=10, pause_mode=None, **options):
        made = wsync.BroadcastSender([wsync.Engine(f.kind, f.url, timeout=timeout, pause_mode=pause_mode) for f in fakes], timeout=timeout)
        world.at_end(made.close)
        send.sender = made
        return made.send(weights, **{"force_layout": True, **options})

    send.weights = weights
    send.group = Group()
    return send


def test_steps(send):
    """both kinds: the version and its lineage are set, caches of the old weights flushed, and the engine resumed after that"""
    for fake in (sglang := Fake("sglang"), vllm := Fake("vllm")):
        results = send(fake)
        assert results[0].ok and fake.version == "9@r" and not fake.paused, results
    assert sglang.asked.index("/flush_cache") < sglang.asked.index("/continue_generation")
    assert vllm.asked.index("/reset_encoder_cache") < vllm.asked.index("/resume") and "/reset_prefix_cache" in vllm.asked


@pytest.mark.parametrize("kind, route", [("sglang", "/flush_cache"), ("vllm", "/reset_prefix_cache")])
def test_flush(send, kind, route):
    """a busy engine is flushed again; one that cannot be flushed stays paused, with the new version"""
    busy = (400, {}) if kind == "sglang" else (200, {"success": False})
    fake = Fake(kind)
    fake.on[route] = [busy, busy]
    assert send(fake)[0].ok and fake.asked.count(route) == 3
    fake = Fake(kind)
    fake.on[route] = (500, {"message": "no"})
    results = send(fake)
    assert not results[0].ok and "stays paused" in str(results[0].error) and fake.paused and fake.version == "9@r", results
    send.sender._join = lambda _: (_ for _ in ()).throw(_broadcast.Lost("not all have joined"))
    send.sender.send(send.weights, force_layout=True)
    assert fake.paused and not fake.resumed(), "what fails later resumes it with what old weights have computed"


@pytest.mark.parametrize("kind, pause", [("sglang", "/pause_generation"), ("vllm", "/pause")])
def test_pause(send, kind, pause):
    """a pause whose answer is lost is undone, also if it takes effect late; a refused pause did not happen"""
    for how in ("drop", "late"):
        fake, other = Fake(kind), Fake(kind)
        fake.on[pause] = [how]
        results = send(fake, other)
        assert not any(r.ok for r in results) and all("serves what it did before" in str(r.error) for r in results), results
        assert not fake.paused and not other.paused and fake.version == "default" and not fake.late, (how, fake.asked)
    fake.on[pause], fake.asked = (403, {}), []
    results = send(fake)
    assert not results[0].ok and not fake.resumed() and "serves what it did before" in str(results[0].error), results


def test_pause_refused_again(send):
    """a refusal of another pause does not change that this sender has paused the engine; a later successful send resumes it"""
    fake = Fake("vllm")
    fake.on["/reset_prefix_cache"] = (500, {"message": "no"})
    assert not send(fake)[0].ok and fake.paused
    fake.on = {"/pause": [(403, {})]}
    assert not send.sender.send(send.weights, force_layout=True)[0].ok and fake.paused and not fake.resumed()
    results = send.sender.send(send.weights, force_layout=True)
    assert results[0].ok and not fake.paused, results


def test_partial_name(send):
    """an engine that refuses the name of a partial version is unchanged; one that may have taken it is not resumed"""
    for how, paused in (((403, {}), False), ("drop", True)):
        fake = Fake("sglang")
        fake.on["/update_weight_version"] = [how]
        results = send(fake)
        assert not results[0].ok and fake.paused == paused and (fake.version == "default") == (not paused), results


def test_resume_sglang(send):
    """an SGLang that reports not ready is resumed until it is ready; older ones do not report it"""
    fake = Fake("sglang")
    fake.on["/ready"] = [(503, {}), (503, {})]
    assert send(fake)[0].ok and not fake.paused and fake.asked.count("/continue_generation") == 3
    fake.on["/ready"] = (404, {})
    assert send(fake)[0].ok and not fake.paused


def test_resume(send):
    """an engine that refuses to resume for a while is resumed until it reports that it is not paused"""
    fake = Fake("vllm")
    fake.on["/resume"] = [(500, {"error": "a pause is under way"}), (500, {})]
    fake.on["/is_paused"] = [None, None, None, None, (200, {"is_paused": True})]
    assert send(fake)[0].ok and not fake.paused and fake.asked.count("/resume") == 4


@pytest.mark.parametrize("world, replica, undone", [(2, 2, True), (2, 1, False), (2, None, False)])
def test_replicas(send, world, replica, undone):
    """a vLLM that has undone an update serves the previous version; with several replicas, or an unknown number, one may have the new version"""
    fake = Fake("vllm", world=world, replica=replica)
    fake.on["/update_weights"] = (500, {"error": SAID})
    results = send(fake)
    assert not results[0].ok and fake.paused == (not undone), results
    assert ("serves what it did before" if undone else "stays paused") in str(results[0].error), results


def test_independent_results(send):
    """one engine's failure is its own: one that has the version serves it, one that undid it continues, one in between stays paused"""
    good, undid, broken, odd = Fake("sglang"), Fake("vllm"), Fake("sglang"), Fake("sglang")
    undid.on["/update_weights"] = None
    undid.on["/finish_weight_update"] = (500, {"error": "no session"})
    broken.on["/end_weight_update"] = (500, {"error": "no memory"})
    odd.on["/model_info"] = [(200, {"model_path": "/none", "weight_version": "1"}), (200, ["no object"]), (200, [])]
    results = send(good, undid, broken, odd)
    assert [r.ok for r in results] == [True, False, False, False], results
    assert not good.paused and good.version == "9@r"
    assert undid.paused and broken.paused and odd.paused and not broken.resumed()
    assert broken.version == "part of 9@r", broken.version
    assert "no memory" in str(results[2].error) and "no session" in str(results[1].error)
    one, other = Fake("vllm"), Fake("sglang")
    one.on["/update_weights"] = (500, {"error": SAID})
    send.group.why = "a member has gone"
    results = send(one, other)
    assert not one.paused and "serves what it did before" in str(results[0].error), results
    assert other.paused and not other.resumed() and other.version == "part of 9@r" and "stays paused" in str(results[1].error), results
    send.group.why = None
    send.sender._join = lambda _: (_ for _ in ()).throw(_broadcast.Lost("not all have joined"))  # a later failure does not resume it
    results = send.sender.send(send.weights, force_layout=True)
    assert other.paused and not other.resumed() and "stays paused" in str(results[1].error), results
    results = send(other)  # another sender learns of it from the engine, and a whole version repairs it
    assert results[0].ok and not other.paused and other.version == "9@r", results


def test_ineligible(send, monkeypatch):
    """an engine that cannot join is named, or loads path=; the others are sent to"""
    good = Fake("vllm", world=4, replica=2)
    asleep = Fake("vllm")
    asleep.sleeping = True
    others = [asleep, Fake("vllm", world=2, parallel={"data_parallel_external_lb": True}), Fake("sglang", pp_size=2), Fake("sglang", dp_size=2)]
    results = send(good, *others)
    assert [r.ok for r in results] == [True, False, False, False, False], results
    for r, fake, why in zip(results[1:], others, ("sleeps", "one of several servers", "2 pipeline stages", "2 data-parallel")):
        assert why in str(r.error) and fake.url in str(r.error), r
        assert not fake.paused and not any("pause" in route for route in fake.asked if route != "/is_paused"), fake.asked
    loaded = []
    for kind in set(f.kind for f in others):
        monkeypatch.setattr(_broadcast.KINDS[kind], "load_path", staticmethod(lambda url, path, **_: loaded.append((url, path))))
    results = send(good, *others, path="/wsync/actor/9")
    assert all(r.ok for r in results) and [r.by for r in results] == ["broadcast"] + 4 * ["disk"], results
    assert sorted(loaded) == sorted((f.url, "/wsync/actor/9") for f in others)


def test_versions(send):
    """nothing is sent without a version, nor a partial version, nor one whose layout cannot be compared"""
    fake = Fake("sglang")
    results = send(fake, force_layout=False)
    assert "Give layout=" in str(results[0].error) and not fake.resumed() and fake.version == "default", results
    send.weights.version = None
    with pytest.raises(ValueError, match="give version="):
        send(fake)
    send.weights.version, send.weights.partial = 9, ["b"]
    with pytest.raises(ValueError, match="not whole"):
        send(fake)
    assert not any("pause" in route for route in fake.asked)


def test_keys():
    """the admin token is sent with changes, the other with queries, and neither appears in errors"""
    fake = Fake("vllm")
    keys = []
    fake.answer = lambda method, path, body, key: (keys.append((method, key)), (401, {"error": f"{key} is wrong, as is OTHER-\"KEY"}))[1]
    server = Http(fake.url, "PLAIN-TOKEN", "OTHER-\"KEY")
    for body in (None, {}):
        with pytest.raises(Refused) as e:
            server.call("/x", body, 10)
        assert "TOKEN" not in str(e.value) and "KEY" not in str(e.value) and "is wrong" in str(e.value)
    assert keys == [("GET", "Bearer PLAIN-TOKEN"), ("POST", "Bearer OTHER-\"KEY")]
    with pytest.raises(OSError) as e:
        wsync.BroadcastSender([wsync.Engine("sglang", "https://127.0.0.1:1", ca_file="/nowhere")])
    assert e.value.errno == errno.ENOENT
