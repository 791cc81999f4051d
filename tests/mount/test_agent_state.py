# beside others
# sanitizers: thread
# timeout: 300
"""What an agent keeps over its end: releases, numbers and registrations in --state FILE, and the newest archived version."""
import errno
import re
import signal
import subprocess

import pytest

from between import Between
from world import *


class Trainer:
    """An agent that keeps its state, with versions of actor out of folders."""

    def __init__(self, *args):
        need_fuse()
        self.state = unique("state") + "/agent.state"
        self.args = ("--state", self.state, *args)
        self.folders = {v: checkpoint(SMALL, seed=v) for v in (1, 2, 3)}
        self.agent = Agent(*self.args)

    def publish(self, version, *args, **kw):
        return self.agent.publish("actor", version, self.folders[version], *args, **kw)

    def restart(self, kill=True):
        self.agent.kill() if kill else self.agent.end()
        self.agent = Agent(*self.args, port=self.agent.port, sock=self.agent.sock)

    def listed(self):
        return {m["name"]: m for m in self.agent.get("/v1/models")["models"]}["actor"]

    def follower(self, host, **kw):
        mount = Mount(self.agent.url, f"host={host}", **kw)
        mount.wait_model()
        mount.write("follow", "actor/policy")
        wait_for(lambda: any(m["mount"].startswith(host + ":") and m["follows"] for m in self.agent.get("/v1/actor/mounts")), "its registration")
        return mount

    def released(self, release):
        wait_for(lambda: self.agent.get(f"/v1/releases/{release['id']}")["settled"], "the release")
        return self.agent.get(f"/v1/releases/{release['id']}")


def read_text(path):
    with open(path) as f:
        return f.read()


def serves(mount, version):
    return mount.text("actor/version") == f"{version}\n"


def test_released():
    "a restarted agent knows what was released: a mount that never heard of it does not follow what is only published"
    trainer = Trainer()
    trainer.publish(1)
    trainer.agent.ask("/v1/actor/1/release")
    for kill in (True, False):
        trainer.restart(kill)
        model = trainer.listed()
        assert model["newest"] == 1 and model["versions"] == [] and model["released"]["version"] == 1, model
    trainer.publish(2)
    assert trainer.listed()["run"] == model["run"]  # the trainer goes on with its lineage
    mount = trainer.follower("late")
    mount.wait_version("actor", 2)
    wait_for(lambda: "version 1 of actor, which was released last, is neither here nor at a source" in mount.text("actor/events"), "the reason")
    assert serves(mount, "none")
    trainer.agent.ask("/v1/actor/2/release")
    wait_for(lambda: serves(mount, 2), "what is released")


def test_releases():
    "a restarted agent lists the releases of the one before; one that was being prepared is aborted, and says so; ids go on"
    trainer = Trainer()
    trainer.publish(1)
    mount = trainer.follower("n0")
    first = trainer.released(trainer.agent.ask("/v1/actor/1/release", {"min_engines": 0}))
    trainer.publish(2)
    mount.wait_version("actor", 2)
    suspend(mount.pid)
    try:
        ended = trainer.agent.ask("/v1/actor/2/release", {"prepare_s": 3600})
        trainer.agent.ask(f"/v1/releases/{ended['id']}/abort")
        pending = trainer.agent.ask("/v1/actor/2/release", {"quorum": 50})
        wait_for(lambda: str(pending["id"]) in read_text(trainer.state), "the release in the file")
        trainer.restart()
        known = {r["id"]: r for r in trainer.agent.get("/v1/releases")}
        assert list(known) == [pending["id"], ended["id"], first["id"]], known
        assert [known[r["id"]]["phase"] for r in (first, ended, pending)] == ["committed", "aborted", "aborted"], known
        assert known[first["id"]]["models"] == first["models"] and known[ended["id"]]["why"] == "a person ended it"
        assert "the agent ended while it was being prepared" in known[pending["id"]]["why"]
        assert f"release aborted id={pending['id']}" in trainer.agent.text()
    finally:
        os.kill(mount.pid, signal.SIGCONT)
    trainer.publish(3)
    newest = trainer.released(trainer.agent.ask("/v1/actor/3/release"))
    assert newest["id"] > pending["id"] and newest["phase"] == "committed" and serves(mount, 3)
    trainer.restart(kill=False)
    assert [(r["id"], r["phase"]) for r in trainer.agent.get("/v1/releases")][0] == (newest["id"], "committed")
    assert len(trainer.agent.get("/v1/releases")) == 4


