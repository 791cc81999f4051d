# sanitizers: thread
# timeout: 600, takes: 90
"""Quantised views that mounts make: a model MODEL@RECIPE beside MODEL, made of a version when it is asked for. What one is to be, `wsync derive` says."""
import json
import os
import signal
import subprocess
import threading
import time

import pytest

from adapters import lora
from derived import *
from proxy import Slow
from span import Span
from world import *

NAN, INFINITE = b"\xc0\x7f", b"\x80\x7f"


def size_of(folder):
    return sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))


def here(mount, model, version=1):
    return sum(map(len, read_all(mount, model, version).values()))


def times_made(mount, version=1):
    line = f"store ready model={VIEW} version={version} "  # which comes after the readers' bytes
    wait_for(lambda: line in mount.text(), "the line")
    return mount.text().count(line)


def fails(mount, version=1, model=VIEW):
    """Pulls in vain; returns last_error."""
    wait_view(mount, version, model)
    mount.refused(f"pull {version}", model, "ctl")
    return mount.text(model, "last_error")


@pytest.fixture
def agent():
    need_fuse()
    return Agent()


def test_a_mount_makes_a_view_that_equals_the_commands(agent):
    folder = llama(files=2)
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"derive={VIEW};{CHANNEL}")
    wait_view(mount, 1)
    assert said_of(mount, 1).startswith("known "), "made before it is asked for"
    source = check(mount, 1, folder)
    assert source == digest(mount, "actor", 1)
    check(mount, 1, folder, CHANNEL)
    line = said_of(mount, 1)
    assert 'how="made of actor/1 by fp8-block128 in ' in line and line.startswith("ready "), line
    mount.write("verify 1", VIEW, "ctl")
    assert mount.read("actor", 1, "config.json") == open(f"{folder}/config.json", "rb").read()
    agent.publish("actor", 2, stepped(folder, 2))
    pull(mount, 2)
    assert "model.layers.0.mlp.up_proj.weight" in mount.text(VIEW, "2/.wsync/changed")


def test_each_recipe(agent):
    folder = llama(files=2)
    agent.publish("actor", 1, folder)
    recipes = [line.split()[0] for line in wsync("derive", "--list").stdout.splitlines()]
    mount = Mount(agent.url, f"derive={';'.join('actor@' + r for r in recipes)}")
    for r in recipes:
        wait_view(mount, 1, f"actor@{r}")
        check(mount, 1, folder, f"actor@{r}")


def test_what_is_kept_of_a_source_that_only_views_want(agent):
    """It makes room for others, and a reader of its own keeps it."""
    folder = llama()
    for v in (1, 2, 3):
        agent.publish("actor", v, folder if v == 1 else stepped(folder, v))
    one = size_of(folder)
    mount = Mount(agent.url, f"derive={VIEW},cache={int(one * 2.2)},delta-cache=0,keep=1")
    pull(mount, 2)
    pull(mount, 3)
    assert said_of(mount, 3).startswith("ready ")
    assert said_of(mount, 2, "actor").startswith("known "), "the source of a view that is made stays in the way"


def test_mounts_make_the_same_digest(agent):
    agent.publish("actor", 1, llama(files=3))
    mounts = [Mount(agent.url, f"derive={VIEW}"), Mount(f"unix:{agent.sock}", f"derive={VIEW},threads=1")]
    for m in mounts:
        pull(m)
    assert digest(mounts[0], VIEW, 1) == digest(mounts[1], VIEW, 1)


