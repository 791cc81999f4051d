"""wsync.d5: under asyncio and trio, with servers that follow a script and with the reference engine."""
import http.server
import json
import threading

import anyio
import httpx
import pytest
import world
from wsync import d5

try:
    import trio
except ImportError:  # in the environment of the real engines
    trio = None

LOOPS = ("asyncio", "trio") if trio else ("asyncio",)
UPDATE = {"sglang": d5.update_sglang_weights_from_disk, "vllm": d5.update_vllm_weights_from_disk}
ENGINE = {"sglang": d5.SGLangEngine, "vllm": d5.VLLMEngine}
SLOW = {"asyncio": TimeoutError, "trio": trio and trio.TooSlowError}


class Server:
    """Answers each POST with a status and a body, once `gate` is set; `asked` has the requests' paths and bodies."""

    def __init__(self, body=b'{"success": true, "message": "loaded"}', status=200, gated=False):
        self.asked, self.gate, self.arrived, server = [], threading.Event(), threading.Event(), self
        if not gated:
            self.gate.set()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                server.asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                server.arrived.set()
                server.gate.wait(60)
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:  # the client was cancelled
                    pass

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        world.at_end(self.close)

    def close(self):
        self.gate.set()
        self.http.shutdown()
        self.http.server_close()


def run(loop, function, *args, **kw):
    async def call():
        return await function(*args, **kw)

    return anyio.run(call, backend=loop)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("api", UPDATE)
def test_assertions(loop, api):
    """what is wrong is asserted in the order base_url, checkpoint_path, timeout, and nothing is sent"""
    server = Server()
    for args, kw, says in ((("", ""), {"timeout": 0}, "base_url cannot be empty"), ((server.url, ""), {"timeout": 0}, "checkpoint_path cannot be empty"),
                           ((None, None), {}, "base_url cannot be empty"), ((server.url, None), {}, "checkpoint_path cannot be empty"),
                           ((server.url, "/w/1"), {"timeout": 0}, "timeout must be > 0, got 0"), ((server.url, "/w/1"), {"timeout": -1.5}, "timeout must be > 0, got -1.5")):
        with pytest.raises(AssertionError) as e:
            run(loop, UPDATE[api], *args, **kw)
        assert str(e.value) == says
    with pytest.raises(AssertionError, match="checkpoint_path cannot be empty"):
        run(loop, ENGINE[api](server.url).update_weights_from_checkpoint, "")
    for engines, path, says in (([], "/w/1", "Must provide at least one engine"), ([], "", "Must provide at least one engine"),
                                ([ENGINE[api](server.url)], "", "checkpoint_path cannot be empty")):
        with pytest.raises(AssertionError) as e:
            run(loop, d5.sync_weights_to_engines, engines, path)
        assert str(e.value) == says
    assert not server.asked


@pytest.mark.parametrize("loop", LOOPS)
def test_requests_and_replies(loop):
    """the request that is sent, the reply as a dict, a reply without success, one that is no JSON, a refusal's status, nobody there"""
    server = Server(b'{"success": true, "message": "loaded", "more": [1]}')
    assert run(loop, UPDATE["sglang"], server.url, "/w/1") == {"success": True, "message": "loaded", "more": [1]}
    assert run(loop, UPDATE["sglang"], server.url + "/", "/w/2", timeout=30) and [path for path, _ in server.asked] == ["/update_weights_from_disk"] * 2
    assert [body for _, body in server.asked] == [{"model_path": "/w/1"}, {"model_path": "/w/2"}]
    server = Server(b'{"results": [null]}')
    assert run(loop, UPDATE["vllm"], server.url, "/w/1") == {"results": [None]}
    assert server.asked == [("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/w/1"}})]
    with pytest.raises(AssertionError, match="Response must have 'success' field"):
        run(loop, UPDATE["sglang"], server.url, "/w/1")
    with pytest.raises(ValueError):
        run(loop, UPDATE["vllm"], Server(b"no JSON").url, "/w/1")
    for api in UPDATE:
        with pytest.raises(httpx.HTTPStatusError) as e:
            run(loop, UPDATE[api], Server(b'{"success": false, "message": "no such folder"}', status=400).url, "/w/1")
        assert e.value.response.json()["message"] == "no such folder"
        with pytest.raises(httpx.ConnectError):
            run(loop, UPDATE[api], f"http://127.0.0.1:{world.free_port()}", "/w/1")


@pytest.mark.parametrize("loop", LOOPS)
def test_silence(loop):
    """a server that does not answer is given up after the timeout, with the exception of the loop's own deadlines"""
    server = Server(gated=True)
    for api in UPDATE:
        with pytest.raises(SLOW[loop]):
            run(loop, UPDATE[api], server.url, "/w/1", timeout=0.3)
        with pytest.raises(SLOW[loop]):
            run(loop, ENGINE[api](server.url, timeout=0.3).update_weights_from_checkpoint, "/w/1")


@pytest.mark.parametrize("loop", LOOPS)
def test_order(loop):
    """replies are in the engines' order, not in that of their arrival, and the updates run at the same time"""
    first, second, own = Server(b'{"success": true, "message": "first"}', gated=True), Server(b'{"results": ["second"]}'), []

    class Own:
        """An engine of a caller's own."""

        async def update_weights_from_checkpoint(self, checkpoint_path):
            await anyio.to_thread.run_sync(second.arrived.wait, 30)
            own.append(checkpoint_path)
            first.gate.set()
            return {"own": True}

    engines = (d5.SGLangEngine(first.url), d5.VLLMEngine(second.url, 30.0), Own())
    replies = run(loop, d5.sync_weights_to_engines, engines, "/w/1")
    assert replies == [{"success": True, "message": "first"}, {"results": ["second"]}, {"own": True}] and own == ["/w/1"]


@pytest.mark.parametrize("loop", LOOPS)
def test_first_failure(loop):
    """the first failure is raised and cancels the updates that still run"""
    silent = Server(gated=True)
    refuses = Server(b"{}", status=400, gated=True)

    async def refuse_later():
        async with anyio.create_task_group() as group:
            async def release():
                await anyio.to_thread.run_sync(silent.arrived.wait, 30)
                refuses.gate.set()

            group.start_soon(release)
            try:
                await d5.sync_weights_to_engines([d5.SGLangEngine(silent.url), d5.VLLMEngine(refuses.url)], "/w/1")
            except BaseExceptionGroup as e:
                return e
        raise AssertionError("nothing was raised")

    group = run(loop, refuse_later)
    assert [type(e) for e in group.exceptions] == [httpx.HTTPStatusError] and not silent.gate.is_set()


@pytest.mark.parametrize("loop", LOOPS)
def test_engines(loop):
    """the reference engine, by both APIs, loads what it is told: its parameters are the checkpoint's, bit for bit"""
    folders = {v: world.checkpoint(world.SMALL, seed=v) for v in (1, 2)}
    engines = [world.Engine(folders[1], api=api) for api in ("sglang", "vllm")]
    want = world.Engine(folders[2]).checksum()
    replies = run(loop, d5.sync_weights_to_engines, [ENGINE[e.api](e.url) for e in engines], folders[2])
    assert replies[0]["success"] is True and "results" in replies[1]
    assert [e.checksum() for e in engines] == [want, want] and engines[0].generate() and engines[1].generate()
    with pytest.raises(httpx.HTTPStatusError):
        run(loop, UPDATE["sglang"], engines[0].url, folders[2] + "/nowhere")
