#!/usr/bin/env python3
# sanitizers: address thread
# timeout: 240
"""By which ways weights come to a mount: the list that is set, what it keeps out, its order, the reasons in status."""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from world import *


def world(stack, source="{url}", options="", versions=(1,)):
    """source: of {url}, {sock} and {dir}, the last one a folder with the same versions."""
    need_fuse()
    agent = Agent(stack)
    folder = unique("folders")
    for v in versions:
        made = checkpoint(MEDIUM, folder=f"{folder}/actor/{v}", seed=v)
        if "{url}" in source or "{sock}" in source:
            agent.publish("actor", v, made)
    mount = Mount(stack, source.format(url=agent.url, sock=f"unix:{agent.sock}", dir=f"dir:{folder}"), options)
    mount.wait_version("actor", versions[-1])
    return agent, mount


def pulled(mount, version=1):
    """What status says of a version after a pull: (strategy, {strategy: why not})."""
    mount.write(f"pull {version}", "actor/ctl")
    return said(mount, version)


def said(mount, version=1):
    line = mount.status("actor")[f"version.{version}"]
    found = re.search(r' how="([^"]*)" strategy=(\S+)(?: why_not="([^"]*)")? seconds=', line)
    assert found, line
    reasons = dict(part.split(": ", 1) for part in found.group(3).split("; ")) if found.group(3) else {}
    return found.group(2), reasons


def test_grammar(stack):
    "strategy: what is no list is refused with a sentence that names what there is; ctl shows the command"
    agent, mount = world(stack)
    assert "\nstrategy auto|LIST\n" in mount.text("actor/ctl") and mount.status("actor")["strategy"] == "auto"
    for text, word in {"strategy": "missing", "strategy pigeon": "pigeon", "strategy ipc,,tcp": "''", "strategy ,": "''",
                       "strategy tcp,ipc,tcp": "twice", "strategy tcp,auto": "'auto'", "strategy ipc tcp": "one word too many",
                       "strategy TCP": "'TCP'", "strategy archive": "packed_cuda_ipc"}.items():
        assert mount.refused(text, "actor/ctl") == "EINVAL", text
        assert word in mount.text("actor/last_error"), (text, mount.text("actor/last_error"))
    assert mount.refused("strategy ipc", "ctl") == "EINVAL"  # of a model, not of the mount
    assert mount.status("actor")["strategy"] == "auto"
    mount.write("strategy cuda_ipc,ipc,tcp", "actor/ctl")
    assert mount.status("actor")["strategy"] == "cuda_ipc,ipc,tcp"
    assert "strategy model=actor strategy=cuda_ipc,ipc,tcp" in mount.text("actor/events")


def test_option(stack):
    "strategy= and device= of a mount; a list that is none is refused before anything is mounted"
    for options, word in {"strategy=tcp:pigeon": "strategy", "strategy=": "strategy", "device=one": "device", "device=-1": "device"}.items():
        r = wsync("mount", "-f", "-o", options, "http://127.0.0.1:1", unique("none"), check=False)
        assert r.returncode == 2 and word in r.stderr, (options, r.returncode, r.stderr)
    agent, mount = world(stack, options="strategy=ipc:tcp,device=1,keep=2")
    assert mount.status("actor")["strategy"] == "ipc,tcp"
    assert pulled(mount) == ("tcp", {"ipc": "no unix: source"})
    mount.write("strategy auto", "actor/ctl")
    assert mount.status("actor")["strategy"] == "auto"


def test_kept(stack):
    "a model's list is there again after the daemon was killed; one that was never set is not kept"
    agent, mount = world(stack, "{sock},{url}")
    agent.publish("critic", 1, checkpoint(SMALL))
    mount.wait_version("critic", 1)
    mount.write("strategy tcp,ipc", "actor/ctl")
    mount.write("policy pull", "critic/ctl")
    mount.kill()
    again = Mount(stack, f"unix:{agent.sock},{agent.url}", "strategy=dir:tcp", path=mount.path)
    again.wait_version("actor", 1)
    again.wait_version("critic", 1)
    assert again.status("actor")["strategy"] == "tcp,ipc" and again.status("critic")["strategy"] == "dir,tcp"
    assert pulled(again)[0] == "tcp"


