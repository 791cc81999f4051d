# timeout: 3600, takes: 100
"""A real vLLM's parameters are patched while it serves: afterwards it is, bit for bit, what a load or a fresh start makes of the version."""
import os
import random
import signal
import subprocess
import sys
import threading

import pytest

from families import FAMILIES
from servers import HERE, PROMPTS, Refused, Stream, WithWsync, installed, need_real
from world import Engine, Mount, unique, wait_for

STEPS = int(os.environ.get("PATCH_STEPS", "25"))
OPTIONS = (*WithWsync.uncached, "--worker-extension-cls", "patch_probe.Probe")
PLAIN = (*OPTIONS, "--worker-cls", "patch_probe.Worker")
LOSING = ("gpt-oss",)  # a reload by vLLM leaves its experts as they are
ALL = os.environ.get("SHARE", "1/1") == "1/1"  # of a shared run, one file's minutes are the others' too
SLOW = pytest.mark.skipif("CI" in os.environ and not ALL, reason="it starts two vLLMs a family: minutes that the hour of CI does not have; SHARE=1/1 runs it")


class Patched(WithWsync):
    """A server whose workers can be asked for their bits."""

    def environment(self):
        return {**super().environment(), "PYTHONPATH": os.pathsep.join((self.target, HERE)), "GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1"}

    def stage(self, stage, **more):
        """The answers of all workers."""
        said = self.rpc("wsync_patch", stage=stage, **more)
        assert [one["rank"] for one in said] == list(range(len(said))) and {one["stage"] for one in said} == {stage}, said
        return said

    def done(self, stage, **more):
        """The same, all of which must be ok."""
        said = self.stage(stage, **more)
        assert all(one["ok"] for one in said), said
        return said

    def paused(self, stage, plan):
        self.call("/pause?mode=keep", post=True)
        try:
            return self.done(stage, plan=plan)
        finally:
            self.call("/resume", post=True)

    def digests(self):
        return self.rpc("probe_digests")


def families(*names):
    """The folder with the families' versions."""
    need_real("vllm")
    WithWsync.target = installed()
    folder = unique("families")
    subprocess.run([sys.executable, os.path.join(HERE, "families.py"), folder, *names], check=True, timeout=300, stdin=subprocess.DEVNULL)
    return folder


def patchable(said):
    return " ".join(f"{one['patchable']:.1%}" for one in said)


def test_patched():
    "any sequence of patches, undos and loads leaves the parameters and answers of a load; and a patch those of a fresh start"
    folder = os.path.join(families("qwen3"), "qwen3")
    path = lambda version: os.path.join(folder, str(version))
    server, fresh = Patched(path(1), *PLAIN), Patched(path(2), *PLAIN)
    answers, bits = {1: server.wait().answers()}, {1: server.digests()}
    said = server.stage("state")
    assert said[0]["ready"] and said[0]["patchable"] == 1 and not said[0]["whole"], said
    assert not server.stage("prepare", plan="x", target=path(3), base=path(2))[0]["ok"], "2 is not what is served"
    server.done("prepare", plan="a", target=path(2), base=path(1))
    assert (server.answers(), server.digests()) == (answers[1], bits[1])
    server.paused("put", "a")
    answers[2], bits[2] = server.answers(), server.digests()
    assert answers[2] != answers[1] and bits[2] != bits[1]
    assert (fresh.wait().answers(), fresh.digests()) == (answers[2], bits[2])
    fresh.stop()
    server.paused("undo", "a")
    assert (server.answers(), server.digests()) == (answers[1], bits[1])
    server.done("drop", plan="a")
    for version in (3, 4, 1):
        server.load(path(version))
        answers[version], bits[version] = server.answers(), server.digests()
    assert len({str(said) for said in answers.values()}) == 4
    seed, now = random.randrange(1 << 30), 1
    print(f"# seed {seed}", flush=True)
    chance = random.Random(seed)
    for step in range(STEPS):
        target, plan = chance.choice([v for v in answers if v != now]), str(step)
        server.done("prepare", plan=plan, target=path(target), base=path(now))
        if chance.random() < 0.2:
            server.load(path(now))
            assert not server.stage("put", plan=plan)[0]["ok"], "a load drops the plan"
            continue
        stages = chance.choice((["put"], ["put", "undo"], ["put", "undo", "put"], ["undo"], ["put", "put"]))
        for stage in stages:
            server.paused(stage, plan)
        server.done("drop", plan=plan)
        now = target if stages[-1] == "put" else now
        assert server.digests() == bits[now], (step, target, stages)
        assert server.answers() == answers[now], (step, target, stages)
        server.done("verify")
    server.rpc("probe_flip", name="model.layers.1.mlp.down_proj.weight")
    said = server.stage("verify")[0]
    assert said["differs"] == ["model.layers.1.mlp.down_proj.weight"], said
    assert not server.stage("prepare", plan="z", target=path(2), base=path(now))[0]["ok"], "it drifted"
    server.load(path(now))
    assert server.digests() == bits[now] and server.stage("state")[0]["ready"]


