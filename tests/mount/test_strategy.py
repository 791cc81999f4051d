# beside others
# sanitizers: address
# timeout: 240, takes: 20
"""A mount's transports (strategy): the configured list, what it excludes, its order, the reasons in status."""
import os

import pytest

from world import *


def world(source="{url}", options="", versions=(1,)):
    """An agent and a mount. source: may contain {url}, {sock} and {dir}, a folder with the same versions."""
    need_fuse()
    agent = Agent()
    folder = unique("folders")
    for v in versions:
        made = checkpoint(MEDIUM, folder=f"{folder}/actor/{v}", seed=v)
        if "{url}" in source or "{sock}" in source:
            agent.publish("actor", v, made)
    mount = Mount(source.format(url=agent.url, sock=f"unix:{agent.sock}", dir=f"dir:{folder}"), options)
    for v in versions:
        mount.wait_version("actor", v, source.count(",") + 1)
    return agent, mount


def test_grammar():
    "strategy: a malformed list is refused with the possible values; ctl shows the command"
    agent, mount = world()
    assert "\nstrategy auto|LIST\n" in mount.text("actor/ctl") and mount.status("actor")["strategy"] == "auto"
    for text, word in {"strategy": "missing", "strategy pigeon": "pigeon", "strategy ipc,,tcp": "''", "strategy ,": "''",
                       "strategy tcp,ipc,tcp": "twice", "strategy tcp,auto": "goes with no others", "strategy ipc tcp": "one word too many",
                       "strategy TCP": "'TCP'", "strategy archive": "packed_cuda_ipc"}.items():
        assert mount.refused(text, "actor/ctl") == "EINVAL", text
        assert word in mount.text("actor/last_error"), (text, mount.text("actor/last_error"))
    assert mount.refused("strategy ipc", "ctl") == "EINVAL"  # a model's, not the mount's
    assert mount.status("actor")["strategy"] == "auto"
    mount.write("strategy cuda_ipc,ipc,tcp", "actor/ctl")
    assert mount.status("actor")["strategy"] == "cuda_ipc,ipc,tcp"
    assert "strategy model=actor strategy=cuda_ipc,ipc,tcp" in mount.text("actor/events")


def test_option():
    "the mount's options strategy= and device=; a malformed list is refused before the mount"
    for options, word in {"strategy=tcp:pigeon": "strategy", "strategy=": "strategy", "device=one": "device", "device=-1": "device"}.items():
        r = wsync("mount", "-f", "-o", options, "http://127.0.0.1:1", unique("none"), check=False)
        assert r.returncode == 2 and word in r.stderr, (options, r.returncode, r.stderr)
    agent, mount = world(options="strategy=ipc:tcp,device=1,keep=2")
    assert mount.status("actor")["strategy"] == "ipc,tcp"
    assert pulled(mount) == ("tcp", {"ipc": "no unix: source"})
    mount.write("strategy auto", "actor/ctl")
    assert mount.status("actor")["strategy"] == "auto"


def test_kept():
    "a model's list survives a killed daemon; a list that was never set is not stored"
    agent, mount = world("{sock},{url}")
    agent.publish("critic", 1, checkpoint(SMALL))
    mount.wait_version("critic", 1)
    mount.write("strategy tcp,ipc", "actor/ctl")
    mount.write("policy pull", "critic/ctl")
    mount.kill()
    again = Mount(f"unix:{agent.sock},{agent.url}", "strategy=dir:tcp", path=mount.path)
    again.wait_version("actor", 1, sources=2)
    again.wait_version("critic", 1)
    assert again.status("actor")["strategy"] == "tcp,ipc" and again.status("critic")["strategy"] == "dir,tcp"
    assert pulled(again)[0] == "tcp"


def test_left_out():
    "the list ipc alone with a tcp source: the pull fails with EHOSTUNREACH and says what to do; listing works"
    agent, mount = world(versions=(1, 2))
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
    time.sleep(1.1)  # reads fail without another pull for a second after a failure
    mount.write("strategy auto", "actor/ctl")
    assert pulled(mount, 2)[0] == "tcp"


def test_ucx_alone():
    "the list ucx alone with an http:// source: the error says that tcp has to be listed, too, and then it comes"
    agent, mount = world()
    mount.write("strategy ucx", "actor/ctl")
    assert mount.refused("pull 1", "actor/ctl") == "EHOSTUNREACH"
    error = mount.text("actor/last_error")
    assert "its strategies are ucx" in error and 'tcp, which has to be listed behind it: echo "strategy ucx,tcp" > ctl' in error, error
    time.sleep(1.1)
    mount.write("strategy ucx,tcp", "actor/ctl")
    assert pulled(mount)[0] == "tcp"