def test_an_agent_makes_the_same_digest():
    need_fuse()
    folder = llama(files=2)
    deriving, plain = Agent("--derive", VIEW), Agent()
    for a in (deriving, plain):
        a.publish("actor", 1, folder, "--run", "r")
    by_agent, by_mount = Mount(deriving.url), Mount(plain.url, f"derive={VIEW}")
    pull(by_agent)
    pull(by_mount)
    assert digest(by_agent, VIEW, 1) == digest(by_mount, VIEW, 1)
    assert read_all(by_agent, VIEW, 1) == read_all(by_mount, VIEW, 1)
    both = Mount(f"{plain.url},{deriving.url}", f"derive={VIEW}")
    wait_view(both, 1)
    wait_for(lambda: " sources=1" in said_of(both, 1), "the agent's view")
    pull(both)
    assert 'how="tcp full' in said_of(both, 1)  # it is there already
    for a in (deriving, plain):
        a.publish("actor", 2, stepped(folder, 2))
    pull(both, 2)  # whoever is first
    wait_for(lambda: " sources=1" in said_of(both, 2), "the agent's view")
    assert "error=" not in said_of(both, 2), said_of(both, 2)


def test_a_view_of_what_was_signed(agent):
    """A mount trusts what it made of a signed version itself, and nobody else does."""
    key = unique("key")
    wsync("key", "new", "--out", key, "--name", "trainer")
    folder = llama()
    signing = Agent("--sign-key", key)
    signing.publish("actor", 1, folder)
    port = free_port()
    mount = Mount(signing.url, f"derive={VIEW},verify-key={key}.pub,serve=127.0.0.1:{port},serve-insecure")
    wait_view(mount, 1)
    check(mount, 1, folder)
    leaf = Mount(f"http://127.0.0.1:{port}", f"verify-key={key}.pub")
    assert "sign" in fails(leaf)
    agent.publish("actor", 1, folder)  # unsigned
    assert "sign" in fails(Mount(agent.url, f"derive={VIEW},verify-key={key}.pub"))


def test_a_serving_mount_makes_it_for_its_leaves(agent):
    folder = llama(files=2)
    agent.publish("actor", 1, folder)
    port = free_port()
    rack = Mount(agent.url, f"derive={VIEW},serve=127.0.0.1:{port},serve-insecure")
    leaves = [Mount(f"http://127.0.0.1:{port}") for _ in range(2)]
    threads = [threading.Thread(target=pull, args=(leaf,)) for leaf in leaves]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for leaf in leaves:
        check(leaf, 1, folder)
        assert digest(leaf, VIEW, 1) == digest(rack, VIEW, 1)
    assert times_made(rack) == 1
    # both make it: who has it made lists a digest, and is asked for it; who has not is waited for by nobody
    other = Mount(f"http://127.0.0.1:{port}", f"derive={VIEW}")
    wait_view(other, 1)
    wait_for(lambda: "sources=1" in said_of(other, 1), "what the serving mount lists")
    pull(other)
    assert 'how="tcp full' in said_of(other, 1), said_of(other, 1)
    agent.publish("actor", 2, stepped(folder, 2))
    wait_view(rack, 2)
    pull(other, 2)
    assert 'how="made of actor/2' in said_of(other, 2), said_of(other, 2)
    assert said_of(rack, 2).startswith("known ")


def test_a_leaf_says_why_its_serving_mount_has_none(agent):
    """One that waits for a source that answers, and is asked again, names the answer."""
    folder = llama()
    agent.publish("actor", 1, folder)
    port = free_port()
    rack = Mount(agent.url, f"derive={VIEW},serve=127.0.0.1:{port},serve-insecure,cache={int(size_of(folder) * 1.2)}")
    wait_view(rack, 1)
    leaf = Mount(f"http://127.0.0.1:{port}", "deadline=3")
    wait_view(leaf, 1)
    with pytest.raises(OSError):
        leaf.read(VIEW, 1, "model.safetensors")
    told = leaf.text(VIEW, "last_error")
    assert f"{VIEW}/1 needs" in told and "cache of" in told, told


