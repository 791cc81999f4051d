# sanitizers: address
# timeout: 360, takes: 15
"""wsync doctor and wsync version, with the stand-in for CUDA's driver where there is no GPU."""
import os

import pytest

from sharing import Share
from world import *

CUDA, NCCL = (os.path.join(BUILD, "tests/fakes", name) for name in ("libcuda.so.1", "libnccl.so.2"))
STRATEGIES = ["packed_cuda_ipc", "cuda_ipc", "ipc", "broadcast", "dir", "ucx", "tcp"]


def doctor(*args, cuda=CUDA, fake="", **env):
    """(exit status, {name: (state, text)}) of the findings."""
    env = dict(os.environ, WSYNC_LIBCUDA=cuda, WSYNC_LIBNCCL="/nowhere/libnccl.so.2", WSYNC_FAKE_CUDA=fake) | env
    r = wsync("doctor", *args, "--json", check=False, env=env)
    assert "Sanitizer" not in r.stderr, r.stderr
    said = json.loads(r.stdout)
    found = {row["name"]: (row["state"], row["text"]) for row in said["checks"]}
    broken = [row for row in said["checks"] if row["state"] == "broken"]
    assert said["ok"] == (not broken) and r.returncode == (1 if broken else 0), (r.returncode, broken)
    assert all(row["text"] and row["state"] in ("ok", "note", "broken") for row in said["checks"]), said
    return r.returncode, found


def need_stand_in():
    if not os.path.exists(CUDA):
        pytest.skip("built without CUDA's headers")


def test_shared_folder():
    "a folder that wsync share has mounted is none of models: the doctor says who may use it, and looks for no engine in it"
    need_fuse()
    agent, folder = Agent(), unique("out")
    Share(agent, folder)
    text = wsync("doctor", check=False).stdout
    assert [line.split()[:2] for line in text.splitlines() if folder + ":" in line] == [["ok", "share"]], text


def test_version():
    "version prints what was built in: libfuse, CUDA, NCCL and kernels, or why not"
    lines = wsync("version").stdout.splitlines()
    assert lines[0].startswith("wsync 0.") and lines[1].startswith("libfuse 3.")
    for part in ("CUDA", "NCCL", "kernels"):
        assert any(part in line for line in lines[4:]), (part, lines)
    if os.path.exists(CUDA):
        assert any(line.startswith("CUDA 1") and "headers" in line for line in lines), lines


def test_machine():
    "doctor: kernel, libfuse, memory, limits, and an agent that answers, is absent, or is named and does not answer"
    names = {"kernel", "fuse", "libfuse", "passthrough", "huge pages", "memory", "locked memory", "open files", "agent", "socket"}
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    code, found = doctor("--agent", f"unix:{agent.sock}")
    assert code == 0 and set(found) - {"mount", "share", "port", "adapter", "grant"} == names, found  # other tests' mounts are there, too
    assert found["socket"] == ("ok", f"{agent.sock}: root can publish and read by it"), found["socket"]
    assert found["agent"] == ("ok", f"unix:{agent.sock} answers and lists 1 models"), found["agent"]
    agent.kill()
    code, found = doctor("--agent", f"unix:{agent.sock}")
    assert code == 1 and found["agent"][0] == "broken", found
    if not os.path.exists("/run/wsync/agent.sock"):
        code, found = doctor()
        assert code == 0 and found["agent"][0] == "note" and "--agent" in found["agent"][1], found
    text = wsync("doctor", check=False).stdout
    assert "kernel" in text and text.startswith("ok "), text


def test_grant():
    "doctor says what gives a mount its privileges here, where it lacks them"
    if os.geteuid() != 0:
        pytest.skip("needs root to give up CAP_SYS_ADMIN")
    without = ["setpriv", "--bounding-set=-sys_admin", WSYNC, "doctor", "--json"]

    def grant(**env):
        out = subprocess.run(without, env={**os.environ, **env}, capture_output=True, text=True, timeout=60 * SLOW).stdout
        return next(l for l in json.loads(out)["checks"] if l["name"] == "grant")["text"]

    assert grant(KUBERNETES_SERVICE_HOST="10.0.0.1").startswith("Kubernetes: ") and ": " in grant()
    need_fuse()
    assert "grant" not in wsync("doctor").stdout


def test_what_hangs():
    "what does not answer is ended and named, and the rest is looked at; with --timeout nothing takes longer than that"
    need_fuse()
    agent = Agent()
    mount = Mount(agent.url)
    suspend(mount.pid)
    suspend(agent.pid)
    try:
        text = wsync("doctor", "--agent", agent.url, check=False, timeout=120).stdout
        # where mounts of other tests hang, too, it may not have its turn
        assert re.search(rf"^note +mount +{mount.path}: (the look at it was ended after \d+ s|not looked at)", text, re.M), text
        assert re.search(rf"^broken +agent +{agent.url}", text, re.M), text
        assert re.search(r"^ok +kernel ", text, re.M), text
        r = wsync("doctor", "--timeout", 2, "--agent", agent.url, check=False, timeout=60)
        assert r.returncode == 1 and re.search(rf"^broken +agent +{agent.url}: the look at it was ended after [12] s", r.stdout, re.M), r.stdout
        assert "not looked at, since the time is over; --timeout gives more" in r.stdout, r.stdout
    finally:
        os.kill(agent.pid, signal.SIGCONT)
        os.kill(mount.pid, signal.SIGCONT)


