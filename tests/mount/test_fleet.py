# beside others
# sanitizers: thread
# timeout: 500, takes: 140
"""Engines over time: settings that survive a daemon, engines that die and return and are reconciled, commit settings, cancel, deadlines."""
import os
import shutil
import threading
import time

import xxhash
from proxy import Slow
from world import *


def world(n_engines=0, options="", *engine_args):
    need_fuse()
    agent = Agent()
    folders = {v: checkpoint(MEDIUM, seed=v) for v in (1, 2)}
    for v, f in folders.items():
        agent.publish("actor", v, f)
    mount = Mount(agent.url, options)
    mount.wait_version("actor", 2)
    servers = [Engine(folders[1], *engine_args, api=("sglang", "vllm")[i % 2]) for i in range(n_engines)]
    for i, e in enumerate(servers):
        mount.write(f"engine add e{i} {e.api} {e.url}", "actor/ctl")
    return agent, mount, folders, servers


def wait_state(mount, engine, state, seconds=30):
    wait_for(lambda: mount.engines().get(engine, "").startswith(state), f"{engine} {state}: {mount.engines()}", seconds)


def test_settings():
    "engines, policy, commit, pins and the current version are restored after the daemon was killed"
    agent, mount, folders, servers = world(2)
    mount.write("commit quorum=1", "actor/ctl")
    mount.write("pin 1", "actor/ctl")
    mount.write("2", "actor/version")
    mount.write("pull", "actor/policy")
    mount.kill()
    again = Mount(agent.url, path=mount.path)
    again.wait_version("actor", 2)
    wait_for(lambda: again.text("actor/version") == "2\n", "the current version")
    for name in ("e0", "e1"):
        wait_state(again, name, "serving 2")
    assert again.text("actor/policy") == "pull\n" and "commit quorum=1" in again.text("actor/status")
    assert again.refused("drop 1", "actor/ctl") == "EBUSY"  # pinned
    again.write("1", "actor/version")
    assert all(e.serves() == "1" for e in servers)


def test_killed_in_a_switch():
    "a daemon is killed in the middle of a switch: the next one reconciles every engine to the current version"
    agent, mount, folders, servers = world(2, "", "--slow", "1500")
    mount.write("1", "actor/version")
    thread = threading.Thread(target=lambda: refused_or_gone(mount))
    thread.start()
    wait_for(lambda: mount.engines()["e1"].startswith("loading"), "the load")  # the engine answers afterwards
    mount.kill()
    thread.join()
    again = Mount(agent.url, path=mount.path)
    again.wait_version("actor", 2)
    for name in ("e0", "e1"):
        wait_state(again, name, "serving 1", 60)
    wait_for(lambda: all(e.serves() == "1" for e in servers), "version 1 on both")
    assert not servers[1].is_paused()
    for e in servers:
        e.generate()


def refused_or_gone(mount, command="2", file="actor/version"):
    try:
        mount.write(command, file)
    except OSError:
        pass


def test_damaged_settings():
    "a damaged settings file is moved aside with a message; a mount without one starts empty"
    agent, mount, folders, servers = world(1)
    folder = os.path.join(TESTDIR, "state")
    mount.kill()
    name = os.path.join(folder, next(f for f in os.listdir(folder) if f.endswith(os.path.basename(mount.path))))
    with open(name, "r+b") as f:
        f.seek(30)
        f.write(b"X")
    again = Mount(agent.url, path=mount.path)
    again.wait_version("actor", 2)
    assert "errno EBADMSG" in again.text("last_error") and ".damaged" in again.text("last_error")
    assert again.text("actor/engines") == "" and os.path.exists(name + ".damaged")


def rewrite_settings(mount, change):
    "Edits the settings file of a dead mount; returns its path."
    folder = os.path.join(TESTDIR, "state")
    name = os.path.join(folder, next(f for f in os.listdir(folder) if f.endswith(os.path.basename(mount.path))))
    with open(name, encoding="utf-8") as f:
        text = f.read()
    text = change(text[: text.rindex("end ")])
    with open(name, "w", encoding="utf-8") as f:
        f.write(f"{text}end {xxhash.xxh3_64_hexdigest(text.encode())}\n")
    return name