def test_a_leaf_waits_for_a_view_as_long_as_it_moves(agent):
    """Longer than its deadline, though nothing of the view comes before all of it is made."""
    folder = llama(hidden=512)
    agent.publish("actor", 1, folder)
    port, slow = free_port(), Slow(agent.port, size_of(folder) / 38)
    rack = Mount(slow.url, f"derive={VIEW},serve=127.0.0.1:{port},serve-insecure,streams=1")
    leaf = Mount(f"http://127.0.0.1:{port}", "deadline=24")
    wait_view(leaf, 1)
    began = time.monotonic()
    check(leaf, 1, folder)
    assert time.monotonic() - began > 30, "the source was not slow"
    assert used(rack) > size_of(folder)


def test_a_trainer_that_spans_nodes():
    sidecars = unique("sidecars")
    os.makedirs(sidecars)
    with open(f"{sidecars}/config.json", "w") as f:
        json.dump({"model_type": "llama"}, f)
    span = Span(SIDECARS=sidecars)
    mount = Mount(span.urls, f"derive={CHANNEL}")
    for _ in range(2):
        version = span.publish("step 0.01") if span.newest else span.publish()
        pull(mount, version, CHANNEL)
        folder = unique("whole")
        os.makedirs(folder)
        for name in ("model.safetensors", "config.json"):
            with open(f"{folder}/{name}", "wb") as f:
                f.write(span.reference.read("actor", version, name))
        check(mount, version, folder, CHANNEL)


def test_engines_are_switched_to_views_and_not_between_a_view_and_its_source(agent):
    folder = llama()
    for v in (1, 2):
        agent.publish("actor", v, folder if v == 1 else stepped(folder, v))
    mount = Mount(agent.url, f"derive={VIEW}")
    mount.wait_version(VIEW, 2)
    engine = Engine(mount.file(VIEW, 1))
    mount.write(f"engine add e1 sglang {engine.url}", VIEW, "ctl")
    mount.write("2", VIEW, "version")
    assert engine.serves() == "2" and engine.checksum() == Engine(mount.file(VIEW, 2)).checksum()
    mount.write("1", VIEW, "version")
    assert os.readlink(mount.file(VIEW, "current")) == "1"
    # an engine of the source among those of the view, and the other way round
    other = Mount(agent.url, f"derive={VIEW}")
    for model, path, wrong in ((VIEW, other.file("actor", 1), "actor"), ("actor", other.file(VIEW, 1), VIEW)):
        other.wait_version(model, 2)
        e = Engine(path)
        other.write(f"engine add e1 sglang {e.url}", model, "ctl")
        before = e.checksum()
        assert other.refused("2", model, "version") == "EPROTO"
        assert f"what engine e1 serves, {wrong} version 1" in other.text(model, "last_error")
        assert e.checksum() == before and e.serves() == "default"  # it was not told to load


def test_follow_makes_each_new_version(agent):
    folder = llama()
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"derive={VIEW}")
    wait_view(mount, 1)
    engine = Engine(mount.file(VIEW, 1))
    mount.write(f"engine add e1 sglang {engine.url}", VIEW, "ctl")
    mount.write("follow-published", VIEW, "policy")
    agent.publish("actor", 2, stepped(folder, 2))
    wait_for(lambda: engine.serves() == "2", "the engine to serve 2")