def test_usage():
    "an unknown topic is refused"
    r = wsync("doctor", "feet", check=False)
    assert r.returncode == 2 and "gpu" in r.stderr, r.stderr


def test_no_gpu():
    "without a driver or devices doctor reports that, and does not fail"
    for env in (dict(cuda="/nowhere/libcuda.so.1"), dict(fake="devices=0")):
        if "fake" in env and not os.path.exists(CUDA):
            continue
        if os.path.exists("/proc/driver/nvidia/version"):
            pytest.skip("there is a GPU's kernel module")
        code, found = doctor("gpu", **env)
        assert code == 0 and found["driver"][0] == "note" and "no GPU here" in found["driver"][1], found
        assert [n[9:] for n in found if n.startswith("strategy ")] == STRATEGIES, found
        for name in STRATEGIES[:2] + ["broadcast"]:
            assert found[f"strategy {name}"][0] == "note" and "not used: " in found[f"strategy {name}"][1], found
        assert found["strategy tcp"][0] == found["strategy ipc"][0] == "ok"


def test_devices():
    "each device: its model, copies, pinning, kernels, sharing, paths to other devices"
    need_stand_in()
    code, found = doctor("gpu")
    assert code == 0, found
    assert "2 devices" in found["driver"][1] and "CUDA 13.0" in found["driver"][1]
    for i in (0, 1):
        about = found[f"device {i}"][1]
        assert "GPU-" in about and "bus 0000:" in about and "capability 9.0" in about and "free of 268 MB" in about, about
        for what in ("sharing", "plain copies", "pinned regions", "pinned memory", "export"):
            assert found[f"device {i} {what}"][0] == "ok", (what, found)
        assert "GB/s to it" in found[f"device {i} pinned memory"][1] or "MB/s to it" in found[f"device {i} pinned memory"][1]
        assert found[f"device {i} peer"] == ("ok", f"reads the memory of device {1 - i}")
        kernels = found[f"device {i} kernels"]
        assert kernels == ("ok", "run here") or kernels[0] == "note" and "no kernels" in kernels[1], kernels
    assert found["pid namespace"][0] in ("ok", "note") and found["ipc namespace"][0] in ("ok", "note")


def test_lacks():
    "a missing feature of a device is a note: kernels, sharing, peers, memory"
    need_stand_in()
    code, found = doctor("gpu", fake="peer=0,vmm=0,legacy=0,kernels=0")
    assert code == 0, found
    for what in ("sharing", "kernels", "export", "peer"):
        assert found[f"device 0 {what}"][0] == "note", (what, found)
    code, found = doctor("gpu", fake="memory=16M,devices=1")
    assert code == 0 and found["device 0 memory"][0] == "note" and "16 MiB" in found["device 0 memory"][1], found
    code, found = doctor("gpu", fake="devices=1", WSYNC_KERNELS="0")
    assert code == 0 and found["device 0 kernels"][0] == "note", found


def test_broken():
    "a driver, copy or kernel that exists and does not work gives exit status 1, without a hang"
    need_stand_in()
    for fake, name, word in (("fail=cuInit:1:999", "driver", "starting"), ("driver=11000", "driver", "update"),
                             ("devices=1,fail=cuMemcpyAsync:2:700", "device 0 plain copies", "illegal"),
                             ("devices=1,fault=cuMemcpyAsync:1", "device 0 plain copies", "illegal"),
                             ("devices=1,fail=cuStreamCreate:1:719", "device 0 memory", "stream"),
                             ("devices=1,fail=cuMemHostAlloc:1:1", "device 0 pinned memory", "pinning")):
        code, found = doctor("gpu", fake=fake)
        assert code == 1 and found[name][0] == "broken" and word in found[name][1], (fake, found)
    bad = unique("libcuda")
    with open(bad, "wb") as f:
        f.write(b"no library")
    code, found = doctor("gpu", cuda=bad)
    assert found["driver"][0] == "note", found  # no user may open it


def test_nccl():
    "NCCL: its release, or that it is missing"
    need_stand_in()
    code, found = doctor("gpu", fake="devices=1")
    assert code == 0 and found["NCCL"][0] == "note", found
    if not os.path.exists(NCCL):
        pytest.skip("built without NCCL's headers")
    code, found = doctor("gpu", fake="devices=1", WSYNC_LIBNCCL=NCCL)
    assert code == 0 and found["NCCL"][0] == "ok" and found["NCCL"][1].startswith("2."), found
    assert found["strategy broadcast"][0] == "ok", found
    code, found = doctor("gpu", fake="devices=1", WSYNC_LIBNCCL=NCCL, WSYNC_FAKE_NCCL="version=32000")
    assert code == 1 and found["NCCL"][0] == "broken" and found["strategy broadcast"][0] == "note", found