def test_settings_of_a_newer_release():
    "an unknown line of the settings is named and skipped, the others apply, and a copy of the file is kept"
    agent, mount, folders, servers = world(1)
    mount.kill()
    name = rewrite_settings(mount, lambda text: text.replace("engine add", "colour green\nengine add", 1))
    again = Mount(agent.url, path=mount.path)
    again.wait_version("actor", 2)
    assert "colour green" in again.text("last_error") and os.path.exists(name + ".damaged"), again.text("last_error")
    wait_state(again, "e0", "serving")


def test_settings_of_an_older_release():
    "after an older release's daemon ended in a switch no engine's state is trusted: all are reconciled to the current version"
    agent, mount, folders, servers = world(2)
    mount.write("1", "actor/version")
    mount.kill()
    rewrite_settings(mount, lambda text: text + "switching\n")
    again = Mount(agent.url, path=mount.path)
    again.wait_version("actor", 2)
    for e in ("e0", "e1"):
        wait_for(lambda: f"caught-up model=actor engine={e} version=1 result=ok" in again.text("actor/events"), e, 60)
        wait_state(again, e, "serving")
    assert not again.text("actor/last_error"), again.text("actor/last_error")


def test_settings_disk_full():
    "if settings cannot be stored the command is carried out, and fails with what will be lost at a restart"
    need_fuse()
    full = unique("full")
    os.makedirs(full)
    # room for the folder and the lock
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "none", full], check=True)
    at_end(lambda: subprocess.run(["umount", full], check=False))
    agent, mount, folders, _ = world(0, f"state={full}")
    engine = Engine(folders[1])
    assert mount.refused(f"engine add e0 sglang {engine.url}", "actor/ctl") == "ENOSPC"
    said = mount.text("actor/last_error")
    assert "it holds, but" in said and "errno ENOSPC" in said and "state=DIR" in said, said
    assert mount.engines()["e0"].startswith("serving")
    mount.write("2", "actor/version")  # a failure to store the settings does not end a switch
    assert engine.serves() == "2" and "errno ENOSPC" in mount.text("last_error")


def test_remove_model():
    "a model with engines, or in a switch, is not removed; afterwards it is"
    agent, mount, folders, servers = world(1, "", "--slow", "1000")
    thread = threading.Thread(target=lambda: refused_or_gone(mount))
    thread.start()
    wait_for(lambda: "switching yes" in mount.text("actor/status"), "the switch")
    assert mount.refused("remove actor", "ctl") == "EBUSY" and "cancel" in mount.text("last_error"), mount.text("last_error")
    thread.join()
    assert servers[0].serves() == "2"
    assert mount.refused("remove actor", "ctl") == "EBUSY" and "e0" in mount.text("last_error"), mount.text("last_error")
    mount.write("engine remove e0", "actor/ctl")
    mount.write("remove actor", "ctl")
    assert not os.path.exists(mount.file("actor"))
    assert mount.refused("remove actor", "ctl") == "ENOENT"


def test_broken_is_remembered():
    "a broken engine is not resumed by a later daemon, nor by that daemon's failing switches"
    need_fuse()
    agent = Agent()
    folders = {v: checkpoint(MEDIUM, seed=v) for v in (1, 2)}
    for v, f in folders.items():
        agent.publish("actor", v, f)
    mount = Mount(agent.url)
    mount.wait_version("actor", 2)
    start = checkpoint(MEDIUM, seed=9)
    broken = Engine(start, "--refuse", "2", "--realistic", api="vllm")
    other = Engine(folders[1])
    mount.write(f"engine add broken vllm {broken.url}", "actor/ctl")
    mount.write(f"engine add other sglang {other.url}", "actor/ctl")
    shutil.rmtree(start)
    assert mount.refused("2", "actor/version") == "EREMOTEIO"
    wait_state(mount, "broken", "broken")
    mount.kill()
    again = Mount(agent.url, path=mount.path)
    again.wait_version("actor", 2)
    wait_state(again, "broken", "broken")
    other.kill()
    assert again.refused("1", "actor/version") in ("EHOSTUNREACH", "ECONNRESET")
    assert broken.is_paused() and again.engines()["broken"].startswith("broken"), again.engines()
    again.write("engine remove other", "actor/ctl")
    again.write("1", "actor/version")
    assert not broken.is_paused() and broken.serves() == "1"
    broken.generate()
    assert broken.alive()