Q = "model.layers.0.self_attn.q_proj.weight"
UNFIT = {  # what is wrong: (checkpoint, options, what last_error says)
    "NaN": (dict(bad={Q: NAN}), "", f'"{Q}": element [0, 0] is NaN'),
    "infinite": (dict(bad={Q: INFINITE}), "", f'"{Q}": element [0, 0] is'),
    "dtype": (dict(dtypes={Q: "U16"}), "", Q),
    "K": (dict(hidden=192), "", ".weight"),
    "family": (dict(family="test"), "", "any-family"),
    "pattern": ({}, ",derive-ignore=re:.*nothing.*", "re:.*nothing.*"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_what_cannot_be_made_is_refused_by_name(agent, what):
    size, options, says = UNFIT[what]
    SIZES["U16"] = 2
    agent.publish("actor", 1, llama(**size))
    mount = Mount(agent.url, f"derive={VIEW}{options}")
    told = fails(mount)
    assert says in told and f"{VIEW}/1 cannot be made of actor" in told, told
    assert said_of(mount, 1).startswith("failed ") and says.replace('"', "'") in said_of(mount, 1), said_of(mount, 1)
    assert mount.read("actor", 1, "model.safetensors") and said_of(mount, 1, "actor").startswith("ready ")
    if what == "NaN":  # the next version is none the worse for it
        agent.publish("actor", 2, llama(seed=2))
        pull(mount, 2)


def test_a_version_without_a_configuration(agent):
    folder = llama()
    os.remove(f"{folder}/config.json")
    agent.publish("actor", 1, folder)
    root = Mount(agent.url, f"derive={VIEW},serve=127.0.0.1:{(port := free_port())},insecure")
    leaf = Mount(f"http://127.0.0.1:{port}")
    leaf.wait_version("actor", 1)
    for mount in (leaf, root):  # the leaf, too, has the reason and not that the view is gone
        told = fails(mount)
        assert f"{VIEW}/1 cannot be made of actor: it has no config.json" in told and "gone" not in told and "EINVAL" in told, told


def test_an_adapter_has_no_view(agent):
    agent.publish("actor", 1, lora())
    for options in ("", ",derive-family=any"):
        with scope():
            told = fails(Mount(agent.url, f"derive={VIEW}{options}"))
            assert "it is an adapter" in told and "config.json" not in told, told


def test_patterns_and_families(agent):
    folder = llama(family="test")
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"derive={VIEW};{CHANNEL},derive-family=any,derive-ignore=re:.*self_attn.*,derive-ignore={CHANNEL}=model.layers.1.mlp.down_proj")
    pull(mount)
    check(mount, 1, folder, VIEW, "--any-family", "-i", "re:.*self_attn.*")
    check(mount, 1, folder, CHANNEL, "--any-family", "-i", "re:.*self_attn.*", "-i", "model.layers.1.mlp.down_proj")


@pytest.mark.parametrize("options, says", [
    ("derive=actor", "write MODEL@RECIPE"),
    ("derive=actor@int3", "fp8-block128"),
    ("derive=actor@0.2", "write MODEL@RECIPE"),
    (f"derive={VIEW};{VIEW}", "twice"),
    (f"derive={VIEW},copies=1", "derive and copies=1 exclude each other"),
    (f"copies=auto,derive={VIEW}", "derive and copies=auto exclude each other"),
    ("derive-ignore=re:x", "derive="),
    (f"derive={VIEW},derive-ignore={CHANNEL}=re:x", CHANNEL),
    (f"derive={VIEW},derive-ignore=re:(", "no regular expression"),
    (f"derive={VIEW},derive-ignore={VIEW}=", "names no layer"),
    (f"derive={VIEW},derive-family=all", "known|any"),
])
def test_options_that_make_no_sense(options, says):
    need_fuse()
    folder = unique("mnt")
    os.makedirs(folder)
    r = wsync("mount", "-f", "-o", options, "http://127.0.0.1:1", folder, check=False)
    assert r.returncode and says in r.stderr, r.stderr


def test_memory_that_does_not_fit(agent):
    folder = llama()
    agent.publish("actor", 1, folder)
    one = size_of(folder)
    mount = Mount(agent.url, f"derive={VIEW},cache={int(one * 1.2)}")
    told = fails(mount)
    assert f"{VIEW}/1 needs" in told and "actor/1" in told and "cache=" in told, told
    assert mount.read("actor", 1, "config.json")
    assert used(mount) == here(mount, "actor")  # nothing of the view is left


def test_what_a_view_takes_of_the_cache(agent):
    folder = llama()
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"derive={VIEW}")
    pull(mount)
    view = here(mount, VIEW)
    assert used(mount) == here(mount, "actor") + view
    mount.write("drop 1", "actor", "ctl")
    wait_for(lambda: used(mount) == view, "the source's memory")
    mount.write("drop 1", VIEW, "ctl")
    wait_for(lambda: used(mount) == 0, "the view's memory")


