# timeout: 900, takes: 90
"""A real SGLang with wsync's plug-in says which parts of its memory are released, and a mount's switch takes those back. On a CPU it keeps
what it releases: that memory goes and comes back undefined takes a GPU and --enable-memory-saver."""
import os
import subprocess
import sys

from servers import HERE, Refused, SGLangWithWsync, installed, need_real
from world import Agent, Mount, need_fuse, unique, wait_for


def released(server):
    return server.call("/server_info")["internal_states"][0]["wsync"]["released"]


def release(server, tags):
    """As trainers do: a scheduler that is not idle dies of it, and says that it is by a flush that succeeds."""
    def is_idle():
        try:
            server.call("/flush_cache", post=True)
            return True
        except Refused:
            return False

    wait_for(is_idle, "the server to be idle")
    server.call("/release_memory_occupation", {"tags": tags})


def test_switched():
    "all released, a part of it, and nothing: each switch serves its version, with all parts back and no scheduler ended"
    need_real("sglang")
    need_fuse()
    SGLangWithWsync.target = installed()
    folder = os.path.join(unique("families"))
    subprocess.run([sys.executable, os.path.join(HERE, "families.py"), folder, "llama"], check=True, timeout=300, stdin=subprocess.DEVNULL)
    agent = Agent()
    for version in (1, 2):
        agent.publish("actor", version, os.path.join(folder, "llama", str(version)))
    mount = Mount(agent.url)
    mount.wait_version("actor", 2)
    server = SGLangWithWsync(os.path.join(folder, "llama", "1"), *SGLangWithWsync.uncached)
    first = server.wait().answers()
    mount.write(f"engine add e sglang {server.url} sleep=2", "actor/ctl")
    assert released(server) == []
    second = None
    for tags, woken in ((None, []), (None, ["weights"]), (["kv_cache"], []), (["kv_cache", "weights"], ["kv_cache", "weights"])):
        for version in (2, 1):
            release(server, tags)
            assert released(server) == (sorted(tags) if tags else ["cuda_graph", "kv_cache", "weights"])
            if woken:
                server.call("/resume_memory_occupation", {"tags": woken})
            if released(server):
                wait_for(lambda: " asleep " in mount.engines()["e"], "it to be seen asleep")
            mount.write(str(version), "actor/version")
            assert released(server) == [] and mount.engines()["e"].startswith(f"serving {version} ")
            now = server.answers()
            second = second or now
            assert now == (first if version == 1 else second) and second != first
