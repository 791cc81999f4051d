# beside others
# timeout: 480, takes: 60
# sanitizers: address
"""Adapters that engines load beside the version of their target: all engines or none, K kept, and back after restarts."""
import contextlib
import json
import os
import signal
import subprocess
import threading
import urllib.request

from adapters import WIDTH, adapter, listed, lora
from between import Between
from world import *


class World:
    """Version 1 of actor, which engines of both kinds serve, and of lora."""

    def __init__(self, apis=("vllm", "sglang"), options="", adapters="lora", **engines):
        need_fuse()
        self.agent = Agent()
        self.folder = checkpoint(MEDIUM, seed=1)
        self.agent.publish("actor", 1, self.folder)
        self.agent.publish("lora", 1, lora(1))
        self.mount = Mount(self.agent.url, options)
        self.mount.wait_version("actor", 1)
        self.mount.wait_version("lora", 1)
        self.engines = {f"{api[0]}{i}": Engine(self.folder, api=api, **engines) for i, api in enumerate(apis)}
        for name, e in self.engines.items():
            self.mount.write(f"engine add {name} {e.api} {e.url} adapters={adapters}", "actor/ctl")

    def publish(self, version, *args, model="lora", folder=None):
        self.agent.publish(model, version, folder or lora(version), *args)
        self.mount.wait_version(model, version)

    def listed(self):
        return {name: listed(e) for name, e in self.engines.items()}

    def wait_listed(self, *names, seconds=20):
        wait_for(lambda: all(set(names) == set(found) for found in self.listed().values()), f"the adapters {names}: {self.listed()}", seconds)

    def error(self, model="lora"):
        return self.mount.text(f"{model}/last_error")


def roots(engine):
    """{name: the path that it was loaded from}."""
    return {m["id"]: m["root"] for m in engine.ask("/v1/models")["data"] if m.get("parent")}


