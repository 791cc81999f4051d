"""Engines' pause in a switch: one engine with 1.2 GB compared with its own load of the same files, and 64 small ones, whose
loads share this machine's cores, compared with the same calls of a bare client. And a release over eight mounts, compared with the pause of one engine."""
import json
import os
import re
import socket
import statistics
import sys
import time

os.environ.setdefault("SANITIZER", "")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rows import row
from world import *

MEGABYTES = int(os.environ.get("BENCH_MB", "1200"))
ENGINES = int(os.environ.get("BENCH_ENGINES", "64"))
ROUNDS, MOUNTS = 7, 8


def pauses(mount):
    return [float(x) for x in re.findall(r"pause=([0-9.]+)", mount.text("actor/engines"))]


def mounted(tensors):
    agent = Agent()
    for v in (1, 2):
        agent.publish("actor", v, checkpoint(tensors, seed=v), timeout=300)
    mount = Mount(agent.url)
    mount.wait_version("actor", 2)
    for v in (1, 2):
        wsync("pull", "--mount", mount.path, "actor", str(v), timeout=300)
    return mount


def pause_of_one():
    n = MEGABYTES * 1000000 // 4194304
    mount = mounted({f"layers.{i}.weight": ("BF16", [1024, 2048]) for i in range(n)})
    engine = Engine(mount.file("actor/1"))
    mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
    own, seen = [], []
    for i in range(ROUNDS + 1):
        for v in (2, 1):
            start = time.monotonic()  # the same load alone, of complete files
            engine.ask("/update_weights_from_disk", {"model_path": mount.file(f"actor/{v}"), "weight_version": str(v)})
            load = time.monotonic() - start
            mount.write(str(3 - v), "actor/version")
            if i:  # the first is a warm-up
                own.append(load)
                seen += pauses(mount)
    row("pause", statistics.median(seen), "s", statistics.median(own), 1.05, at_most=True)
    mount.end()
    engine.end()


def tell(connections, route, body):
    """All engines at the same time, on connections that are kept; each has answered 200."""
    text = json.dumps(body).encode()
    request = f"POST {route} HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text
    for c in connections:
        c.sendall(request)
    for c in connections:
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += c.recv(1 << 16) or b"\r\n\r\n"
        head, body = answer.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 200"), answer
        rest = int(re.search(rb"content-length: (\d+)", head, re.I)[1]) - len(body)
        while rest > 0 and (more := c.recv(rest)):
            rest -= len(more)
        assert rest == 0, answer


def pause_by_hand(engines, path, version):
    """What a script does that knows the engines' calls, and no more: it checks nothing, and has no way back."""
    connections = [socket.create_connection(("127.0.0.1", e.port)) for e in engines]
    start = time.monotonic()
    tell(connections, "/pause_generation", {"mode": "retract"})
    tell(connections, "/update_weights_from_disk", {"model_path": path, "weight_version": version, "flush_cache": False})
    tell(connections, "/flush_cache", {})
    tell(connections, "/continue_generation", {})
    took = time.monotonic() - start
    for c in connections:
        c.close()
    return took


def pause_of_many():
    mount = mounted(SMALL)
    engines = [Engine(mount.file("actor/1"), "--slow", "10") for _ in range(ENGINES)]
    for i, engine in enumerate(engines):
        mount.write(f"engine add e{i} sglang {engine.url}", "actor/ctl")
    seen, by_hand = [], []
    for i in range(ROUNDS + 1):
        for v in (2, 1):
            mount.write(str(v), "actor/version")
            seen.append(max(pauses(mount)))
            by_hand.append(pause_by_hand(engines, mount.file(f"actor/{v}"), str(v)))
    row(f"pause-{ENGINES}-overhead", statistics.median(seen[2:]), "s", statistics.median(by_hand[2:]), 1.2, at_most=True)


def release_to_serving():
    """A release of an existing version, from the request to the last mount's report, with engines that take as long to load as
    1.2 GB would (they sleep: eight real loads at once would measure this machine's memory)."""
    agent = Agent()
    folders = {v: checkpoint(SMALL, seed=v) for v in (1, 2)}
    for v, f in folders.items():
        agent.publish("actor", v, f)
    mounts, seen, took = [], [], []
    for i in range(MOUNTS):
        mount = Mount(agent.url, f"host=bench{i}")
        mount.wait_version("actor", 2)
        for v in (1, 2):
            wsync("pull", "--mount", mount.path, "actor", str(v))
        engine = Engine(mount.file("actor/1"), "--slow", "300")
        mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
        mounts.append(mount)
    for i in range(ROUNDS):  # one alone
        for v in (2, 1):
            mounts[0].write(str(v), "actor/version")
            seen += pauses(mounts[0])
    agent.ask("/v1/actor/1/release")  # from now on they follow releases
    for mount in mounts:
        mount.write("follow", "actor/policy")
    wait_for(lambda: all(m.text("actor/version") == "1\n" for m in mounts), "the mounts")
    for i in range(ROUNDS + 1):
        for v in (2, 1):
            wait_for(lambda: all("switching no" in m.text("actor/status") for m in mounts), "the mounts' peace")
            start = time.monotonic()
            release = agent.ask(f"/v1/actor/{v}/release")
            while not release["settled"]:
                time.sleep(0.002)
                release = agent.get(f"/v1/releases/{release['id']}")
            assert all(m["state"] == "loaded" for m in release["mounts"]) and len(release["mounts"]) == MOUNTS, release
            if i:
                took.append(time.monotonic() - start)
    row("release-to-serving", statistics.median(took), "s", statistics.median(seen), 1.5, at_most=True)


def main():
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        print("  skipped: no /dev/fuse, or not root")
        return
    with scope():
        pause_of_one()
        release_to_serving()
        pause_of_many()


main()