def test_left_out(stack):
    "a list of ipc alone and a source by tcp: the pull fails with EHOSTUNREACH and says what to do; listing goes on"
    agent, mount = world(stack, versions=(1, 2))
    mount.write("strategy ipc", "actor/ctl")
    assert mount.refused("pull 1", "actor/ctl") == "EHOSTUNREACH"
    error = mount.text("actor/last_error")
    assert "actor/1 can be reached by tcp" in error and "its strategies are ipc" in error and "strategy auto" in error, error
    assert said(mount) == ("none", {"ipc": "no unix: source"})
    assert sorted(os.listdir(mount.file("actor/2"))) == [".wsync", "config.json", "model.safetensors", "tensors"]
    assert mount.status("actor")["version.2"].startswith("known ") and mount.status()["moved_bytes"] == "0"
    try:
        mount.read("actor/2/config.json")
        raise AssertionError("a way that is not in the list was taken")
    except OSError as e:
        assert e.errno == errno.EHOSTUNREACH, e
    time.sleep(1.1)  # readers are held off for a second after a failure
    mount.write("strategy auto", "actor/ctl")
    assert pulled(mount, 2)[0] == "tcp"


def test_order(stack):
    "sources are asked in the order of the list, whatever the order of adding; auto takes the fastest first"
    agent, mount = world(stack, "{url},{sock}", versions=(1, 2))
    strategy, why = pulled(mount, 1)
    assert strategy == "ipc" and set(why) == {"packed_cuda_ipc", "cuda_ipc"}, (strategy, why)
    mount.write("strategy tcp,ipc", "actor/ctl")
    assert pulled(mount, 2) == ("tcp", {})
    agent.publish("actor", 3, checkpoint(MEDIUM, seed=3))
    mount.wait_version("actor", 3)
    mount.write("strategy dir,ipc,tcp", "actor/ctl")
    assert pulled(mount, 3) == ("ipc", {"dir": "no dir: source"})
    assert mount.read("actor/3/config.json")


def test_dir(stack):
    "a folder of checkpoints as the source"
    agent, mount = world(stack, "{dir}", "strategy=tcp:dir")
    assert pulled(mount) == ("dir", {"tcp": "no http:// source"})


def test_reasons(stack):
    "auto over tcp: a reason for each faster way"
    agent, mount = world(stack, versions=(1, 2))
    assert "strategy=" not in mount.status("actor")["version.1"]  # nothing was pulled yet
    strategy, why = pulled(mount)
    assert strategy == "tcp" and list(why) == ["packed_cuda_ipc", "cuda_ipc", "ipc", "broadcast", "dir"], (strategy, why)
    assert why["ipc"] == "no unix: source" and why["dir"] == "no dir: source"
    assert all(len(reason) > 10 for reason in why.values()), why
    # The second one comes as a delta of the first or whole: by tcp either way.
    assert pulled(mount, 2)[0] == "tcp"


def test_source_ended(stack):
    "ipc first, and its agent has ended: the next in the list carries the rest, and the reason is the agent's"
    need_fuse()
    near, far = Agent(stack), Agent(stack)
    made = checkpoint(MEDIUM, seed=1)
    for agent in (near, far):
        agent.publish("actor", 1, made, "--run", "0123456789abcdef")
    mount = Mount(stack, f"unix:{near.sock},{far.url}")
    mount.wait_version("actor", 1)
    wait_for(lambda: mount.text("status").count(" up ") == 2, "both sources")
    near.kill()
    wait_for(lambda: " down " in mount.text("status"), "the end of one")
    mount.write("strategy ipc,tcp", "actor/ctl")
    strategy, why = pulled(mount)
    assert strategy == "tcp" and why["ipc"] and why["ipc"] != "no unix: source", (strategy, why)


def test_link_mode(stack):
    "where memory is not handed over it is still ipc that the bytes came by"
    agent, mount = world(stack, "{sock}", "reads=link,strategy=ipc")
    assert pulled(mount) == ("ipc", {})


run(test_grammar, test_option, test_kept, test_left_out, test_order, test_dir, test_reasons, test_source_ended, test_link_mode)