@SLOW
def test_switched():
    "after a first load a mount's switch patches, forwards and back, beside requests; each version is what a load of it is"
    folder = families("qwen3")
    mount = Mount(f"dir:{folder}")
    mount.wait_version("qwen3", 4)
    server = Patched(mount.file("qwen3", 1), *PLAIN).wait()
    mount.write(f"engine add v1 vllm {server.url} update=patch", "qwen3/ctl")
    mount.write(1, "qwen3/version")  # the mount knows what the engine serves from here on
    stream, found = Stream(server), {}
    for version in (2, 3, 2, 4):
        stream.settle()
        mount.write(version, "qwen3/version")
        loaded = [line for line in mount.text("qwen3/events").splitlines() if " loaded " in line and f" version={version} " in line]
        assert "how=patch" in loaded[-1], loaded
        print("#", loaded[-1], flush=True)
        found[version] = server.digests()
        assert server.serves() == str(version)
    stream.end()
    assert not stream.lost, stream.lost[:3]
    for version, digests in found.items():
        server.load(os.path.join(folder, "qwen3", str(version)))
        assert server.digests() == digests, version


def check(folder, options, print_as):
    """A patch from 1 to 2, back, and to 2 again equals a fresh start on 2; where it is refused a load does."""
    server, fresh = Patched(os.path.join(folder, "1"), *options), Patched(os.path.join(folder, "2"), *options)
    first, want = server.wait().answers(), fresh.wait().answers()
    assert first != want
    said = server.stage("state")
    plan = dict(plan="a", target=os.path.join(folder, "2"), base=os.path.join(folder, "1"))
    prepared = server.stage("prepare", **plan)
    how = prepared[0]["why"] if not prepared[0]["ok"] else f"{prepared[0]['changed']} elements, and of modules whole {prepared[0]['whole']}"
    print(f"# {print_as}: {patchable(said)} patchable: {how}", flush=True)
    if prepared[0]["ok"]:
        for stage, answers in (("put", want), ("undo", first), ("put", want)):
            server.paused(stage, "a")
            assert server.answers() == answers, stage
        assert server.digests() == fresh.digests()
        server.done("drop", plan="a")
        server.done("verify")
    if os.path.basename(folder) in LOSING:
        with pytest.raises(Refused, match="loses"):
            server.load(os.path.join(folder, "2"))
        with pytest.raises(Refused, match="500"):  # vLLM does not tell why
            server.reload(os.path.join(folder, "2"))
        server.call("/resume", post=True)
        assert server.answers() == first
        return said, prepared
    server.load(os.path.join(folder, "2"))
    assert server.answers() == want, "a load is not what a start is"
    return said, prepared


@SLOW
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "qwen3"])
def test_families(family):
    "a patch is what a fresh start is, for each published family"
    check(os.path.join(families(family), family), PLAIN, family)


@SLOW
@pytest.mark.parametrize("family", ["qwen3", "qwen3-tied"])
def test_packed(family):
    "with the kernels that vLLM uses on a CPU by default, which pack linear layers, a version is refused and loaded whole"
    _, prepared = check(os.path.join(families(family), family), OPTIONS, f"{family}, packed")
    assert not prepared[0]["ok"] and any(kernel in prepared[0]["why"] for kernel in ("onednn", "convert_weight_packed")), prepared  # ... with AMX


