# beside others
# sanitizers
# timeout: 240, takes: 12
"""One write switches engines, all or none; control files, links, policy, lineages."""
import os
import re

from world import *


def world(options="", source=None):
    need_fuse()
    agent = Agent()
    folders = {v: checkpoint(MEDIUM, seed=v) for v in (1, 2)}
    for v, f in folders.items():
        agent.publish("actor", v, f)
    mount = Mount(source or agent.url, options)
    mount.wait_version("actor", 2)
    return agent, mount, folders


def add_engine(mount, engine, name="e1", options=""):
    mount.write(f"engine add {name} sglang {engine.url} {options}", "actor/ctl")


def expected(folder):
    return Engine(folder).checksum()


def test_switch():
    "switch to 2, back to 1, previous; links and files follow; checksums are those of fresh engines"
    agent, mount, folders = world()
    sums = {v: expected(f) for v, f in folders.items()}
    assert mount.text("actor/version") == "none\n"
    assert not os.path.lexists(mount.file("actor/current"))
    assert os.readlink(mount.file("actor/latest")) == "2"
    mount.write("1", "actor/version")
    engine = Engine(mount.file("actor/1"))
    add_engine(mount, engine)
    mount.write("1", "actor/version")
    assert engine.checksum() == sums[1] and engine.serves() == "1"
    for version in ("2", "1", "latest", "previous"):
        mount.write(version, "actor/version")
        now = mount.text("actor/version").strip()
        assert now == {"latest": "2", "previous": "1"}.get(version, version), now
        assert os.readlink(mount.file("actor/current")) == now
        assert engine.serves() == now and engine.checksum() == sums[int(now)]
    assert mount.text("actor/engines").startswith("e1 serving 1 sglang")
    loaded = lambda: agent.get("/v1/status")["models"][0]["mounts"][0]["loaded"]
    wait_for(lambda: loaded() and loaded()["version"] == 1, "the agent's word of what is served")
    events = mount.text("actor/events")
    assert "switched model=actor version=2" in events
    assert all(" pause=" in l for l in events.splitlines() if " resumed " in l), events


def test_two_engines_all_or_none():
    "one of two engines refuses: both end on the old version, running"
    agent, mount, folders = world()
    good, bad = Engine(mount.file("actor/1")), Engine(mount.file("actor/1"), "--refuse", "2")
    add_engine(mount, good, "good")
    add_engine(mount, bad, "bad")
    mount.write("1", "actor/version")
    before = good.checksum()
    assert mount.refused("2", "actor/version") == "EREMOTEIO"
    assert good.serves() == "1" and bad.serves() == "1"
    assert good.checksum() == before and bad.checksum() == before
    assert mount.text("actor/version") == "1\n" and os.readlink(mount.file("actor/current")) == "1"
    text = mount.text("actor/last_error")
    assert "errno EREMOTEIO" in text and "bad" in text and "refuse" in text.lower(), text
    for line in mount.text("actor/engines").splitlines():
        assert " serving 1 " in line, line
    r = wsync("load", "--mount", mount.path, "actor", "2", check=False)
    assert r.returncode == 1 and "refuse" in r.stderr.lower(), r.stderr


def test_engine_dies():
    "an engine dies in a load: the other one is rolled back, the dead one is shown"
    agent, mount, folders = world()
    good = Engine(mount.file("actor/1"))
    add_engine(mount, good, "good")
    mount.write("1", "actor/version")
    dying = Engine(mount.file("actor/1"), "--die-at", "load")
    add_engine(mount, dying, "dying")
    assert mount.refused("2", "actor/version") in ("EREMOTEIO", "ECONNRESET", "EHOSTUNREACH", "ETIMEDOUT")
    assert good.serves() == "1" and mount.text("actor/version") == "1\n"
    lines = dict(line.split(" ", 1) for line in mount.text("actor/engines").splitlines())
    assert lines["good"].startswith("serving 1"), lines
    assert lines["dying"].split()[0] in ("unknown", "broken"), lines
    mount.write("engine remove dying", "actor/ctl")
    mount.write("2", "actor/version")
    assert good.serves() == "2"


