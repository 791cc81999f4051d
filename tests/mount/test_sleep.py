# beside others
# sanitizers: address
# timeout: 300, takes: 60
"""Engines that a trainer on the same GPU puts to sleep (sleep=): woken in order, and never served as they woke."""
import threading

from world import *


def world(options="", api="sglang", *args):
    need_fuse()
    agent = Agent()
    folders = {v: checkpoint(MEDIUM, seed=v) for v in (1, 2)}
    for v, f in folders.items():
        agent.publish("actor", v, f)
    mount = Mount(agent.url)
    mount.wait_version("actor", 2)
    engine = start(folders[1], api, *args)
    add(mount, "e", engine, options)
    return agent, mount, folders, engine


def start(folder, api, *args, port=None):
    return Engine(folder, "--weight-transfer", *args, api=api, port=port)


def add(mount, name, engine, options):
    mount.write(f"engine add {name} {engine.api} {engine.url} {options}", "actor/ctl")


def sleep(engine, tags=None):
    if engine.api == "vllm":
        engine.ask("/sleep?level=2", {})
    else:
        engine.ask("/release_memory_occupation", {"tags": tags})


def wake(engine, tags=None):
    if engine.api == "vllm":
        engine.ask("/wake_up" + (f"?tags={tags[0]}" if tags else ""), {})
    else:
        engine.ask("/resume_memory_occupation", {"tags": tags})


def released(engine):
    return engine.ask("/server_info")["internal_states"][0]["wsync"]["released"]


def sums_of(folders, api):
    return {v: Engine(f, api=api).checksum() for v, f in folders.items()}


def is_seen_asleep(mount, name="e"):
    wait_for(lambda: " asleep " in mount.engines()[name], f"{name} to be seen asleep")


def test_options():
    "sleep= is 1, 2 or kv, of a kind that wakes, and of an SGLang that says whether it sleeps"
    _, mount, folders, engine = world("sleep=kv")
    assert " sleep=kv" in mount.engines()["e"] and " asleep" not in mount.engines()["e"]
    for word, why in (("3", "sleep=3"), ("deep", "sleep=deep"), ("", "no value")):
        assert mount.refused(f"engine add f sglang {engine.url} sleep={word}", "actor/ctl") == "EINVAL"
        assert why in mount.text("actor/last_error")
    assert mount.refused(f"engine add f remote {engine.url} load=POST:/l?{{path}} sleep=1", "actor/ctl") == "EINVAL"
    plain = Engine(folders[1])
    assert mount.refused(f"engine add f sglang {plain.url} sleep=2", "actor/ctl") == "EPROTO"
    assert "Python package wsync" in mount.text("actor/last_error")
    mount.write(f"engine add f sglang {plain.url}", "actor/ctl")


@pytest.mark.parametrize("tags, woken", [(None, None), (["weights", "kv_cache"], None), (["kv_cache"], None), (None, ["weights"]),
                                         (None, ["kv_cache", "cuda_graph"]), (["cuda_graph"], None), ([], []), (None, [])])
def test_sglang_is_woken(tags, woken):
    "SGLang: a switch takes back the parts that are released and no others, however many those are, and it serves the version"
    _, mount, folders, engine = world("sleep=2")
    sums = sums_of(folders, "sglang")
    for version in (2, 1):
        sleep(engine, tags)
        if woken is not None:
            wake(engine, woken)
        if released(engine):
            is_seen_asleep(mount)
            assert 'wsync_engines_asleep{model="actor"} 1' in mount.text("metrics")
        mount.write(str(version), "actor/version")
        assert engine.alive() and released(engine) == [] and engine.is_ready()
        assert engine.checksum() == sums[version] and engine.serves() == str(version)
        engine.generate()
        assert mount.engines()["e"].startswith(f"serving {version} ") and " asleep" not in mount.engines()["e"]


@pytest.mark.parametrize("api", ["sglang", "vllm"])
def test_woken_without_a_load(api):
    "after a sleep that loses the weights, an engine that others wake without a load is found out and loads the current version"
    _, mount, folders, engine = world("sleep=2", api)
    mount.write("1", "actor/version")
    good = sums_of(folders, api)[1]
    sleep(engine)
    is_seen_asleep(mount)
    wake(engine)
    assert engine.checksum() != good
    wait_for(lambda: mount.engines()["e"].startswith("serving 1 ") and engine.checksum() == good, "it to be loaded anew")
    assert "engine-awake model=actor engine=e" in mount.text("actor/events")