@SLOW
def test_ranks():
    "two ranks: each patches its own part"
    said, prepared = check(os.path.join(families("llama"), "llama"), (*PLAIN, "--tensor-parallel-size", "2"), "llama on two ranks")
    assert len(said) == 2 and all(one["ready"] and one["patchable"] == 1 for one in said) and all(one["ok"] for one in prepared), (said, prepared)


class Adapting(Patched):
    def environment(self):
        return {**super().environment(), "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}

    def adapted(self, prompt):
        """The prompt's log probabilities with the adapter."""
        said = self.generate(prompt, 1, prompt_logprobs=0, model="lora")["prompt_logprobs"]
        return [of[str(token)]["logprob"] for token, of in zip(prompt[1:], said[1:])]


@SLOW
def test_adapter():
    "an adapter over a patch, and over its undo, answers as over a load of the version"
    pytest.importorskip("peft")
    from peft_adapters import RANK, make_adapter

    folder = os.path.join(families("qwen3"), "qwen3")
    path = lambda version: os.path.join(folder, str(version))
    server = Adapting(path(1), *PLAIN, "--enable-lora", "--max-lora-rank", str(RANK), "--max-loras", "2").wait()
    server.call("/v1/load_lora_adapter", {"lora_name": "lora", "lora_path": make_adapter(path(1), 1)})
    answers = lambda: [[server.adapted(prompt) for prompt in PROMPTS], server.answers()]
    first = answers()
    assert first[0][2] != server.score(PROMPTS[2]), "the adapter changes nothing"
    server.done("prepare", plan="a", target=path(2), base=path(1))
    assert answers() == first
    server.paused("put", "a")
    patched = answers()
    assert patched[0] != first[0] and patched[1] != first[1]
    server.paused("undo", "a")
    assert answers() == first
    server.paused("put", "a")
    server.done("drop", plan="a")
    assert answers() == patched
    server.load(path(2))
    assert answers() == patched
    server.load(path(1))
    assert answers() == first


@SLOW
def test_rank_killed():
    "one of two ranks is killed between two parameters of a put: its mate goes back; the engine, started anew, is loaded whole"
    folder = families("llama")
    os.rename(os.path.join(folder, "llama"), os.path.join(folder, "actor"))
    ranks = (*PLAIN, "--tensor-parallel-size", "2")
    mount = Mount(f"dir:{folder}")
    mount.wait_version("actor", 4)
    path = lambda version: mount.file("actor", version)
    server, mate = Patched(path(1), *ranks), Engine(path(1), "--patch", "2", api="vllm")
    server.wait()
    for name, engine in (("v", server), ("mate", mate)):
        mount.write(f"engine add {name} vllm {engine.url} update=patch", "actor/ctl")
    mount.write(1, "actor/version")
    bits, held = server.digests(), mate.checksum()
    stopped = unique("stopped")
    victim, refused = int(server.rpc("probe_stop", rank=1, file=stopped)[1]), []
    writer = threading.Thread(target=lambda: refused.append(mount.refused(2, "actor/version")))
    writer.start()
    wait_for(lambda: os.path.exists(stopped), "the put", 120)
    os.kill(victim, signal.SIGKILL)
    writer.join()
    assert refused, "the switch was made"
    events = mount.text("actor/events").splitlines()
    back = [line for line in events if " brought-back " in line and " engine=mate " in line]
    assert back and " how=undo " in back[-1], events
    assert mate.serves() == "1" and mate.checksum() == held and not mate.is_paused()
    assert not mount.engines()["v"].startswith("serving "), mount.engines()
    server.kill()
    again = Patched(path(3), *ranks, port=server.port).wait()
    wait_for(lambda: mount.engines()["v"].startswith("serving 1 "), "the engine anew", 120)
    assert again.serves() == "1" and again.digests() == bits
    mount.write(2, "actor/version")
    loaded = [line for line in mount.text("actor/events").splitlines() if " loaded " in line and " version=2 " in line]
    assert all(any(f" engine={name} " in line and " how=patch " in f"{line} " for line in loaded[-2:]) for name in ("v", "mate")), loaded