def test_gate():
    "a version with a missing tensor, another shape or dtype is refused before anything is sent to an engine"
    agent, mount, folders = world()
    engine = Engine(mount.file("actor/2"))
    add_engine(mount, engine)
    mount.write("2", "actor/version")
    pause = mount.text("actor/engines")
    changed = dict(MEDIUM)
    del changed["layer.3.weight"]
    shape = dict(MEDIUM) | {"tail": ("U8", [12344])}
    dtype = dict(MEDIUM) | {"layer.0.weight": ("F16", MEDIUM["layer.0.weight"][1])}
    for version, (tensors, word) in enumerate([(changed, "layer.3.weight"), (shape, "tail"), (dtype, "layer.0.weight")], 3):
        agent.publish("actor", version, checkpoint(tensors))
        mount.wait_version("actor", version)
        assert mount.refused(str(version), "actor/version") == "EPROTO"
        assert word in mount.text("actor/last_error"), mount.text("actor/last_error")
        assert mount.text("actor/engines") == pause
        assert engine.serves() == "2"
    mount.write("5 force-layout", "actor/version")
    assert engine.serves() == "5"


def test_commands():
    "wrong commands get EINVAL or a fitting errno, and last_error says what to do"
    agent, mount, folders = world()
    for command, want in {"": "EINVAL", "frobnicate": "EINVAL", "load": "EINVAL", "load 1 2": "EINVAL", "pull 99": "ENOENT",
                          "drop nope": "EINVAL", "engine add": "EINVAL", "engine remove none": "ENOENT",
                          "engine add x sglang http://user:pw@127.0.0.1:1": "EINVAL", "engine add x nokind http://127.0.0.1:1": "EINVAL",
                          "engine add x sglang http://127.0.0.1:1": "EHOSTUNREACH", "load 1\nload 2": "EINVAL", "x" * 4000: "EINVAL"}.items():
        got = mount.refused(command, "actor/ctl")
        assert got == want, (command, got, mount.text("actor/last_error"))
        error = mount.text("actor/last_error")
        assert f"errno {want}" in error and "pw@" not in error, error
    assert mount.refused("99", "actor/version") == "ENOENT"
    mount.write("1", "actor/version")
    assert mount.text("actor/last_error") == "", "a load that succeeds ends the error of one that did not"
    assert mount.refused("sometimes", "actor/policy") == "EINVAL"
    assert mount.refused("load actor=1 nobody=2", "ctl") == "ENOENT"
    for verb in ("add ..evil dir:/nowhere", "add .b dir:/nowhere policy=follow", "remove .hidden"):
        assert mount.refused(verb, "ctl") == "EINVAL", verb
    assert not re.search('model="(?!actor")', mount.text("metrics")), "a name that is refused leaves nothing"
    assert "load N" in mount.text("actor/ctl") and "add MODEL SOURCE" in mount.text("ctl")
    mount.write("pull 1 async", "actor/ctl")
    mount.write("pull 2", "actor/ctl")
    mount.write("verify 2", "actor/ctl")
    mount.write("pin 2", "actor/ctl")
    assert mount.refused("drop 2", "actor/ctl") == "EBUSY"
    mount.write("unpin 2", "actor/ctl")


def test_policy():
    "pull fetches ahead, follow switches"
    agent, mount, folders = world()
    mount.write("pull", "actor/policy")
    agent.publish("actor", 3, folders[1])
    mount.wait_version("actor", 3)
    wait_for(lambda: mount.text("actor/3/.wsync/state").startswith("ready"), "version 3 ready")
    engine = Engine(mount.file("actor/3"))
    add_engine(mount, engine)
    mount.write("follow", "actor/policy")
    wait_for(lambda: engine.serves() == "3", "the engine to follow to 3")
    agent.publish("actor", 4, folders[2])
    wait_for(lambda: engine.serves() == "4" and mount.text("actor/version") == "4\n", "the engine to follow to 4")
    assert mount.text("actor/policy") == "follow-published until=release\n"


