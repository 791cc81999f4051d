# beside others
# takes: 15
# sanitizers: address
"""The audit log: each thing that was done is in it once, with who did it; no name can forge a line, and neither rotation nor a full disk ends it."""
import datetime
import os
import stat
import subprocess

import pytest

from clients import Http
from ranks import Rank
from world import *

KEYS = ["time", "by", "pid", "what", "who", "from", "to", "outcome", "error"]


def entries(path, **want):
    """All lines, each of them JSON with the same fields in the same order; or those with these values."""
    with open(path) as f:
        lines = [json.loads(line) for line in f.read().splitlines()]
    for one in lines:
        assert list(one) == KEYS, one
        assert datetime.datetime.strptime(one["time"], "%Y-%m-%dT%H:%M:%S.%fZ") and len(one["time"]) == 24, one
    return [one for one in lines if all(one[k] == v for k, v in want.items())]


def once(path, **want):
    "waits for the entry, since a thread writes it, and returns it"
    found = wait_for(lambda: entries(path, **want), f"{want} in the audit log")
    assert len(found) == 1, found
    return found[0]


def secret_of(file, name, roles):
    return wsync("token", "add", name, "--role", roles, "--file", file).stdout.strip()


def test_agent():
    "versions, releases, refusals and tokens are there once each, with the identity and where it came from"
    log, file = unique("audit"), unique("tokens")
    secrets = {name: secret_of(file, name, roles) for name, roles in (("op", "read,release"), ("reader", "read"), ("node7", "read,report"))}
    agent = Agent("--tokens", file, "--audit-log", log)
    assert stat.S_IMODE(os.stat(log).st_mode) == 0o600
    agent.publish("actor", 1, checkpoint(SMALL))
    one = once(log, what="publish", to="actor/1")
    assert (one["by"], one["pid"], one["outcome"], one["error"]) == ("agent", agent.pid, "done", "")
    uid = os.geteuid()
    rank = Rank(agent, "critic", 0, 1, 1 << 16)
    rank.send("die 500 2")
    rank.reap()
    one = once(log, what="abandon", to="critic/2")
    assert one["who"] == f"uid:{uid}" and one["from"] == f"pid {rank.pid} uid {uid}" and "rank 0" in one["error"], one

    op, reader, node = (Http(agent.url, secrets[n]) for n in ("op", "reader", "node7"))
    assert op.ask("POST", "/v1/actor/1/release", {})[0] == 200  # no mount has to prepare
    for what in ("release begins", "release committed"):
        one = once(log, what=what, to="actor/1", outcome="done")
        assert one["who"] == "op" and one["from"].startswith("127.0.0.1:"), one
    assert node.ask("POST", "/v1/actor/mounts", {"mount": "HOST:M", "follows": True})[0] == 200
    began = json.loads(op.ask("POST", "/v1/actor/1/release", {})[1])
    assert op.ask("POST", f"/v1/releases/{began['id']}/abort", {})[0] == 200
    one = once(log, what="release aborted")
    assert (one["who"], one["to"], one["outcome"], one["error"]) == ("op", "actor/1", "failed", "a person ended it")
    assert op.ask("POST", "/v1/actor/9/release", {})[0] == 404
    assert "no version 9" in once(log, what="release begins", outcome="failed", to="/v1/actor/9/release")["error"]

    assert reader.ask("POST", "/v1/actor/1/release", {})[0] == 403
    one = once(log, what="refused", who="reader")
    assert one["to"] == "POST /v1/actor/1/release" and one["outcome"] == "refused" and "status 403" in one["error"], one
    time.sleep(1.1)  # refusals are counted, and written once a second
    for _ in range(3):
        assert Http(agent.url, "wrong").ask("GET", "/v1/models")[0] == 401
    assert "status 401" in once(log, what="refused", who="")["error"]
    time.sleep(1.1)
    assert Http(agent.url, "wrong").ask("GET", "/v1/x%0a%22%7d/events")[0] == 401
    one = once(log, what="refused", who="", error="status 401; 2 more since the entry before")
    assert "\n" not in one["to"], one

    secret_of(file, "late", "read")
    wait_for(lambda: reader.ask("GET", "/v1/models") and entries(log, what="tokens"), "the tokens to be read again")
    once(log, what="tokens", to=file, outcome="done")
    for model, outcome in (("actor", "done"), ("none", "failed")):
        wsync("model", "remove", "--agent", f"unix:{agent.sock}", model, check=outcome == "done")
        one = once(log, what="remove", to=model, outcome=outcome)
        assert one["who"] == f"uid:{uid}" and one["from"].endswith(f" uid {uid}"), one
    text = open(log).read()
    assert not any(s in text or s[6:] in text for s in secrets.values()) and "Bearer" not in text
    assert agent.text().count("release begins id=") == 2 and "who=op" in agent.text()
    assert "wsync_agent_audit_lost_total 0" in Http(agent.url, secrets["reader"]).ask("GET", "/metrics")[1]


