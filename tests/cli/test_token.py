# sanitizers: address
"""wsync token: the tokens file, changed a line at a time."""
import os
import re
import stat
import subprocess

from world import *


def token(*args, file, **kw):
    return wsync("token", *args, "--file", file, **kw)


def names(file):
    return [t["name"] for t in json.loads(token("list", "--json", file=file).stdout)["tokens"]]


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_life_of_a_token():
    "a token is shown once and kept as a hash; it is listed, exchanged for another, and removed"
    file, out = unique("tokens"), unique("secret")
    secret = token("add", "rollout-7", "--role", "report,read", file=file).stdout
    assert re.fullmatch(r"wsync_[\w-]{43}\n", secret), secret
    assert secret.strip() not in open(file).read() and mode(file) == 0o600
    token("add", "node7.lab", "--role", "read", "--model", "actor*", "--model", "critic", "--certificate", file=file)
    assert json.loads(token("list", "--json", file=file).stdout) == {"file": file, "tokens": [
        {"name": "rollout-7", "roles": ["read", "report"], "models": "*", "kind": "token", "line": 1},
        {"name": "node7.lab", "roles": ["read"], "models": "actor*,critic", "kind": "certificate", "line": 2}]}
    assert "node7.lab" in token("list", file=file).stdout
    r = token("add", "rollout-7", "--role", "read,report", file=file, check=False)
    assert r.returncode == 1 and "rollout-7 is in" in r.stderr and "--rotate" in r.stderr, r.stderr
    r = token("remove", "rollout-7", "--oldest", file=file, check=False)
    assert r.returncode == 1 and "one line only" in r.stderr, r.stderr
    assert token("add", "rollout-7", "--rotate", "--out", out, file=file).stdout == ""
    assert mode(out) == 0o600 and open(out).read() != secret
    first, _, last = open(file).read().splitlines()
    token("remove", "rollout-7", "--oldest", file=file)
    assert first not in open(file).read() and last in open(file).read()
    token("remove", "rollout-7", file=file)
    assert names(file) == ["node7.lab"]
    r = token("remove", "rollout-7", file=file, check=False)
    assert r.returncode == 1 and "no rollout-7" in r.stderr, r.stderr


def test_token_that_a_server_takes():
    "an agent takes a token once it was added, and no longer once it was removed, without a restart"
    file = unique("tokens")
    with open(file, "w") as f:
        f.write("# of this test\n")
    os.chmod(file, 0o600)
    agent = Agent("--tokens", file)
    secret = token("add", "reader", "--role", "read", file=file).stdout.strip()

    def status():
        try:
            agent.get("/v1/models", Authorization=f"Bearer {secret}")
        except urllib.error.HTTPError as e:
            return e.code
        return 200

    wait_for(lambda: status() == 200, "the agent to take the token")
    token("remove", "reader", file=file)
    wait_for(lambda: status() == 401, "the agent to refuse the token")
    assert open(file).read() == "# of this test\n"


def test_what_is_refused():
    "a name, a role or a pattern that is none, a rotation of nobody, other roles for the same name; the file stays as it is"
    file = unique("tokens")
    token("add", "a", "--role", "read", file=file)
    before = open(file).read()
    for args, code, says in ((("add", "b", "--role", "rule"), 2, "no role"), (("add", "uid:0", "--role", "read"), 1, "no name"),
                             (("add", "b"), 2, "--role"), (("add", "b", "--role", "read", "--model", "x y"), 1, "patterns"),
                             (("add", "b", "--rotate"), 1, "no b in"), (("add", "a", "--rotate", "--role", "read,admin"), 1, "lines 1 and 2"),
                             (("add", "a", "--role", "read", "--json"), 2, "--json"), (("list", "a"), 2, "no name"), (("rule",), 2, "rule"),
                             (("add", "a\nb read -", "--role", "read"), 1, "no name"),
                             (("add", "b", "--role", "read", "--out", "/proc/none/b"), 1, "taken back")):
        r = token(*args, file=file, check=False)
        assert r.returncode == code and says in r.stderr, (args, r.returncode, r.stderr)
        assert open(file).read() == before, args
    with open(file, "a") as f:
        f.write("a read,report -\n")
    r = token("list", file=file, check=False)
    assert r.returncode == 1 and "lines 1 and 2: both are of a" in r.stderr, r.stderr
    r = token("remove", "a", file=unique("none"), check=False)
    assert r.returncode == 1 and "No such file" in r.stderr, r.stderr


def test_calls_at_once():
    "calls at once lose no line, and a file keeps its mode, its comments and the link that leads to it"
    file, link = unique("tokens"), unique("link")
    with open(file, "w") as f:
        f.write("# mine\nfirst read -")  # without a newline at its end
    os.chmod(file, 0o640)
    os.symlink(file, link)
    calls = [subprocess.Popen([WSYNC, "token", "add", f"n{i}", "--role", "read", "--file", link], stdout=subprocess.DEVNULL) for i in range(20)]
    assert [c.wait(60 * SLOW) for c in calls] == [0] * 20
    assert sorted(names(link)) == sorted(["first", *(f"n{i}" for i in range(20))])
    assert open(file).read().startswith("# mine\nfirst read -\nn") and mode(file) == 0o640 and os.path.islink(link)
    calls = [subprocess.Popen([WSYNC, "token", "remove", f"n{i}", "--file", link]) for i in range(20)]
    assert [c.wait(60 * SLOW) for c in calls] == [0] * 20
    assert open(file).read() == "# mine\nfirst read -\n"
    assert not os.path.exists(file + ".new")


def test_out_replaces_no_other_file():
    "a token is written over no tokens file, no device and no link; nothing is added then"
    file = unique("tokens")
    wsync("token", "add", "a", "--role", "read", "--file", file)
    before, fifo, link = open(file).read(), unique("fifo"), unique("link")
    os.mkfifo(fifo)
    os.symlink(file, link)
    for out in (file, fifo, link):
        r = wsync("token", "add", "b", "--role", "read", "--file", file, "--out", out, check=False)
        assert r.returncode == 2 and out in r.stderr and "a file of its own" in r.stderr, r.stderr
    assert open(file).read() == before and os.path.islink(link)
    os.chmod(file, 0o666)  # as servers do
    r = wsync("token", "add", "b", "--role", "read", "--file", file, check=False)
    assert r.returncode == 1 and "chmod o-w" in r.stderr and not r.stdout and open(file).read() == before, r