def test_engine_comes_back():
    "an engine that dies is shown as unknown; with policy follow it is reconciled when it is back"
    agent, mount, folders, servers = world(1)
    mount.write("follow", "actor/policy")
    wait_state(mount, "e0", "serving 2")
    servers[0].kill()
    wait_state(mount, "e0", "unknown")
    assert "engine-lost" in mount.text("actor/events")
    back = Engine(folders[1], port=servers[0].port)
    wait_state(mount, "e0", "serving 2")
    assert back.serves() == "2"


def test_many_come_back():
    "restarted engines are reconciled in parallel; with commit=rolling=1 one after the other"
    agent, mount, folders, servers = world(4, "", "--slow", "2000")
    mount.write("2", "actor/version")
    mount.write("follow", "actor/policy")
    for commit, at_once in (("all", 4), ("rolling=1", 1)):
        mount.write(f"commit {commit}", "actor/ctl")
        servers[:] = [again(folders[1], e) for e in servers]
        most = 0

        def all_are_back():
            nonlocal most
            states = [text.split()[0] for text in mount.engines().values()]
            most = max(most, states.count("loading"))
            return states == ["serving"] * 4 and all(e.serves() == "2" for e in servers)

        wait_for(all_are_back, f"all to be brought along: {mount.engines()}", 60)
        assert most == 1 if at_once == 1 else most > 1, (commit, most)  # the first may be back before the last is started


def again(folder, engine):
    engine.kill()
    return Engine(folder, "--slow", "2000", api=engine.api, port=engine.port)


def test_silent_engines_delay_no_other():
    "engines that do not answer are queried in parallel: the death of another one is noticed as soon as without them"
    agent, mount, folders, servers = world(7)
    for e in servers[:6]:  # 5 s each: in sequence the last would be noticed after half a minute
        suspend(e.pid)
    try:
        start = time.monotonic()
        wait_state(mount, "e0", "unknown")
        servers[6].kill()
        wait_state(mount, "e6", "unknown")
        assert time.monotonic() - start < 25 * SLOW
    finally:
        for e in servers[:6]:
            os.kill(e.pid, signal.SIGCONT)
    for i in range(6):
        wait_state(mount, f"e{i}", "serving")


def test_stale_under_manual():
    "with policy manual an engine restarted on another version is shown as stale and left alone; `engine sync` repairs it"
    agent, mount, folders, servers = world(1)
    mount.write("2", "actor/version")
    servers[0].kill()
    back = Engine(folders[1], port=servers[0].port)
    wait_state(mount, "e0", "stale")
    assert back.serves() == "default"
    mount.write("engine sync e0", "actor/ctl")
    assert back.serves() == "2" and mount.engines()["e0"].startswith("serving 2")
    assert mount.refused("engine sync none", "actor/ctl") == "ENOENT"


def test_quorum():
    "commit=quorum continues without an engine while enough are left, and reconciles it later"
    agent, mount, folders, servers = world(3)
    mount.write("1", "actor/version")
    mount.write("commit quorum=2", "actor/ctl")
    servers[1].kill()
    mount.write("2", "actor/version")
    assert servers[0].serves() == servers[2].serves() == "2" and mount.text("actor/version") == "2\n"
    assert mount.engines()["e1"].startswith("unknown")
    servers[0].kill()
    assert mount.refused("1", "actor/version") in ("EHOSTUNREACH", "ECONNRESET")
    assert servers[2].serves() == "2" and mount.text("actor/version") == "2\n"
    back = Engine(folders[1], api="vllm", port=servers[1].port)
    wait_state(mount, "e1", "serving 2")
    assert back.serves() == "2" and not back.is_paused()


