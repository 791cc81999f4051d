import asyncio
import errno
import threading
import time

import pytest
import world
import wsync
from wsync.lib._library import ffi, lib


@pytest.fixture
def folders():
    return {v: world.checkpoint(world.SMALL, seed=v) for v in (1, 2)}


UPDATE = {"sglang": wsync.update_sglang_weights_from_disk, "vllm": wsync.update_vllm_weights_from_disk}
AIO = {"sglang": wsync.aio.update_sglang_weights_from_disk, "vllm": wsync.aio.update_vllm_weights_from_disk}


@pytest.mark.parametrize("api", UPDATE)
def test_update(folders, api):
    """an engine loads a folder, reports its version and serves again, also by asyncio; a refusal raises an error with a message"""
    engine = world.Engine(folders[1], api=api)
    want = world.Engine(folders[2], api=api).checksum()
    UPDATE[api](engine.url, folders[2], version=2, pause_mode="abort", timeout=30)
    assert engine.serves() == "2" and engine.checksum() == want
    asyncio.run(AIO[api](engine.url, folders[1], version="1"))
    assert engine.serves() == "1" and engine.checksum() != want
    with pytest.raises(wsync.Error, match="no pause mode") as e:
        UPDATE[api](engine.url, folders[2], pause_mode="nonsense")
    assert e.value.errno == errno.EINVAL
    with pytest.raises(wsync.Error) as e:
        UPDATE[api](engine.url, folders[2] + "/nowhere")
    assert e.value.errno == errno.EREMOTEIO and "nowhere" in str(e.value), str(e.value)
    if api == "vllm":  # after a failed load vLLM cannot serve
        assert engine.is_paused() and "paused" in str(e.value)
        UPDATE[api](engine.url, folders[2])
    assert engine.generate()
    for cache, want in (("external", {"local": False, "external": False}), ("local", {"local": False, "external": True}),
                        ("keep", {"local": True, "external": True})):
        UPDATE[api](engine.url, folders[1], cache="external")
        engine.generate()  # fills both caches
        UPDATE[api](engine.url, folders[2], cache=cache)
        answer = engine.generate()
        assert (answer.get("stale_cache") or answer["meta_info"]["stale_cache"]) == want, cache
    with pytest.raises(wsync.Error, match="local, external or keep"):
        UPDATE[api](engine.url, folders[2], cache="nonsense")
    with pytest.raises(wsync.Error) as e:
        UPDATE[api](f"http://127.0.0.1:{world.free_port()}", folders[2], timeout=5)
    assert e.value.errno == errno.EHOSTUNREACH
    with pytest.raises(ValueError, match="timeout"):
        UPDATE[api](engine.url, folders[2], timeout=0)


def test_many_engines(folders):
    """many engines at once, each with its own result; an Engine's repr does not contain its token"""
    good = [world.Engine(folders[1], api=api) for api in ("sglang", "vllm")]
    engines = [wsync.Engine(e.api, e.url, version=2, token="SECRET") for e in good]
    engines.insert(1, wsync.Engine("sglang", f"http://127.0.0.1:{world.free_port()}", timeout=5))
    results = wsync.sync_weights_to_engines(engines, folders[2])
    assert [r.ok for r in results] == [True, False, True] and [r.engine for r in results] == engines
    assert results[1].error.errno == errno.EHOSTUNREACH and str(results[1].error) and results[0].pause_seconds > 0
    assert [e.serves() for e in good] == ["2", "2"]
    assert "SECRET" not in repr(results)
    results = asyncio.run(wsync.aio.sync_weights_to_engines(engines[:1], folders[1]))
    assert results[0].ok
    assert not wsync.sync_weights_to_engines([wsync.Engine("nonsense", good[0].url)], folders[1])[0].ok


def test_no_engine(folders):
    """Python, C and the command refuse a list without engines"""
    with pytest.raises(AssertionError, match="Must provide at least one engine"):
        wsync.sync_weights_to_engines([], folders[1])
    with pytest.raises(AssertionError, match="Must provide at least one engine"):
        asyncio.run(wsync.aio.sync_weights_to_engines([], folders[1]))
    assert lib.wsync_sync_weights_to_engines(ffi.NULL, 0, folders[1].encode(), ffi.NULL) == -errno.EINVAL
    done = world.wsync("sync", folders[1], check=False)
    assert done.returncode == 2 and "no engine is named" in done.stderr


class Silent:
    """A server that accepts connections and never answers."""

    def __init__(self):
        import socket
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.asked = threading.Event()
        self.held = []
        threading.Thread(target=self.accept, daemon=True).start()
        world.at_end(self.close)

    def accept(self):
        try:
            while True:
                self.held.append(self.socket.accept()[0])
                self.asked.set()
        except OSError:
            pass

    def close(self):
        self.socket.close()
        for s in self.held:
            s.close()


def test_releases_the_gil(folders):
    """other threads run while a call waits for an engine; a deadline raises Timeout; after a cancelled await the call ends by itself"""
    silent = Silent()
    caught = []

    def call():
        try:
            wsync.update_sglang_weights_from_disk(silent.url, folders[1], timeout=1)
        except wsync.Error as e:
            caught.append(e)

    thread = threading.Thread(target=call)
    thread.start()
    assert silent.asked.wait(20)
    n, end = 0, time.monotonic() + 0.2
    while time.monotonic() < end:
        n += 1
    assert n > 1000 and thread.is_alive(), "this thread did not run"

    async def cancelled():
        silent.asked.clear()
        task = asyncio.create_task(wsync.aio.update_sglang_weights_from_disk(silent.url, folders[1], timeout=1))
        await asyncio.to_thread(silent.asked.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())  # waits for the call's thread
    thread.join(60)
    assert not thread.is_alive() and isinstance(caught[0], wsync.Timeout) and caught[0].errno == errno.ETIMEDOUT