def test_mount():
    "commands are there with the account that wrote them, switches and rollbacks with their outcome"
    need_fuse()
    log = unique("audit")
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    mount = Mount(agent.url, f"audit-log={log}")
    mount.wait_version("actor", 1)
    engine = Engine(mount.file("actor/1"), "--refuse", "2")
    mount.write(f"engine add e1 sglang {engine.url}", "actor/ctl")
    one = once(log, what="ctl", to=f"actor: engine add e1 sglang {engine.url}")
    assert one["who"] == f"uid:{os.geteuid()}" and one["by"] == f"mount:{mount.path}" and one["outcome"] == "done", one
    assert one["from"] == f"pid {os.getpid()} uid {os.geteuid()}", one
    mount.write("1", "actor/version")
    assert once(log, what="switch", to="actor/1")["outcome"] == "done"
    once(log, what="ctl", to="actor: 1")
    agent.publish("actor", 2, checkpoint(SMALL, seed=2))
    mount.wait_version("actor", 2)
    assert mount.refused("2", "actor/version") == "EREMOTEIO"
    one = once(log, what="switch", to="actor/2")
    assert one["outcome"] == "failed" and "e1" in one["error"] and one["who"] == f"uid:{os.geteuid()}", one
    assert once(log, what="rollback", to="actor/2")["outcome"] == "done"
    mount.write("commit quorum=1", "actor/ctl")
    once(log, what="ctl", to="actor: commit quorum=1", outcome="done")
    mount.write("engine remove e1", "actor/ctl")
    once(log, what="ctl", to="actor: engine remove e1", outcome="done")
    forged = 'nonsense","who":"uid:0"}\\ \x1b[2J\u202e'
    assert mount.refused(forged, "actor/ctl") == "EINVAL"
    found = wait_for(lambda: [e for e in entries(log, what="ctl", outcome="failed") if "nonsense" in e["to"]], "the command that is none")
    assert len(found) == 1 and found[0]["who"] == f"uid:{os.geteuid()}" and "\x1b" not in found[0]["to"], found
    mount.write("follow", "actor/policy")
    agent.publish("actor", 3, checkpoint(SMALL, seed=3))
    assert once(log, what="switch", to="actor/3")["who"] == "policy:follow-published"


def test_rotation():
    "after a file was renamed, entries go to a new one; a file that was truncated in its place is written on from its begin"
    log = unique("audit")
    agent = Agent("--audit-log", log)
    folder = checkpoint(SMALL)
    agent.publish("actor", 1, folder)
    once(log, what="publish", to="actor/1")
    os.rename(log, log + ".1")
    agent.publish("actor", 2, folder)
    wait_for(lambda: os.path.exists(log), "a new file")
    once(log, what="publish", to="actor/2")
    assert stat.S_IMODE(os.stat(log).st_mode) == 0o600 and not entries(log + ".1", to="actor/2")
    os.truncate(log, 0)
    agent.publish("actor", 3, folder)
    once(log, what="publish", to="actor/3")
    assert open(log, "rb").read(1) == b"{"
    os.unlink(log)
    agent.publish("actor", 4, folder)
    wait_for(lambda: os.path.exists(log), "a new file")
    once(log, what="publish", to="actor/4")


def test_full_disk():
    "a full disk stops no trainer: the log says so once, what was lost is counted, and entries go on once there is room"
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a tmpfs")
    place = unique("small")
    os.mkdir(place)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "small", place], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    at_end(subprocess.run, ["umount", "-l", place], check=False)
    log, ballast = f"{place}/audit", f"{place}/ballast"
    agent = Agent("--audit-log", log)
    folder = checkpoint(SMALL)
    agent.publish("actor", 1, folder)
    once(log, to="actor/1")
    with open(ballast, "wb", buffering=0) as f:
        try:
            while True:
                f.write(b"x" * 512)
        except OSError:
            pass
    last = 1
    while "entries are lost" not in agent.text() and last < 60:  # the last page of the file has room left
        last += 1
        agent.publish("actor", last, folder)
    for version in range(last + 1, last + 4):
        agent.publish("actor", version, folder)
    wait_for(lambda: "entries are lost" in agent.text(), "the log to say so")
    os.unlink(ballast)
    agent.publish("actor", last + 4, folder)
    once(log, what="publish", to=f"actor/{last + 4}")
    one = once(log, what="lost")
    lost = int(one["error"].split()[0])
    assert lost >= 3 and one["outcome"] == "failed", one
    assert agent.text().count("entries are lost") == 1 and "is written again" in agent.text()
    with urllib.request.urlopen(agent.url + "/metrics", timeout=20) as r:
        assert f"wsync_agent_audit_lost_total {lost}" in r.read().decode()


def test_what_is_no_log():
    "a folder, a fifo, a link and a folder that is not there are refused at the start, and named"
    fifo, link = unique("fifo"), unique("link")
    os.mkfifo(fifo)
    os.symlink(unique("victim"), link)
    for path in (TESTDIR, fifo, link, "/proc/none/log"):
        r = wsync("agent", "--socket", unique("none") + ".sock", "--audit-log", path, check=False)
        assert r.returncode == 1 and path in r.stderr, (path, r.stderr)
        assert path != link or "links are not followed" in r.stderr, r.stderr


def test_link_in_place_of_the_log():
    "a link that takes the place of the log is not followed, and said so; entries go on once a file is there again"
    log = unique("audit")
    agent = Agent("--audit-log", log)
    folder, victim = checkpoint(SMALL), unique("victim")
    os.rename(log, log + ".1")
    os.symlink(victim, log)
    agent.publish("actor", 1, folder)
    wait_for(lambda: "links are not followed" in agent.text(), "the log to say so")
    assert not os.path.exists(victim)
    os.unlink(log)
    agent.publish("actor", 2, folder)
    once(log, what="publish", to="actor/2")