def test_order():
    "sources are tried in the list's order, whatever the order in which they were added; auto tries the fastest first"
    agent, mount = world("{url},{sock}", versions=(1, 2))
    strategy, why = pulled(mount, 1)
    assert strategy == "ipc" and set(why) == {"packed_cuda_ipc", "cuda_ipc"}, (strategy, why)
    mount.write("strategy tcp,ipc", "actor/ctl")
    assert pulled(mount, 2) == ("tcp", {})
    agent.publish("actor", 3, checkpoint(MEDIUM, seed=3))
    mount.wait_version("actor", 3, sources=2)
    mount.write("strategy dir,ipc,tcp", "actor/ctl")
    assert pulled(mount, 3) == ("ipc", {"dir": "no dir: source"})
    assert mount.read("actor/3/config.json")


def test_dir():
    "a folder of checkpoints as the source"
    agent, mount = world("{dir}", "strategy=tcp:dir")
    assert pulled(mount) == ("dir", {"tcp": "no http:// source"})


def test_reasons():
    "auto over tcp: a reason for each faster transport"
    agent, mount = world(versions=(1, 2))
    assert "strategy=" not in mount.status("actor")["version.1"]  # nothing was pulled yet
    strategy, why = pulled(mount)
    assert strategy == "tcp" and set(why) == {"packed_cuda_ipc", "cuda_ipc", "ipc", "broadcast", "dir", "ucx"}, (strategy, why)
    assert why["ipc"] == "no unix: source" and why["dir"] == "no dir: source"
    assert all(len(reason) > 10 for reason in why.values()), why
    # The second version arrives as a delta or whole: by tcp either way.
    assert pulled(mount, 2)[0] == "tcp"


def test_source_ended():
    "ipc first, and its agent ends: the next in the list pulls the rest, and the reason is the agent's"
    need_fuse()
    near, far = Agent(), Agent()
    made = checkpoint(MEDIUM, seed=1)
    for agent in (near, far):
        agent.publish("actor", 1, made, "--run", "0123456789abcdef")
    mount = Mount(f"unix:{near.sock},{far.url}")
    mount.wait_version("actor", 1, sources=2)
    near.kill()
    wait_for(lambda: " down " in mount.text("status"), "the end of one")
    mount.write("strategy ipc,tcp", "actor/ctl")
    strategy, why = pulled(mount)
    assert strategy == "tcp" and why["ipc"] and why["ipc"] != "no unix: source", (strategy, why)


def test_link_mode():
    "where memory cannot be shared with readers the bytes still arrive by ipc"
    agent, mount = world("{sock}", "reads=link,strategy=ipc")
    assert pulled(mount) == ("ipc", {})



CUDA, NCCL = (os.path.join(BUILD, "tests/fakes", name) for name in ("libcuda.so.1", "libnccl.so.2"))


@contextlib.contextmanager
def environment(nccl="", cuda="devices=4"):
    """Sets the libraries for GPUs and NCCL in processes that are started within it."""
    if not os.path.exists(CUDA) or not os.path.exists(NCCL):
        pytest.skip("built without the headers of CUDA or NCCL")
    env = dict(WSYNC_LIBCUDA=CUDA, WSYNC_LIBNCCL=NCCL, WSYNC_FAKE_CUDA=cuda, WSYNC_FAKE_NCCL=nccl)
    os.environ.update(env)
    try:
        yield
    finally:
        for name in env:
            del os.environ[name]


BUCKETS = {f"t{i}": ("U8", [4 << 20]) for i in range(20)}  # of several buckets


def broadcaster(window=100, tensors=MEDIUM):
    need_fuse()
    with environment():
        agent = Agent("--broadcast", 0, "--broadcast-window", window)
    agent.folder = checkpoint(tensors, seed=1)
    agent.publish("actor", 1, agent.folder)
    return agent


def receiver(agent, options, source=None, **how):
    with environment(**how):
        mount = Mount(source or agent.url, options)
    mount.wait_version("actor", 1)
    return mount


def how(mount, version=1):
    return re.search(r' how="([^"]*)"', mount.status("actor")[f"version.{version}"]).group(1)


def same(agent, mount):
    return tensors_of(mount.file("actor/1/model.safetensors")) == tensors_of(agent.folder + "/model.safetensors")