def ask_text(engine, path, body):
    request = urllib.request.Request(engine.url + path, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as r:
        return r.read().decode()


def taken(mount, text, *names):
    with contextlib.suppress(OSError):
        mount.write_once(text, *names)
        return True


def test_adapter():
    "a version is loaded on all engines under its name, without a pause; files, probes and metrics tell the name"
    port = free_port()
    w = World(options=f"listen=127.0.0.1:{port},insecure")
    assert w.mount.text("lora/engines").splitlines()[0].startswith("v0 serving none vllm "), w.mount.text("lora/engines")
    w.mount.write("1", "lora/version")
    assert w.listed() == {"v0": ["lora@1"], "s1": ["lora@1"]} and w.mount.text("lora/version") == "1\n"
    events = w.mount.text("events")
    assert "adapter-loaded model=lora engine=v0 adapter=lora@1" in events and "switched model=lora version=1" in events, events
    assert " paused " not in events and all("pause=0.000" in line for line in w.mount.engines().values()), events
    assert "adapters=lora@1" in w.mount.engines()["v0"], w.mount.engines()
    assert w.mount.engines("lora")["s1"].startswith("serving lora@1 sglang "), w.mount.engines("lora")
    assert 'wsync_adapters{model="lora",engine="v0"} 1' in w.mount.text("metrics")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready/lora") as r:
        said = json.load(r)
    assert said["adapter"] == "lora@1" and [e["adapters"] for e in said["engines"]] == [["lora@1"]] * 2, said
    w.publish(2)
    w.mount.write("load 2", "lora/ctl")
    w.wait_listed("lora@1", "lora@2")
    answer = w.engines["v0"].ask("/v1/completions", {"model": "lora@2", "prompt": "x"})
    assert answer, answer


def test_refused_by_one():
    "one engine refuses: the other unloads it again, current and what was served stay, and the error has the engine's reason"
    w = World(apis=("vllm", "vllm"))
    w.mount.write("1", "lora/version")
    w.publish(2)
    w.engines["v1"].end()
    w.engines["v1"] = Engine(w.folder, "--refuse-adapter", "lora@2", api="vllm", port=w.engines["v1"].port)
    w.wait_listed("lora@1")
    assert w.mount.refused("2", "lora/version") == "EREMOTEIO"
    assert "engine v1 (" in w.error() and "Refused" in w.error() and "every engine was brought back" in w.error(), w.error()
    assert w.listed() == {"v0": ["lora@1"], "v1": ["lora@1"]} and w.mount.text("lora/version") == "1\n"
    w.engines["v1"].end()
    assert w.mount.refused("2", "lora/version") == "EHOSTUNREACH"
    assert "no engine was told of version 2" in w.error(), w.error()
    assert listed(w.engines["v0"]) == ["lora@1"]


def test_kept():
    "K versions are kept, with their files; older ones are unloaded and let go; previous goes back without a load"
    w = World(adapters="lora:2", options="keep=1")
    for version in range(1, 5):
        if version > 1:
            w.publish(version)
        w.mount.write(str(version), "lora/version")
    w.wait_listed("lora@3", "lora@4")
    assert w.mount.refused("drop 3", "lora/ctl") == "EBUSY" and "as an adapter" in w.error(), w.error()
    wait_for(lambda: taken(w.mount, "drop 1", "lora/ctl"), "version 1 to be let go")
    loads = w.mount.text("lora/events").count("adapter-loaded")
    w.mount.write("previous", "lora/version")
    w.wait_listed("lora@3", "lora@4")
    assert w.mount.text("lora/version") == "3\n" and w.mount.text("lora/events").count("adapter-loaded") == loads
    w.mount.write("2", "lora/version")  # its name may be given again: the bytes are the same
    w.wait_listed("lora@2", "lora@3")
    for name in w.engines:
        w.mount.write(f"engine remove {name}", "actor/ctl")
    wait_for(lambda: taken(w.mount, "drop 3", "lora/ctl"), "version 3 to be let go")


def test_base_moves():
    "a load of the base leaves the adapters, which answer afterwards as before; on the way back, too"
    w = World()
    w.mount.write("1", "actor/version")
    w.mount.write("1", "lora/version")
    w.publish(2, model="actor", folder=checkpoint(MEDIUM, seed=2))
    w.mount.write("2", "actor/version")
    assert w.listed() == {"v0": ["lora@1"], "s1": ["lora@1"]}
    assert w.engines["v0"].ask("/v1/completions", {"model": "lora@1", "prompt": "x"})
    w.publish(3, model="actor", folder=checkpoint(MEDIUM, seed=3))
    w.engines["s1"].end()
    w.engines["s1"] = Engine(w.folder, "--refuse", "3", api="sglang", port=w.engines["s1"].port)
    wait_for(lambda: w.mount.engines()["s1"].startswith("stale"), "the restarted engine to be seen")
    assert listed(w.engines["s1"]) == []  # after its base
    run = w.mount.status("lora")["version.1"].split(" run=")[1].split()[0]
    ask_text(w.engines["s1"], "/load_lora_adapter", {"lora_name": "lora@77", "lora_path": w.mount.file(f"lora/1@{run}")})
    wait_for(lambda: listed(w.engines["s1"]) == [], "what it should not list to be unloaded all the same")
    w.mount.write("engine sync s1", "actor/ctl")
    w.wait_listed("lora@1")
    assert w.mount.refused("3", "actor/version") == "EREMOTEIO"
    assert w.listed() == {"v0": ["lora@1"], "s1": ["lora@1"]}
    assert w.engines["v0"].ask("/v1/completions", {"model": "lora@1", "prompt": "x"})


def test_another_engine():
    "what answers after a silence may be another engine under the same name of a version: it is asked again what it takes"
    w = World(apis=())
    several = ("--api-servers", "2")  # nothing says when it was started
    engine = Engine(w.folder, *several, api="vllm")
    w.mount.write(f"engine add v vllm {engine.url} adapters=lora", "actor/ctl")
    w.publish(2, folder=lora(2, r=128))
    assert w.mount.refused("2", "lora/version") == "EPROTO" and "takes 64 at most" in w.error(), w.error()
    state = lambda: w.mount.engines()["v"].split()[0]
    engine.end()
    wait_for(lambda: state() == "unknown", "the engine to be missed", 60)
    another = Engine(w.folder, *several, "--max-lora-rank", "128", api="vllm", port=engine.port)
    wait_for(lambda: state() != "unknown", "the engine to answer", 60)
    w.mount.write("2", "lora/version")
    assert listed(another) == ["lora@2"]


def test_restarts():
    "an engine that was restarted gets its adapters again; so does one of a daemon that was restarted, with the same names and K"
    w = World(adapters="lora:3")
    for version in (1, 2):
        if version > 1:
            w.publish(version)
        w.mount.write(str(version), "lora/version")
    w.engines["v0"].end()
    w.engines["v0"] = Engine(w.folder, api="vllm", port=w.engines["v0"].port)
    w.wait_listed("lora@1", "lora@2")
    w.mount.end()
    w.engines["v0"].end()
    w.engines["v0"] = Engine(w.folder, api="vllm", port=w.engines["v0"].port)
    w.mount = Mount(w.agent.url, path=w.mount.path)
    w.mount.wait_version("lora", 2)
    w.wait_listed("lora@1", "lora@2")
    assert w.mount.text("lora/version") == "2\n"
    assert w.mount.refused("drop 1", "lora/ctl") == "EBUSY"


def test_paused():
    "an SGLang that is paused is not told to unload, which would wait for its requests, and hold up the look at all engines"
    w = World(apis=("sglang", "vllm"), adapters="lora:1")
    w.mount.write("1", "lora/version")
    s, v = w.engines["s0"], w.engines["v1"]
    s.ask("/pause_generation", {"mode": "in_place"})
    wait_for(lambda: not s.is_ready(), "the pause")
    request = threading.Thread(target=s.ask, args=("/generate", {"text": "x", "lora_path": "lora@1"}))
    request.start()
    at_end(request.join)
    at_end(lambda: s.ask("/continue_generation", {}))
    w.publish(2)
    w.mount.write("2", "lora/version")
    wait_for(lambda: listed(v) == ["lora@2"], "the other engine to unload")
    v.end()
    wait_for(lambda: w.mount.engines()["v1"].startswith("unknown"), f"the next look: {w.mount.engines()}")
    assert sorted(listed(s)) == ["lora@1", "lora@2"] and "adapters_error" not in w.mount.engines()["s0"], w.mount.engines()
    s.ask("/continue_generation", {})
    wait_for(lambda: listed(s) == ["lora@2"], f"it to be put right: {listed(s)}")


def test_killed():
    "the daemon is killed while one of two engines has loaded a version: the next one has all of them list what was current"
    w = World(apis=("vllm", "vllm"))
    w.mount.write("1", "lora/version")
    w.publish(2)
    w.engines["v1"].end()
    w.engines["v1"] = Engine(w.folder, "--slow", "3000", api="vllm", port=w.engines["v1"].port)
    w.wait_listed("lora@1")
    write = subprocess.Popen(["sh", "-c", f"echo 2 > {w.mount.file('lora/version')}"], stderr=subprocess.DEVNULL)
    at_end(lambda: (write.kill(), write.wait()))
    wait_for(lambda: "lora@2" in listed(w.engines["v0"]), "one engine to have it")
    w.mount.kill()
    w.mount.log.close()
    w.mount.detach()
    w.mount = Mount(w.agent.url, path=w.mount.path)
    w.mount.wait_version("lora", 2)
    wait_for(lambda: w.mount.text("lora/version") == "1\n", "what was current")
    wait_for(lambda: "adapter=lora@2" in w.mount.text("lora/events"), "the look")
    w.wait_listed("lora@1")
    assert "paused model=actor" not in w.mount.text("actor/events")


def test_other_run():
    "the same number of another run is another version: it gets a name of its own, and the path of each stays its own"
    w = World(apis=("vllm",))
    w.mount.write("1", "lora/version")
    first = [m["root"] for m in w.engines["v0"].ask("/v1/models")["data"] if m["id"] == "lora@1"]
    w.agent.end()
    w.agent = Agent(port=w.agent.port)
    w.agent.publish("actor", 1, w.folder)
    w.agent.publish("lora", 1, lora(9))
    wait_for(lambda: any("@" in name for name in os.listdir(w.mount.file("lora"))), "the former run's to be superseded")
    w.mount.write("1", "lora/version")
    run = w.mount.status("lora")["version.1"].split(" run=")[1].split()[0]
    w.wait_listed("lora@1", f"lora@1@{run}")
    second = [m["root"] for m in w.engines["v0"].ask("/v1/models")["data"] if m["id"] == f"lora@1@{run}"]
    assert first and second and first != second and all(os.path.isfile(f"{path[0]}/adapter_config.json") for path in (first, second))
    weights = [tensors_of(f"{path[0]}/adapter_model.safetensors") for path in (first, second)]
    assert weights[0] == tensors_of(lora(1) + "/adapter_model.safetensors") and weights[1] == tensors_of(lora(9) + "/adapter_model.safetensors")


def test_mistakes():
    "what is no adapter, or none for these engines, is refused before any engine is called, with what is wrong"
    w = World(apis=("vllm", "sglang"))
    # What no engine could load is not even published (test_published_adapters.py).
    bad = {2: (checkpoint(SMALL), "is no adapter"), 6: (lora(6, use_rslora=True), "use_rslora, which SGLang ignores"),
           7: (lora(7, width=WIDTH // 2), "trained on another base"), 8: (lora(8, r=128), "has rank 128, and the engine takes 64 at most"),
           9: (adapter(9), "engine v0 of actor, and none was told: it was trained on another base: none of its modules is there")}
    w.mount.write("1", "actor/version")
    w.mount.write("pin 1", "lora/ctl")
    w.mount.write("pull 1", "lora/ctl")
    for version, (folder, word) in bad.items():
        w.publish(version, folder=folder)
        before = w.listed()
        assert w.mount.refused(str(version), "lora/version") in ("EINVAL", "EPROTO", "EBADMSG"), version
        assert word in w.error(), (version, w.error())
        assert w.listed() == before
        assert w.mount.refused(f"check {version}", "lora/ctl") in ("EINVAL", "EPROTO", "EBADMSG"), version
    w.mount.write("check 1", "lora/ctl")
    w.publish(2, model="actor", folder=lora(2))
    assert w.mount.refused("2", "actor/version") == "EINVAL" and "adapters=actor" in w.error("actor"), w.error("actor")
    assert w.mount.refused("remove lora", "ctl") == "EBUSY"
    assert "serves lora beside it" in w.mount.text("last_error")
    url = w.engines["v0"].url
    w.mount.write("engine remove v0", "actor/ctl")
    for options, word in {f"remote {url} load=POST:/l:{{path}} adapters=lora": "kind remote", f"vllm {url} adapters=actor": "serves itself",
                          f"vllm {url} adapters=lora:99": "1 to 16", f"vllm {url} adapters=lora draft=lora": "twice"}.items():
        assert w.mount.refused(f"engine add x {options}", "actor/ctl") == "EINVAL", options
        assert word in w.error("actor"), (options, w.error("actor"))
    plain = Engine(w.folder, "--max-lora-rank", "0", api="vllm")
    w.mount.write(f"engine add plain vllm {plain.url} adapters=lora", "actor/ctl")
    assert w.mount.refused("1", "lora/version") == "EPROTO" and "--enable-lora" in w.error(), w.error()
    assert listed(w.engines["s1"]) == []


def test_another_path():
    "a name under which somebody else loads other files is no version's any more, and stays: the version gets the name with its run, also with the next daemon"
    port = free_port()
    options = f"listen=127.0.0.1:{port},insecure"
    w = World(apis=("vllm",), options=options)
    w.mount.write("1", "lora/version")
    assert w.listed() == {"v0": ["lora@1"]}
    run, other = w.mount.status("lora")["version.1"].split(" run=")[1].split()[0], lora(51)

    def replaced():
        with contextlib.suppress(urllib.error.HTTPError):  # the mount may have loaded its own again meanwhile
            ask_text(w.engines["v0"], "/v1/unload_lora_adapter", {"lora_name": "lora@1"})
            ask_text(w.engines["v0"], "/v1/load_lora_adapter", {"lora_name": "lora@1", "lora_path": other})
            return True

    wait_for(replaced, "another's adapter under the name")
    w.wait_listed("lora@1", f"lora@1@{run}")
    assert roots(w.engines["v0"]) == {"lora@1": other, f"lora@1@{run}": w.mount.file(f"lora/1@{run}")}
    wait_for(lambda: f" adapters=lora@1@{run} stray_adapters=lora@1" in w.mount.engines()["v0"], f"engines to say so: {w.mount.engines()}")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready/lora", timeout=60) as r:
        assert json.load(r)["adapter"] == f"lora@1@{run}"
    assert f'adapter-stray model=lora engine=v0 adapter=lora@1 path="{other}"' in w.mount.text("lora/events"), w.mount.text("lora/events")
    ask_text(w.engines["v0"], "/v1/load_lora_adapter", {"lora_name": "lora@3", "lora_path": other})  # before the mount has a version 3
    wait_for(lambda: "stray_adapters=lora@1,lora@3" in w.mount.engines()["v0"], f"engines to say so: {w.mount.engines()}")
    w.mount.end()
    w.mount = Mount(w.agent.url, options, path=w.mount.path)
    w.mount.wait_version("lora", 1)
    for version in (2, 3, 4):
        w.publish(version)
        w.mount.write(str(version), "lora/version")
    w.wait_listed("lora@1", "lora@3", f"lora@3@{run}", "lora@4")
    assert roots(w.engines["v0"])["lora@1"] == roots(w.engines["v0"])["lora@3"] == other


def test_two_mounts():
    "two mounts of one agent give an engine their adapters: neither unloads the other's, and each says which it has nothing to do with"
    w = World(apis=("vllm",), adapters="lora:1")
    a, b, e = w.mount, Mount(w.agent.url), w.engines["v0"]
    b.wait_version("lora", 1)
    b.write(f"engine add v0 vllm {e.url} adapters=lora:1", "actor/ctl")
    run = a.status("lora")["version.1"].split(" run=")[1].split()[0]
    a.write("1", "lora/version")
    b.write("1", "lora/version")
    assert roots(e) == {"lora@1": a.file(f"lora/1@{run}"), f"lora@1@{run}": b.file(f"lora/1@{run}")}, roots(e)
    for version in (2, 3):
        w.publish(version)
        b.wait_version("lora", version)
    b.write("2", "lora/version")
    wait_for(lambda: f"lora@1@{run}" not in listed(e), "a look of the second mount")
    a.write("3", "lora/version")
    a.write("2", "lora/version")
    wait_for(lambda: "lora@3" not in listed(e) and "lora@1" not in listed(e), "a look of the first mount")
    assert roots(e) == {"lora@2": b.file(f"lora/2@{run}"), f"lora@2@{run}": a.file(f"lora/2@{run}")}, roots(e)
    wait_for(lambda: f" adapters=lora@2@{run} stray_adapters=lora@2" in a.engines()["v0"], f"engines to say so: {a.engines()}")
    wait_for(lambda: f" adapters=lora@2 stray_adapters=lora@2@{run}" in b.engines()["v0"], f"engines to say so: {b.engines()}")
    assert "adapters_error" not in a.engines()["v0"] + b.engines()["v0"]


def test_taken_meanwhile():
    "a name that somebody else takes while the engine is told to load it is theirs: the way back does not unload it"
    w = World(apis=())
    e = w.engines["v0"] = Engine(w.folder, api="vllm")
    proxy, other = Between(e), lora(51)

    def take(path, body):
        if path == "/v1/load_lora_adapter" and body and not listed(e):
            ask_text(e, path, {"lora_name": "lora@1", "lora_path": other})

    proxy.before = take
    w.mount.write(f"engine add v0 vllm {proxy.url} adapters=lora", "actor/ctl")
    assert w.mount.refused("1", "lora/version") == "EREMOTEIO"
    assert roots(e) == {"lora@1": other} and "every engine was brought back" in w.error(), (roots(e), w.error())


def test_files_gone():
    "adapters whose files have gone with a daemon that was killed are named, and unloaded once sources had the time to list what they have"
    w = World(apis=("vllm",))
    w.mount.write("1", "lora/version")
    w.mount.kill()
    w.mount.log.close()
    w.mount.detach()
    w.agent.end()
    w.agent = Agent(port=w.agent.port)
    w.agent.publish("actor", 1, w.folder)
    w.mount = Mount(w.agent.url, path=w.mount.path)
    said = "adapter lora@1 has lost its files, and requests to it fail: version 1 "
    wait_for(lambda: said in w.mount.engines().get("v0", ""), f"engines to say so: {w.mount.engines()}")
    assert listed(w.engines["v0"]) == ["lora@1"], "no source lists the model yet"
    w.publish(2)
    w.wait_listed(seconds=60)  # the mount looks six times, every five seconds
    w.mount.write("2", "lora/version")
    w.wait_listed("lora@2")
    wait_for(lambda: "adapters_error" not in w.mount.engines()["v0"], f"the error to be over: {w.mount.engines()}")


def test_followed():
    "a policy of the adapter's model is followed, and an operator's own adapters are left alone"
    w = World(apis=("vllm",))
    ask_text(w.engines["v0"], "/v1/load_lora_adapter", {"lora_name": "own", "lora_path": lora(50)})
    w.mount.write("follow-published", "lora/policy")
    w.wait_listed("own", "lora@1")
    for version in (2, 3):
        w.publish(version)
        wait_for(lambda: w.mount.text("lora/version") == f"{version}\n", "to be followed")
    w.wait_listed("own", "lora@2", "lora@3")
    late = Engine(w.folder, api="sglang")
    w.mount.write(f"engine add late sglang {late.url} adapters=lora:1", "actor/ctl")
    wait_for(lambda: listed(late) == ["lora@3"], "an engine that was added late to have what is current")


def test_config():
    "the config's engine lines have adapters=, and another K there is another engine"
    w = World(apis=())
    e = w.engines["v0"] = Engine(w.folder, api="vllm")
    config = unique("config")

    def say(k):
        with open(config, "w") as f:
            f.write(f"model actor\nengine add v0 vllm {e.url} adapters=lora:{k}\n")

    say(1)
    w.mount.end()
    w.mount = Mount(w.agent.url, f"config={config}", path=w.mount.path)
    w.mount.wait_version("lora", 1)
    w.mount.write("1", "lora/version")
    w.publish(2)
    w.mount.write("2", "lora/version")
    w.wait_listed("lora@2")
    say(2)
    os.kill(w.mount.pid, signal.SIGHUP)
    wait_for(lambda: "engine-added" in w.mount.text("actor/events"), "the engine to be added anew")
    w.publish(3)
    w.mount.write("3", "lora/version")
    w.wait_listed("lora@2", "lora@3")


def test_path():
    "NUMBER@RUN leads to a version of the live run too, and is not listed"
    w = World(apis=())
    run = w.mount.status("lora")["version.1"].split(" run=")[1].split()[0]
    assert os.readlink(w.mount.file(f"lora/1@{run}")) == "1" and f"1@{run}" not in os.listdir(w.mount.file("lora"))
    assert w.mount.read(f"lora/1@{run}/adapter_config.json") == w.mount.read("lora/1/adapter_config.json")
    for name in (f"01@{run}", f"2@{run}", f"1@{run}x", "1@", f"@{run}", f"-1@{run}"):
        assert not os.path.lexists(w.mount.file("lora", name)), name