def test_what_is_gone_at_the_source(agent):
    folder = llama()
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"derive={VIEW}")
    pull(mount)
    source = digest(mount, VIEW, 1)
    mount.write("drop 1", "actor", "ctl")
    for v in (2, 3, 4):
        agent.publish("actor", v, stepped(folder, v))
    wait_view(mount, 4)
    wait_for(lambda: sorted(n for n in os.listdir(mount.file(VIEW)) if n.isdigit()) == ["1", "3", "4"], "versions of the view")  # 1 is here
    assert digest(mount, VIEW, 1) == source
    mount.write("verify 1", VIEW, "ctl")
    mount.write("drop 1", VIEW, "ctl")
    wait_for(lambda: not os.path.exists(mount.file(VIEW, 1)), "the view to go")
    agent.end()
    wait_for(lambda: "answers" in mount.text() and "does not answer" in mount.text(), "the agent's end")
    pull(mount, 4, "actor") if said_of(mount, 4, "actor").startswith("ready") else None
    mount.write("pin 3", VIEW, "ctl")  # of what is known, nothing is lost
    assert "3" in os.listdir(mount.file(VIEW))


def test_one_that_was_dropped_comes_again(agent):
    folder = llama()
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"derive={VIEW}")
    pull(mount)
    before = digest(mount, VIEW, 1)
    mount.write("drop 1", VIEW, "ctl")
    assert said_of(mount, 1).startswith("known ")
    pull(mount)
    assert digest(mount, VIEW, 1) == before
    mount.write("pin 1", VIEW, "ctl")
    assert mount.refused("drop 1", VIEW, "ctl") == "EBUSY"


def test_a_resumed_run_takes_its_views_with_it(agent):
    folder = llama()
    agent.publish("actor", 1, folder, "--run", "a")
    agent.publish("actor", 2, folder, "--run", "a")
    mount = Mount(agent.url, f"derive={VIEW}")
    pull(mount, 2)
    again = stepped(folder, 5)
    agent.publish("actor", 2, again, "--run", "b", "--new-run")
    wait_for(lambda: "2@a" in os.listdir(mount.file(VIEW)), "the abandoned version")
    check(mount, 2, again)
    assert digest(mount, VIEW, "2@a") != digest(mount, VIEW, 2)


def test_sources_that_make_another_view_disagree(agent):
    agent.publish("actor", 1, llama())
    port = free_port()
    one = Mount(agent.url, f"derive={VIEW},serve=127.0.0.1:{port},serve-insecure,derive-ignore=re:.*layers.1.*")
    mount = Mount(f"{agent.url},http://127.0.0.1:{port}", f"derive={VIEW}")
    pull(mount)
    pull(one)
    wait_for(lambda: " lists it with " in said_of(mount, 1), "the sources to disagree")
    assert digest(mount, VIEW, 1) in said_of(mount, 1)


def test_one_that_its_source_had_made_and_has_no_more(agent):
    folder = llama()
    agent.publish("actor", 1, folder)
    port = free_port()
    rack = Mount(agent.url, f"derive={VIEW},serve=127.0.0.1:{port},serve-insecure")
    mount = Mount(f"{agent.url},http://127.0.0.1:{port}", f"derive={VIEW},deadline=2")
    pull(rack)
    wait_for(lambda: " sources=1" in said_of(mount, 1), "the view of the other mount")
    suspend(rack.pid)  # so the mount does not hear of its end before it asks
    at_end(os.kill, rack.pid, signal.SIGCONT)
    pull(mount)
    assert 'how="made of actor/1' in said_of(mount, 1), said_of(mount, 1)
    check(mount, 1, folder)