def test_barrier():
    "several models switch together or not at all"
    agent, mount, folders = world()
    for v in (1, 2):
        agent.publish("critic", v, checkpoint(SMALL, seed=v))
    mount.wait_version("critic", 2)
    a, b = Engine(folders[1]), Engine(mount.file("critic/1"), "--refuse", "2")
    add_engine(mount, a)
    mount.write(f"engine add b sglang {b.url}", "critic/ctl")
    mount.write("load actor=1 critic=1", "ctl")
    assert a.serves() == "1" and b.serves() == "1"
    assert mount.refused("load actor=2 critic=2", "ctl") == "EREMOTEIO"
    assert a.serves() == "1" and b.serves() == "1"
    assert mount.text("actor/version") == "1\n" and mount.text("critic/version") == "1\n"
    c = Engine(folders[1], "--refuse", "2")
    mount.write(f"engine add c sglang {c.url}", "actor/ctl")
    mount.write("load actor=1 critic=1", "ctl")
    mount.write("engine remove b", "critic/ctl")
    mount.write("commit quorum=1", "actor/ctl")  # of one model alone
    assert mount.refused("load actor=2 critic=2", "ctl") == "EREMOTEIO"
    assert a.serves() == "1" and c.serves() == "1" and mount.text("actor/version") == "1\n"


def test_lineage():
    "a resumed trainer's versions supersede the abandoned ones; the old lineage can still be read"
    agent, mount, folders = world()
    old = mount.read("actor/2/model.safetensors")
    engine = Engine(folders[1])
    mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
    mount.write("2", "actor/version")
    told, sum_of_old = engine.serves(whole=True), engine.checksum()
    r = agent.publish("actor", 1, folders[1], check=False)
    assert r.returncode == 3 and "--new-run" in r.stderr, r.stderr
    other = checkpoint(MEDIUM, seed=9)
    agent.publish("actor", 2, other, "--new-run")
    wait_for(lambda: any("@" in n for n in os.listdir(mount.file("actor"))), "the superseded name")
    (name,) = [n for n in os.listdir(mount.file("actor")) if n.startswith("2@")]
    assert mount.read("actor", name, "model.safetensors") == old
    assert os.readlink(mount.file("actor/latest")) == "2"
    new = mount.read("actor/2/model.safetensors")
    assert new != old
    assert tensors_of(mount.file("actor/2/model.safetensors")) == tensors_of(other + "/model.safetensors")
    assert os.readlink(mount.file("actor/current")) == name
    assert told == name, "the engine is told number and lineage"
    mount.write("2", "actor/version")
    assert engine.serves() == "2" and engine.serves(whole=True) != told and engine.checksum() != sum_of_old


def test_wait_loaded():
    "publish --wait-loaded returns when a mount's engines serve it"
    agent, mount, folders = world()
    mount.write("follow", "actor/policy")
    agent.publish("actor", 3, folders[1], "--wait-loaded", "30")
    assert mount.text("actor/version") == "3\n"