def test_broadcast():
    "two mounts pull at once: NCCL carries all bytes, as published, and tcp none; also if tcp is not in the list"
    agent = broadcaster(1500)
    mounts = [receiver(agent, "device=1"), receiver(agent, "device=2,strategy=broadcast")]
    for m in mounts:
        m.write("pull 1 async", "actor/ctl")
    for m, faster in zip(mounts, (["packed_cuda_ipc", "cuda_ipc", "ipc"], [])):
        wait_for(lambda: m.text("actor/1/.wsync/state").startswith("ready"), "the pull")
        assert re.fullmatch(r"broadcast to [12] at \d+\.\d GB/s in 1 round", how(m)), how(m)
        strategy, why = said(m)
        assert strategy == "broadcast" and list(why) == faster, (strategy, why)
        assert same(agent, m)


def test_broadcast_cut():
    "NCCL fails midway: received blocks stay, and tcp pulls the rest; without tcp in the list the pull fails"
    agent = broadcaster(tensors=BUCKETS)
    mount = receiver(agent, "device=1", nccl="fail=ncclBroadcast:4:2")
    strategy, why = pulled(mount)
    assert strategy == "broadcast" and re.fullmatch(r"broadcast to 1 at \S+ GB/s in \d+ rounds?, then tcp \S+ MB", how(mount)), how(mount)
    assert same(agent, mount)
    assert "broadcast given up" in mount.text(), mount.text()
    line = mount.status("actor")["version.1"]
    moved, size = (int(re.search(rf" {key}=(\d+)", line).group(1)) for key in ("moved", "bytes"))
    assert moved == size, line  # nothing is sent twice
    alone = receiver(agent, "device=2,strategy=broadcast", nccl="fail=ncclBroadcast:1:2")
    assert alone.refused("pull 1", "actor/ctl") == "EHOSTUNREACH"
    strategy, why = said(alone)
    assert strategy == "none" and why["broadcast"], why


def test_broadcast_refused():
    "no broadcast at the source, another NCCL release, no such device: tcp pulls the version, and the reason is reported"
    agent = broadcaster()
    plain = Agent()
    plain.publish("actor", 1, agent.folder)
    for source, options, nccl, word in ((plain.url, "device=1", "", "broadcasts nothing"), (agent.url, "device=1", "version=21803", "2.18.3"),
                                        (agent.url, "device=9", "", "no device 9"), (agent.url, "device=1,strategy=broadcast:tcp", "version=30100", "3.1.0")):
        mount = receiver(agent, options, source, nccl=nccl)
        strategy, why = pulled(mount)
        assert strategy == "tcp" and word in why["broadcast"] and how(mount) == "tcp full", (strategy, why)
    mount = receiver(agent, "device=1,strategy=tcp:broadcast")
    assert pulled(mount) == ("tcp", {}) and agent.get("/v1/status")["broadcast"]["rounds"] == 0
    near = receiver(agent, "device=1,reads=link", f"unix:{agent.sock}")  # bytes are copied on the source's host, but not sent
    assert pulled(near)[0] == "ipc"


def test_broadcast_of_a_folder():
    "a folder broadcasts nothing"
    need_fuse()
    made = checkpoint(MEDIUM, folder=f"{unique('folders')}/actor/1")
    with environment():
        mount = Mount("dir:" + os.path.dirname(os.path.dirname(made)))
    mount.wait_version("actor", 1)
    strategy, why = pulled(mount)
    assert strategy == "dir" and why["broadcast"], (strategy, why)



def test_shared_on_gpus():
    "a version that its trainer shares on GPUs: the mount pulls the bytes, and reports that engines can map it"
    need_fuse()
    agent = Agent()
    with environment():
        rank = subprocess.Popen([f"{BUILD}/tests/tools/gpu_rank", f"unix:{agent.sock}", "actor", "0", "1", "share=cuda_ipc"], text=True,
                                bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        at_end(lambda: (rank.stdin.close(), rank.wait(20 * SLOW), rank.stdout.close()))
        assert rank.stdout.readline().startswith("ready")
        for command in ("offload 1", "wait 1"):
            rank.stdin.write(command + "\n")
            assert not rank.stdout.readline().startswith("error"), command
        near, far = Mount(f"unix:{agent.sock}"), Mount(agent.url)
    for m in (near, far):
        m.wait_version("actor", 1)
    strategy, why = pulled(near)
    assert strategy == "ipc" and why["packed_cuda_ipc"] == "the source shares it by cuda_ipc", why
    assert why["cuda_ipc"].startswith("for engines only") and "cuda_ipc.json" in why["cuda_ipc"], why
    strategy, why = pulled(far)
    assert strategy == "tcp" and "no unix: source" in why["cuda_ipc"], why