def test_left_paused():
    "an engine that was left paused does not count as serving, also not for a later daemon; it is reconciled"
    need_fuse()
    agent = Agent()
    folders = {v: checkpoint(SMALL, seed=v) for v in (1, 2)}
    for v, f in folders.items():
        agent.publish("actor", v, f)
    mount = Mount(agent.url)
    mount.wait_version("actor", 2)
    busy, other = Engine(folders[1], "--busy", "1000000"), Engine(folders[1], api="vllm")
    mount.write(f"engine add e0 sglang {busy.url} pause-timeout=1", "actor/ctl")
    mount.write(f"engine add e1 vllm {other.url}", "actor/ctl")
    mount.write("commit quorum=1", "actor/ctl")
    mount.write("2", "actor/version")
    assert busy.serves() == "2" and mount.engines()["e0"].startswith("paused 2"), mount.engines()
    mount.write("commit all", "actor/ctl")
    never_serves(mount, "e0")
    mount.kill()
    again = Mount(agent.url, path=mount.path)
    again.wait_version("actor", 2)
    wait_state(again, "e1", "serving 2")
    never_serves(again, "e0")
    other.kill()
    assert again.refused("1", "actor/version") == "EHOSTUNREACH"  # e0 is not resumed for that
    never_serves(again, "e0", 2)
    busy.kill()
    back = Engine(folders[1], port=busy.port)
    wait_state(again, "e0", "serving 2", 60)
    assert back.serves() == "2" and back.generate()


def never_serves(mount, engine, seconds=7):
    "The engine never serves for longer than the mount's interval between two engine queries."
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert not mount.engines()[engine].startswith("serving"), mount.text("actor/events")
        time.sleep(0.1)


def test_killed_while_it_catches_up():
    "a daemon is killed while it reconciles an engine: the next one does not take the engine for serving"
    agent, mount, folders, servers = world(2, "", "--slow", "2000")
    mount.write("2", "actor/version")
    servers[0] = again(folders[1], servers[0])
    wait_state(mount, "e0", "stale")
    thread = threading.Thread(target=lambda: refused_or_gone(mount, "engine sync e0", "actor/ctl"))
    thread.start()
    wait_state(mount, "e0", "loading")
    mount.kill()
    thread.join()
    later = Mount(agent.url, path=mount.path)
    later.wait_version("actor", 2)
    wait_state(later, "e0", "serving 2", 60)
    assert servers[0].serves() == "2" and servers[0].generate()
    assert later.text("actor/events").count(" paused ") == 1  # the other engine is not touched