def test_numbers():
    "a restarted agent gives no number of the lineage to other bytes, and the trainer goes on above it"
    trainer = Trainer()
    trainer.publish(1)
    trainer.publish(2)  # within the time for which the file is not written again
    trainer.restart()
    done = trainer.publish(2, check=False)
    assert done.returncode and ("not higher than the newest, 2" in done.stderr or "go on with a number above 2" in done.stderr), done.stderr
    trainer.publish(3)
    wait_for(lambda: '"newest":3' in read_text(trainer.state), "the number in the file")
    trainer.restart()
    done = trainer.publish(3, check=False)
    assert done.returncode and "not higher than the newest, 3" in done.stderr, done.stderr
    assert trainer.listed()["newest"] == 3


def test_registrations():
    "a release that begins before the mounts are back waits for them"
    trainer = Trainer()
    trainer.publish(1)
    mounts = [trainer.follower("n0"), trainer.follower("n1")]
    trainer.released(trainer.agent.ask("/v1/actor/1/release"))
    assert all(serves(m, 1) for m in mounts)
    suspend(mounts[1].pid)
    trainer.restart()
    trainer.publish(2)
    release = trainer.agent.ask("/v1/actor/2/release")
    try:
        wait_for(lambda: any(m["state"] == "prepared" for m in trainer.agent.get(f"/v1/releases/{release['id']}")["mounts"]), "one that is prepared")
        assert trainer.agent.get(f"/v1/releases/{release['id']}")["phase"] == "preparing"
    finally:
        os.kill(mounts[1].pid, signal.SIGCONT)
    assert trainer.released(release)["phase"] == "committed"
    assert all(serves(m, 2) for m in mounts)


def test_quarantine():
    "what a release with a quorum left behind stays so over restarts: of the mount, of the agent, and of both where the agent keeps no state"
    archive = unique("archive")
    trainer = Trainer("--archive", archive, "--archive-every", "1")
    trainer.publish(1)
    wait_for(lambda: 1 in listing(archive), "the archive")

    def follower(host, path=None):
        mount = Mount(f"{trainer.agent.url},dir:{archive}", f"host={host}", path=path)
        wait_for(lambda: os.path.isdir(mount.file("actor", "1")), "the model")
        return mount
    mounts = [follower("n0"), follower("n1")]
    engines = [Engine(trainer.folders[1]), Engine(trainer.folders[1], "--refuse", "2")]
    between = Between(engines[1])
    for mount, engine in zip(mounts, [engines[0], between]):
        mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
        mount.write("follow-released", "actor/policy")
    wait_for(lambda: sum(m["engines"] for m in trainer.agent.get("/v1/actor/mounts") if m["follows"]) == 2, "the engines' registration")
    trainer.released(trainer.agent.ask("/v1/actor/1/release"))
    trainer.publish(2)
    for mount in mounts:
        mount.wait_version("actor", 2)
    wait_for(lambda: 2 in listing(archive), "the archive")
    resumed = []
    between.change = lambda path, body: resumed.extend([path] if "continue_generation" in path else []) or body
    release = trainer.agent.ask("/v1/actor/2/release", {"quorum": 50})
    trainer.released(release)

    def is_held():
        return mounts[1].status("actor")["quarantined"] == "yes" and mounts[1].engines()["e"].startswith("paused") and not engines[1].is_ready()

    def is_named():
        known = {m["mount"].split(":")[0]: m for m in trainer.agent.get(f"/v1/releases/{release['id']}")["mounts"]}
        return {host: m["quarantined"] for host, m in known.items()} == {"n0": False, "n1": True}

    def next_daemon():
        mounts[1].end()
        mounts[1] = follower("n1", mounts[1].path)
        wait_for(lambda: "errno=EREMOTEIO" in mounts[1].text("actor/events"), "its try")
        wait_for(is_held, "it to be held by the next daemon")
    wait_for(lambda: is_held() and is_named(), "the quarantine")
    for kill in (True, False):
        wait_for(lambda: '"quarantined_by":%d' % release["id"] in read_text(trainer.state), "its place in the file")
        trainer.restart(kill)
        assert is_named(), trainer.agent.get("/v1/releases")
        wait_for(lambda: trainer.agent.get(f"/v1/releases/{release['id']}")["settled"], "the mounts to be back")
        assert trainer.listed()["released"]["quarantine"] and is_named() and is_held()
    next_daemon()
    trainer.agent.end()
    trainer.agent = Agent("--archive", archive, "--archive-every", "1", port=trainer.agent.port, sock=trainer.agent.sock)
    next_daemon()
    mounts[1].end()  # one that does not get as far as the version that the engine served
    mounts[1] = Mount(trainer.agent.url, "host=n1", path=mounts[1].path)
    mounts[1].wait_model()
    wait_for(lambda: "result=EREMOTEIO" in mounts[1].text("actor/events"), "its try")
    assert mounts[1].text("actor/version") != "1\n"
    next_daemon()
    assert mounts[0].status("actor")["quarantined"] == "no" and engines[0].serves() == "2"
    assert not resumed, "it served what is older for a moment"
    engines[1].end()
    engines[1] = Engine(trainer.folders[1], port=engines[1].port)
    wait_for(lambda: serves(mounts[1], 2) and engines[1].serves() == "2" and engines[1].is_ready() and resumed, "it to be brought along", 60)
    assert mounts[1].status("actor")["quarantined"] == "no"