def test_views():
    "status, metrics, manifest, progress and the commands that show them"
    agent, mount, folders = world()
    wsync("pull", "--mount", mount.path, "actor", "1")
    assert json.loads(mount.read("actor/1/.wsync/manifest.json"))["version"] == 1
    assert "have_bytes" in mount.text("actor/1/.wsync/progress")
    metrics = mount.text("metrics")
    assert "wsync_pulls_total 1" in metrics and 'wsync_pull_seconds_count{model="actor"} 1' in metrics, metrics
    helped = re.findall(r"^# HELP (\S+) \S", metrics, re.M)
    assert helped == re.findall(r"^# TYPE (\S+) (?:gauge|counter|histogram)$", metrics, re.M) and len(set(helped)) == len(helped), metrics
    samples = {re.match(r"[a-z_]+", line)[0] for line in metrics.splitlines() if not line.startswith("#")}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in samples} <= set(helped), samples
    rows = json.loads(wsync("ls", "--mount", mount.path, "--json").stdout)
    assert [(r["version"], r["state"]) for r in rows] == [("1", "ready"), ("2", "known")], rows
    how = [v["how"] for v in json.loads(wsync("status", mount.path, "--json").stdout)["models"][0]["versions"] if v["name"] == "1"]
    assert how == [rows[0]["how"]] and how[0] and rows[1]["how"] is None, (how, rows)
    assert how[0] in wsync("ls", mount.path).stdout
    by_option, by_path = (json.loads(wsync("status", *args, "--json").stdout) for args in (("--mount", mount.path), (mount.path,)))
    assert by_option["mount"] == by_path["mount"] == os.path.realpath(mount.path) and by_path["reads"]
    (source,), (model,) = by_path["sources"], by_path["models"]
    assert (source["url"], source["up"], source["transport"], source["error"]) == (agent.url, True, "tcp", None), source
    assert (model["current"], model["latest"], model["engines"], model["switching"]) == (None, "2", [], False), model
    one, two = sorted(model["versions"], key=lambda v: v["name"])
    assert set(one) == set(two), "the same keys for a version that is here and one that is not"
    assert (one["name"], one["state"], one["strategy"], one["have"] == one["bytes"] > 0, one["error"]) == ("1", "ready", "tcp", True, None), one
    assert (two["name"], two["state"], two["strategy"], two["have"], two["at_source"]) == ("2", "known", None, 0, True), two
    assert json.loads(wsync("status", mount.path + "/actor", "--json").stdout)["models"][0]["model"] == "actor"
    short, long = (wsync("status", *v, mount.path).stdout for v in ((), ("-v",)))
    words = [line.split() for line in short.splitlines()]
    assert ["1", "ready"] == next(w for w in words if w[:1] == ["1"])[:2] and [agent.url, "up", "tcp"] == next(w for w in words if w[:1] == [agent.url])[:3], short
    assert max(map(len, short.splitlines()[1:])) <= 100 and "not by" not in short, short
    assert f"lineage: {one['run']}" in long and "not by: " in long, long
    assert json.loads(wsync("ls", mount.path + "/actor/", "--json").stdout) == rows == json.loads(wsync("ls", mount.path, "actor", "--json").stdout)
    assert wsync("wait", "--mount", mount.path, "--timeout", "5", "actor", "1").stdout == f"actor/1 is ready: {how[0]}\n"
    assert wsync("wait", "--mount", mount.path, "--state", "known", "actor", "2").stdout == ""
    assert wsync("wait", "--mount", mount.path, "--timeout", "0", "actor", "2", check=False).returncode == 1
    r = wsync("load", "--mount", mount.path, "actor", "1 force-layout", check=False)  # one word, and not a version
    assert r.returncode == 1 and "1 force-layout" in r.stderr, r
    wsync("verify", "--mount", mount.path, "actor", "1")
    wsync("inspect", mount.file("actor/1"))


def test_pauses():
    "the duration of each engine's pause: in its line, its event and a histogram"
    agent, mount, folders = world()
    engines = {'a"b': Engine(folders[1]), "slow": Engine(folders[1], "--slow", "400", api="vllm")}
    for name, e in engines.items():
        mount.write(f"engine add {name} {e.api} {e.url}", "actor/ctl")
    for v in (2, 1):
        mount.write(str(v), "actor/version")
    metrics = dict(line.rsplit(" ", 1) for line in mount.text("metrics").splitlines() if line.startswith("wsync_pause_seconds"))
    for name in ('a\\"b', "slow"):  # both are paused until the slower one has loaded
        of = f'{{model="actor",engine="{name}"'
        assert metrics[f"wsync_pause_seconds_count{of}}}"] == "2", metrics
        assert metrics[f'wsync_pause_seconds_bucket{of},le="+Inf"}}'] == "2", metrics
        assert metrics[f'wsync_pause_seconds_bucket{of},le="0.3"}}'] == "0", metrics
    assert 0.8 < float(metrics['wsync_pause_seconds_sum{model="actor",engine="slow"}']) < 10 * SLOW
    assert "engine=slow" in mount.text("actor/events") and float(mount.engines()["slow"].rsplit(" pause=", 1)[1].split()[0]) > 0.4
