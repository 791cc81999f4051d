# sanitizers: thread
"""The mount's HTTP server for load balancers, Kubernetes and Prometheus."""
import os
import re
import subprocess
import urllib.error

from world import *


def get(port, path, method="GET"):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def test_ready():
    "an engine is ready while it serves the current version; restarted with old weights, paused or dead it is not, immediately"
    need_fuse()
    agent, port = Agent(), free_port()
    folders = {v: checkpoint(SMALL, seed=v) for v in (1, 2)}
    for v, f in folders.items():
        agent.publish("actor", v, f)
    mount = Mount(agent.url, f"listen=127.0.0.1:{port}")
    mount.wait_version("actor", 2)
    assert get(port, "/ready/actor")[0] == get(port, "/ready/actor@fp8-block128")[0] == 404
    for name in ("%ff", "%c3", "..", "a" * 256):  # no model's, and of bytes that JSON has not
        assert get(port, f"/ready/{name}")[0] == 400, name
    sglang, vllm = Engine(folders[1]), Engine(folders[1], api="vllm")
    mount.write(f"engine add s sglang {sglang.url}", "actor/ctl")
    mount.write(f"engine add v vllm {vllm.url}", "actor/ctl")
    status, text = get(port, "/ready/actor/s")
    assert status == 503 and "no version is current" in text, text
    mount.write("2", "actor/version")
    for path in ("/ready/actor", "/ready/actor/s", "/ready/actor/v", "/ready/actor/v?behind=3"):
        status, text = get(port, path)
        assert status == 200 and json.loads(text)["ready"] and json.loads(text)["engines"][0]["behind"] == 0, text
    run = sglang.serves(whole=True).split("@")[1]
    sglang.ask("/update_weights_from_disk", {"model_path": folders[1], "weight_version": f"1@{run}"})
    status, text = get(port, "/ready/actor/s")
    assert status == 503 and "too far behind" in text, text
    assert get(port, "/ready/actor")[0] == 503 and get(port, "/ready/actor/v")[0] == 200
    assert get(port, "/ready/actor/s?behind=1")[0] == 200
    sglang.ask("/update_weights_from_disk", {"model_path": folders[2], "weight_version": "2@another-run"})
    assert get(port, "/ready/actor/s?behind=9")[0] == 503
    vllm.ask("/pause", {})
    assert "it is paused" in get(port, "/ready/actor/v")[1]
    vllm.ask("/resume", {})
    assert get(port, "/ready/actor/v")[0] == 200
    vllm.end()
    status, text = get(port, "/ready/actor/v")
    assert status == 503 and "no connection" in text, text
    Engine(folders[1], api="vllm", port=vllm.port)
    status, text = get(port, "/ready/actor/v?behind=9")
    assert status == 503 and "something else" in text, text


def test_routes():
    "metrics and liveness; wrong requests get a status and a message; a port in use makes the mount fail"
    need_fuse()
    agent, port = Agent(), free_port()
    agent.publish("actor", 1, checkpoint(SMALL))
    mount = Mount(agent.url, f"listen=127.0.0.1:{port}")
    mount.wait_version("actor", 1)
    mount.write("1", "actor/version")
    assert get(port, "/healthz") == (200, '{"ok":true}')
    status, text = get(port, "/metrics")
    assert status == 200 and 'wsync_age_seconds{model="actor"}' in text and 'wsync_behind{model="actor"} 0' in text, text
    for path, want in (("/nothing", 404), ("/ready/", 400), ("/ready/nobody", 404), ("/ready/actor/x", 404),
                       ("/ready/actor?behind=-1", 400), ("/ready/" + "x" * 400, 400), ("/ready/a%00b", 404)):
        status, text = get(port, path)
        assert status == want and "error" in json.loads(text), (path, status, text)
    assert get(port, "/healthz", "POST")[0] == 405
    try:
        Mount(agent.url, f"listen=127.0.0.1:{port}")
    except AssertionError as why:
        assert "Address already in use" in str(why), why
    else:
        raise AssertionError("a port was shared")


def test_daemonset():
    "the shipped DaemonSet mounts on a fresh node, recovers after a kill, and engines' pods do not see it read-only"
    need_fuse()
    agent, port, node = Agent(), free_port(), unique("node")
    with open(os.path.join(os.environ["ROOT"], "mount-helpers/kubernetes/wsync-mount.yaml")) as f:
        text = f.read()
    command = json.loads(re.search(r"^ *command: (\[\"sh\".*?\])$", text, re.M | re.S)[1])
    assert "readOnly" not in next(line for line in text.splitlines() if "HostToContainer," in line or "HostToContainer}" in line)
    os.makedirs(node)  # hostPath with DirectoryOrCreate
    token = unique("token")
    with open(token, "w") as f:
        f.write("not asked for\n")
    here = {"/etc/wsync/token": token, "0.0.0.0:18862": f"127.0.0.1:{port}", "$(NODE_NAME)": "node-1", "SOURCE": agent.url,
            "exec wsync": f"exec {WSYNC}", "/wsync/": node + "/"}
    each = re.compile("|".join(map(re.escape, here)))  # in one pass: the checkout's own path may contain /wsync/
    command = [each.sub(lambda found: here[found[0]], word) for word in command]

    def mounted():
        daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        at_end(daemon.wait, 60)
        at_end(daemon.terminate)
        wait_for(lambda: os.path.exists(node + "/mnt/ctl"), "the mount", 60)
        return daemon

    first = mounted()
    first.kill()
    first.wait()
    mounted()
    assert get(port, "/healthz")[0] == 200
    assert os.listdir(node + "/state")