def test_primary_copy_stays():
    "while no agent runs the mounts serve the last version, and its restart changes nothing there"
    trainer = Trainer()
    trainer.publish(1)
    mount = trainer.follower("n0")
    trainer.released(trainer.agent.ask("/v1/actor/1/release"))
    trainer.agent.kill()
    want = tensors_of(trainer.folders[1] + "/model.safetensors")
    assert tensors_of(mount.file("actor/current/model.safetensors")) == want
    trainer.agent = Agent(*trainer.args, port=trainer.agent.port)
    wait_for(lambda: trainer.agent.get("/v1/actor/mounts")[0]["loaded"], "its word")
    assert serves(mount, 1) and tensors_of(mount.file("actor/current/model.safetensors")) == want
    assert "release-kept" not in mount.text("actor/events")


def damage(text):
    return text.replace('"newest":1', '"newest":2')


@pytest.mark.parametrize("change,says", (
    (damage, "its hash is wrong"),
    (lambda t: t[:-30], "it is cut off"),
    (lambda t: "", "it is not the state of a wsync agent"),
    (lambda t: "wsync-settings 1\n", "it is not the state of a wsync agent"),
    (lambda t: t.replace("wsync-agent-state 1", "wsync-agent-state 7"), "is of a newer release: it is of format 7"),
))
def test_unusable(change, says):
    "a state file that is damaged, another's or of a newer release ends the start with a remedy, and stays as it is"
    trainer = Trainer()
    trainer.publish(1)
    trainer.agent.end()
    with open(trainer.state) as f:
        text = change(f.read())
    with open(trainer.state, "w") as f:
        f.write(text)
    done = wsync("agent", "--socket", unique("sock"), *trainer.args, check=False)
    assert done.returncode and says in done.stderr and trainer.state in done.stderr, done.stderr
    assert "move the file away" in done.stderr or "name another file (--state)" in done.stderr, done.stderr
    with open(trainer.state) as f:
        assert f.read() == text


def test_unreadable():
    "a folder's or FIFO's place, a folder that is none, and a link, which would be replaced, are refused at once"
    need_fuse()
    fifo, link = unique("fifo"), unique("link")
    os.mkfifo(fifo)
    os.symlink(unique("elsewhere"), link)
    for path, says in ((fifo, "it is no plain file"), (link, "name the file that it leads to"), (checkpoint(SMALL) + "/config.json/agent.state", os.strerror(errno.ENOTDIR))):
        done = wsync("agent", "--socket", unique("sock"), "--state", path, check=False)
        assert done.returncode and says in done.stderr, done.stderr
    assert os.path.islink(link)


def test_two_agents():
    "a second agent with the state file of another is refused, and names its process"
    trainer = Trainer()
    done = wsync("agent", "--socket", unique("sock"), *trainer.args, check=False)
    assert done.returncode and f"another agent (process {trainer.agent.pid}) has the state" in done.stderr, done.stderr
    trainer.publish(1)


def test_folder():
    "--state with a folder means what it did: AstraFlow's registrations, and two agents may name it"
    need_fuse()
    folder = unique("states")
    os.makedirs(folder)
    for _ in range(2):
        Agent("--state", folder)
    assert os.listdir(folder) == []


def test_full_disk():
    "a release that cannot be recorded is aborted with the reason, training goes on, and later ones work"
    folder = unique("full")
    os.makedirs(folder)
    trainer = Trainer()
    trainer.agent.end()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], check=True)
    at_end(subprocess.run, ["umount", "-l", folder], check=False)
    trainer.state = folder + "/agent.state"
    trainer.args = ("--state", trainer.state)
    trainer.agent = Agent(*trainer.args)
    trainer.publish(1)
    mount = trainer.follower("n0")
    assert trainer.released(trainer.agent.ask("/v1/actor/1/release"))["phase"] == "committed"
    trainer.publish(2)
    with open(folder + "/filler", "wb", buffering=0) as f, pytest.raises(OSError):
        while True:
            f.write(b"\0" * 4096)
    release = trainer.released(trainer.agent.ask("/v1/actor/2/release"))
    assert release["phase"] == "aborted" and "cannot record it" in release["why"] and os.strerror(errno.ENOSPC) in release["why"], release
    assert serves(mount, 1)
    trainer.publish(3)
    os.unlink(folder + "/filler")
    assert trainer.released(trainer.agent.ask("/v1/actor/3/release"))["phase"] == "committed"
    wait_for(lambda: serves(mount, 3), "the release")
    trainer.restart()
    assert trainer.listed()["released"]["version"] == 3


