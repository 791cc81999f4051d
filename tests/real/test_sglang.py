# timeout: 1800, takes: 150
# in every share
"""A real SGLang on a mount, switched by wsync. The reference engine imitates its reload in the other tests."""

import pytest

from scenarios import *
from servers import SGLang, Proxy
from world import unique, wait_for

API_KEY, ADMIN_KEY = "key-of-the-api", "key-of-the-admin"


def key_files(*keys):
    """The options for an API key and an admin key."""
    options = ""
    for option, key in zip(("token-file", "admin-token-file"), keys):
        path = unique("key")
        with open(path, "w") as f:
            f.write(key + "\n")
        options += f" {option}={path}"
    return options


@pytest.fixture(scope="module")
def kind():
    return SGLang


@pytest.fixture(scope="module")
def w():
    return World(SGLang)


def test_forced_shape(w):
    "force-layout with a wrong shape: SGLang dies; the switch fails, the server is unknown, the version stays"
    victim = w.ordinary[1]  # the last test of this server
    w.engine("victim", victim)
    w.switch(1)
    version = w.another("shape")
    got = w.refused(f"load {version} force-layout", f"{MODEL}/ctl")
    assert got in ("EREMOTEIO", "ECONNRESET", "EHOSTUNREACH"), (got, w.last_error())
    assert "victim" in w.last_error()
    wait_for(lambda: not victim.alive(), "the end of the victim", 60)
    wait_for(lambda: w.engines()["victim"].startswith("unknown "), "the reconciler to see it", 30)
    assert w.mount.text(f"{MODEL}/version") == "1\n"


def test_keys(w):
    "API key and admin key: a wrong one is refused before a pause, also one that changes later; with the right ones the server switches"
    server = SGLang(w.path(1), *SGLang.uncached, "--api-key", API_KEY, "--admin-api-key", ADMIN_KEY,
                    "--weight-loader-disable-mmap")  # it reads files in another way; the server of test_pair prefetches them
    server.key = API_KEY
    server.wait()
    proxy = Proxy(server)
    for keys in ((), ("wrong",), (API_KEY,), (ADMIN_KEY,), (API_KEY, "wrong")):
        assert w.refused(f"engine add e1 sglang {proxy.url}{key_files(*keys)}", f"{MODEL}/ctl") == "EACCES", keys
        assert "token-file=" in w.last_error(), w.last_error()
    assert "/pause_generation" not in proxy.seen, proxy.seen
    w.engine("e1", proxy, key_files(API_KEY, ADMIN_KEY))
    for version in (2, 1):
        w.switch(version)
        w.check(server, version)
    proxy.key = "another"  # as if the admin key had been changed
    assert w.refused(2) == "EACCES" and "token-file=" in w.last_error(), w.last_error()
    wait_for(lambda: w.engines()["e1"].startswith("serving 1 "), "the reconciler to ask it", 30)
    w.check(server, 1)  # it was not paused
    proxy.key = None
    w.switch(2)
    w.check(server, 2)
    told = w.mount.text() + "".join(w.mount.text(MODEL, name) for name in ("engines", "events", "status", "last_error"))
    assert API_KEY not in told and ADMIN_KEY not in told, "a key was shown"