@pytest.mark.parametrize("api", ["sglang", "vllm"])
def test_woken_while_no_daemon_looks(api):
    "... also where the daemon was killed while it slept, and it was awake when the next one looked"
    agent, mount, folders, engine = world("sleep=2", api)
    mount.write("1", "actor/version")
    good = sums_of(folders, api)[1]
    sleep(engine)
    wait_for(lambda: "engine-asleep model=actor engine=e" in mount.text("actor/events"), "it to be seen asleep, and kept")
    mount.kill()
    wake(engine)
    again = Mount(agent.url, path=mount.path)
    wait_for(lambda: again.engines().get("e", "").startswith("serving 1 ") and engine.checksum() == good, "it to be loaded anew")


def test_weights_that_stay():
    "an engine whose weights come back, or that releases its cache alone, is not loaded again when others wake it"
    for word in ("1", "kv"):
        _, mount, _, engine = world(f"sleep={word}")
        mount.write("1", "actor/version")
        sleep(engine, ["kv_cache"])
        is_seen_asleep(mount)
        wake(engine, ["kv_cache"])
        wait_for(lambda: mount.engines()["e"].startswith("serving 1 ") and " asleep" not in mount.engines()["e"], "it to be seen awake")
        assert "caught-up" not in mount.text("actor/events")


@pytest.mark.parametrize("api", ["sglang", "vllm"])
def test_goes_back_whole(api):
    "a load that fails after the wake, its own or another engine's: the version before is loaded whole, and nothing undefined is served"
    _, mount, folders, engine = world("sleep=2", api, "--refuse", "2")
    good = sums_of(folders, api)[1]
    mount.write("1", "actor/version")
    sleep(engine)
    assert mount.refused("2", "actor/version") == "EREMOTEIO"
    assert engine.checksum() == good and engine.serves() == "1"
    engine.generate()
    assert mount.engines()["e"].startswith("serving 1 ")
    other = start(folders[1], api)
    add(mount, "f", other, "sleep=2")
    sleep(other)
    assert mount.refused("2", "actor/version") == "EREMOTEIO"
    assert other.checksum() == good
    other.generate()


def test_ends_before_the_load():
    "a switch that ends before the load leaves what sleeps asleep; the next one wakes it"
    _, mount, folders, engine = world("sleep=2")
    dies = Engine(folders[1], "--die-at", "pause")
    add(mount, "f", dies, "")
    sleep(engine)
    assert mount.refused("2", "actor/version") in ("EHOSTUNREACH", "ECONNRESET")
    assert engine.alive() and len(released(engine)) == 3
    mount.write("engine remove f", "actor/ctl")
    mount.write("2", "actor/version")
    assert engine.serves() == "2" and engine.checksum() == sums_of(folders, "sglang")[2]
    engine.generate()


def test_started_anew():
    "an engine that was started anew since it was seen asleep is asked before it is touched, and gets no wake"
    _, mount, folders, engine = world("sleep=2")
    mount.write("1", "actor/version")
    sleep(engine)
    is_seen_asleep(mount)
    engine.end()
    again = start(folders[1], "sglang", port=engine.port)
    mount.write("2", "actor/version")
    assert again.alive() and again.serves() == "2"
    again.generate()


def test_ends_of_the_wake():
    "an engine that ends in its wake: the switch fails, and another one in its place is brought along"
    _, mount, folders, engine = world("sleep=2", "sglang", "--die-at", "wake")
    mount.write("1", "actor/version")
    sleep(engine)
    assert mount.refused("2", "actor/version") in ("EHOSTUNREACH", "ECONNRESET")
    assert not mount.engines()["e"].startswith("serving")
    again = start(folders[2], "sglang", port=engine.port)
    wait_for(lambda: mount.engines()["e"].startswith("serving 1 "), "the other one to be brought along")
    assert again.checksum() == sums_of(folders, "sglang")[1]
    again.generate()


@pytest.mark.parametrize("api", ["sglang", "vllm"])
def test_daemon_killed_in_the_load(api):
    "a daemon that is killed between wake and load's end: the next one asks what is released, wakes the rest, and loads"
    agent, mount, folders, engine = world("sleep=2", api, "--slow", "1500")
    mount.write("1", "actor/version")
    sleep(engine)
    is_seen_asleep(mount)
    writer = threading.Thread(target=lambda: mount.refused("2", "actor/version"), daemon=True)
    writer.start()
    wait_for(lambda: mount.engines()["e"].startswith("loading "), "the load")
    mount.kill()
    writer.join(30)
    again = Mount(agent.url, path=mount.path)
    wait_for(lambda: again.engines().get("e", "").startswith("serving 1 "), "it to be brought along")
    assert engine.alive() and engine.checksum() == sums_of(folders, api)[1]
    engine.generate()