def test_archived():
    "a restarted agent serves the newest archived version, which deltas lead to, and the next version has a delta from it"
    archive = unique("archive")
    trainer = Trainer("--archive", archive)
    for v in (1, 2, 3):
        trainer.folders[v] = step(trainer.folders[v - 1], v, share=0.004) if v > 1 else checkpoint({"a": ("BF16", [512, 1024]), "b": ("BF16", [300, 100])})
        trainer.publish(v)
        wait_for(lambda: v in listing(archive), f"version {v} in the archive")
    assert os.path.exists(f"{archive}/v1/actor/3/delta")
    for state in (True, False):
        if not state:
            trainer.args = trainer.args[2:]
        trainer.restart()
        wait_for(lambda: "actor" in {m["name"] for m in trainer.agent.get("/v1/models")["models"]} and [v["version"] for v in trainer.listed()["versions"]] == [3],
                 "the archived version")
        mount = Mount(trainer.agent.url, f"host=m{state}")
        mount.wait_version("actor", 3)
        assert tensors_of(mount.file("actor/3/model.safetensors")) == tensors_of(trainer.folders[3] + "/model.safetensors")
        mount.write("verify 3", "actor/ctl")
    trainer.folders[4] = step(trainer.folders[3], 4, share=0.004)
    trainer.publish(4)
    mount.wait_version("actor", 4)
    assert tensors_of(mount.file("actor/4/model.safetensors")) == tensors_of(trainer.folders[4] + "/model.safetensors")
    wait_for(lambda: re.search(r"version.4 .*delta from 3", mount.text("actor/status")), mount.text("actor/status"))
    wait_for(lambda: 4 in listing(archive), "version 4 in the archive")  # as a delta on what came out of it
    assert os.path.exists(f"{archive}/v1/actor/4/delta") and not os.path.exists(f"{archive}/v1/actor/4/files")


def test_archive_of_another_time():
    "where archive and state do not fit, one line of the log says which versions are not served, and why"
    archive = unique("archive")
    trainer = Trainer("--archive", archive)
    trainer.publish(1)
    wait_for(lambda: 1 in listing(archive), "version 1 in the archive")
    trainer.agent.end()
    trainer.agent = Agent("--state", trainer.state, port=trainer.agent.port, sock=trainer.agent.sock)
    trainer.publish(2)  # not archived
    trainer.restart()
    wait_for(lambda: "what was published after it is not in the archive model=actor version=1 newest=2" in trainer.agent.text(), "its word")
    wait_for(lambda: [v["version"] for v in trainer.listed()["versions"]] == [1], "what the archive has")
    trainer.agent.end()
    other = Agent(*trainer.args[2:])  # with the archive, and without the state
    other.publish("actor", 1, trainer.folders[3], "--run", "0123456789abcdef", "--new-run")
    wait_for(lambda: any(m["run"] == "0123456789abcdef" for m in json.loads(read_text(archive + "/v1/models"))["models"]), "the other run in the archive")
    other.end()
    trainer.agent = Agent(*trainer.args)
    wait_for(lambda: re.search(r"the archive's version is not served model=actor version=1: it is of run 0123456789abcdef, and the agent goes on with run \w+, whose newest is ", trainer.agent.text()),
             "its word")
    assert trainer.listed()["versions"] == []


def test_archive_damaged():
    "an archived version whose bytes are not its manifest's is not served, and the agent's log says why"
    archive = unique("archive")
    trainer = Trainer("--archive", archive)
    trainer.publish(1)
    wait_for(lambda: 1 in listing(archive), "version 1 in the archive")
    trainer.agent.end()
    with open(f"{archive}/v1/actor/1/files/model.safetensors", "r+b") as f:
        f.seek(-1, os.SEEK_END)
        last = f.read(1)
        f.seek(-1, os.SEEK_END)
        f.write(bytes([last[0] ^ 1]))
    trainer.agent = Agent(*trainer.args)
    wait_for(lambda: "cannot serve the archive's version model=actor version=1" in trainer.agent.text(), "its word")
    assert trainer.listed()["versions"] == []