def test_rolling():
    "commit=rolling=1: one engine is out of service at a time"
    agent, mount, folders, servers = world(4, "", "--slow", "200")
    mount.write("commit rolling=1", "actor/ctl")
    done = threading.Event()
    most = [0]

    def watch():
        while not done.is_set():
            paused = sum(line.split()[0] in ("paused", "loading") for line in mount.engines().values())
            most[0] = max(most[0], paused)
            time.sleep(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    mount.write("2", "actor/version")
    done.set()
    thread.join()
    assert all(e.serves() == "2" for e in servers) and most[0] == 1, most


def test_rolling_counts_the_lost():
    "commit=rolling=2: after one engine has failed, the others are switched one at a time"
    agent, mount, folders, _ = world()
    servers = [Engine(folders[1], *(("--refuse", "2") if i == 0 else ())) for i in range(5)]
    for i, e in enumerate(servers):
        mount.write(f"engine add e{i} sglang {e.url}", "actor/ctl")
    mount.write("commit rolling=2", "actor/ctl")
    mount.write("2", "actor/version")
    lines = [l for l in mount.text("actor/events").splitlines() if " engine=e" in l and (" paused " in l or " resumed " in l)]
    away, most = 0, 0
    for line in lines:
        away += 1 if " paused " in line else -1
        most = max(most, away)
    assert most == 2 and [e.serves() for e in servers[1:]] == ["2"] * 4, lines
    assert mount.engines()["e0"].startswith("broken")


def test_hanging_engine_is_found_first():
    "an engine that hangs is found before any other is paused"
    agent, mount, folders, servers = world(1)
    hangs = Engine(folders[1], api="vllm")
    mount.write(f"engine add h vllm {hangs.url} pause-timeout=1", "actor/ctl")
    mount.write("1", "actor/version")
    suspend(hangs.pid)
    at_end(lambda: os.kill(hangs.pid, signal.SIGCONT))
    assert mount.refused("2", "actor/version") == "ETIMEDOUT"
    assert "engine h " in mount.text("actor/last_error")
    assert "paused model=actor version=2 engine=e0" not in mount.text("actor/events")
    assert mount.engines()["e0"].startswith("serving 1") and mount.engines()["h"].startswith("unknown")


def test_group():
    "engines of one group are switched together, also when rolling"
    agent, mount, folders, _ = world()
    pair = [Engine(folders[1], "--slow", "300") for _ in range(2)]
    for i, e in enumerate(pair):
        mount.write(f"engine add g{i} sglang {e.url} group=dp", "actor/ctl")
    mount.write("commit rolling=1", "actor/ctl")
    mount.write("2", "actor/version")
    lines = [l for l in mount.text("actor/events").splitlines() if " engine=g" in l and (" paused " in l or " loaded " in l)]
    assert len(lines) == 4 and all(" paused " in l for l in lines[:2]), lines


def test_cancel():
    "cancel and a deadline end a switch; its engines are rolled back"
    agent, mount, folders, servers = world(1, "", "--slow", "3000")
    mount.write("1", "actor/version")
    results = []
    thread = threading.Thread(target=lambda: results.append(mount.refused("2", "actor/version")))
    thread.start()
    wait_for(lambda: mount.engines()["e0"].startswith("loading"), "the load")
    assert mount.refused("2", "actor/version") == "EBUSY"
    mount.write("cancel", "actor/ctl")
    thread.join(60)
    assert results == ["ECANCELED"], results
    assert servers[0].serves() == "1" and mount.engines()["e0"].startswith("serving 1")
    assert mount.refused("load 2 deadline=1", "actor/ctl") == "ETIMEDOUT"
    assert servers[0].serves() == "1" and mount.engines()["e0"].startswith("serving 1")
    assert mount.refused("cancel", "actor/ctl") == "ENOENT"
    thread = threading.Thread(target=lambda: mount.write("2", "actor/version"))
    thread.start()
    wait_for(lambda: "switching yes" in mount.text("actor/status"), "the switch")
    mount.write("load 1 wait", "actor/ctl")
    thread.join()
    assert servers[0].serves() == "1"


def test_cancel_while_it_is_fetched():
    "cancel ends a switch whose version is still being pulled, and the writer gets ECANCELED"
    need_fuse()
    agent = Agent()
    agent.publish("actor", 1, checkpoint(MEDIUM, seed=1))
    mount = Mount(f"http://127.0.0.1:{Slow(agent.port, 200_000).port}")
    mount.wait_version("actor", 1)
    results = []
    thread = threading.Thread(target=lambda: results.append(mount.refused("1", "actor/version")))
    thread.start()
    wait_for(lambda: mount.text("actor/1/.wsync/state").startswith("pulling"), "the pull")
    mount.write("cancel", "actor/ctl")
    thread.join(10)
    assert results == ["ECANCELED"] and "cancelled" in mount.text("actor/last_error"), results
    assert mount.text("actor/version") == "none\n"


def test_stage_and_check():
    "stage fetches, verifies and gates; check is the gate alone; neither sends anything to an engine"
    agent, mount, folders, servers = world(1)
    mount.write("1", "actor/version")
    mount.write("stage 2", "actor/ctl")
    assert mount.text("actor/2/.wsync/state").startswith("ready") and servers[0].serves() == "1"
    mount.write("check 2", "actor/ctl")
    fewer = {k: v for k, v in list(MEDIUM.items())[1:]}
    agent.publish("actor", 3, checkpoint(fewer, seed=3))
    mount.wait_version("actor", 3)
    assert mount.refused("stage 3", "actor/ctl") == "EPROTO" and mount.refused("check 3", "actor/ctl") == "EPROTO"
    assert "missing" in mount.text("actor/last_error")