def busy(agent, options="", **size):
    """A mount in which a derivation takes as long as it can."""
    agent.publish("actor", 1, llama(layers=2, hidden=1024, **size))
    os.environ["WSYNC_QUANT"] = "portable"
    at_end(os.environ.pop, "WSYNC_QUANT")
    return Mount(agent.url, f"derive={VIEW},threads=1{options}")


def ask(mount, version=1):
    """Has it made, and does not wait for that."""
    wait_view(mount, version)
    p = subprocess.Popen(["cat", mount.file(VIEW, version, "config.json")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    at_end(p.wait)
    at_end(p.kill)
    return p


def is_deriving(mount):
    return "store ready model=actor version=1" in mount.text()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_daemon_that_ends_while_it_makes_one(agent, how):
    mount = busy(agent)
    ask(mount)
    wait_for(lambda: is_deriving(mount), "the source")
    began = time.monotonic()
    mount.process.send_signal(how)
    mount.process.wait(10 * SLOW)
    assert time.monotonic() - began < 5 * SLOW
    mount.end()
    again = Mount(agent.url, f"derive={VIEW}", path=None)
    pull(again)
    again.write("verify 1", VIEW, "ctl")


def test_one_that_is_dropped_while_it_is_made(agent):
    mount = busy(agent)
    for _ in range(3):
        reader = ask(mount)
        wait_for(lambda: not said_of(mount, 1).startswith("known "), "the derivation")
        mount.write("drop 1", VIEW, "ctl")
        reader.wait(20 * SLOW)  # the kernel opens it once more, and may find the next one
        if not said_of(mount, 1).startswith("known "):
            mount.write("drop 1", VIEW, "ctl")
    pull(mount)
    mount.write("verify 1", VIEW, "ctl")
    mount.write("drop 1", "actor", "ctl")  # nothing has it retained
    assert said_of(mount, 1, "actor").startswith("known ")
    mount.write("verify 1", VIEW, "ctl")


def test_a_source_that_is_dropped_before_it_has_come(agent):
    mount = busy(agent)
    reader = ask(mount)
    wait_for(lambda: not said_of(mount, 1).startswith("known "), "the derivation")
    mount.write("drop 1", "actor", "ctl")
    reader.wait(20 * SLOW)
    pull(mount)
    mount.write("verify 1", VIEW, "ctl")


def test_many_who_ask_at_once_have_it_made_once(agent):
    mount = busy(agent)
    readers = [ask(mount) for _ in range(8)]
    for r in readers:
        out, _ = r.communicate(timeout=30 * SLOW)
        assert b"quantization_config" in out
    assert times_made(mount) == 1


def test_deltas_of_the_source_while_views_are_made():
    need_fuse()
    agent = Agent()
    folder = llama(layers=2, hidden=512)
    mount = Mount(agent.url, f"derive={VIEW},{DELTAS}")
    for v in range(1, 5):
        agent.publish("actor", v, folder)
        pull(mount, v)
        check(mount, v, folder)
        folder = stepped(folder, v, 0.001)


def test_a_model_that_is_removed_takes_its_views_with_it(agent):
    agent.publish("actor", 1, llama())
    mount = Mount(agent.url, f"derive={VIEW}")
    wait_view(mount, 1)
    mount.write("remove actor", "ctl")
    wait_for(lambda: not os.path.exists(mount.file(VIEW, 1)), "the view to go")


def test_reads_by_links(agent):
    folder = llama(files=2)
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"derive={VIEW},reads=link")
    wait_view(mount, 1)
    check(mount, 1, folder)


def test_settings_survive(agent):
    agent.publish("actor", 1, llama())
    mount = Mount(agent.url, f"derive={VIEW}")
    pull(mount)
    mount.write("pin 1", VIEW, "ctl")
    path = mount.path
    mount.end()
    mount = Mount(agent.url, f"derive={VIEW}", path=path)
    wait_view(mount, 1)
    wait_for(lambda: " pinned" in said_of(mount, 1), "the pin")
