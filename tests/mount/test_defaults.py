# timeout: 240
"""What holds where an operator says nothing: tokens on loopback, whose agent is trusted, who can read a mount."""
import grp
import os
import shutil
import stat
import tempfile
import urllib.error

from world import *

NOBODY = 65534
GROUP = 4243


class NobodysAgent(Agent):
    """An agent of another account, in a folder of that account's."""

    prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", "-u", "XDG_RUNTIME_DIR")

    def __init__(self, *args, **kw):
        self.folder = tempfile.mkdtemp(prefix="wsync-test-", dir="/tmp")
        at_end(shutil.rmtree, self.folder, ignore_errors=True)
        os.chown(self.folder, NOBODY, NOBODY)
        os.chmod(self.folder, 0o755)
        super().__init__(*args, sock=f"{self.folder}/agent.sock", **kw)


def as_nobody(*args, groups=(), **kw):
    env = {k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"}
    return wsync(*args, user=NOBODY, group=NOBODY, extra_groups=list(groups), env=env, check=False, **kw)


def secret_in(name, text):
    path = unique(name)
    with open(path, "w") as f:
        f.write(text + "\n")
    os.chmod(path, 0o600)
    return path


def token_file(agent):
    path = f"/run/wsync/{agent.port}.token"
    at_end(lambda: os.path.exists(path) and os.unlink(path))
    return path


def test_listener_is_asked_for():
    "an agent that is not told --listen has no TCP listener"
    sock = unique("agent") + ".sock"
    agent = Process("agent", "--socket", sock)
    wait_for(lambda: os.path.exists(sock) or not agent.alive(), "the socket")
    listening = {line.split()[9] for table in ("tcp", "tcp6") for line in open(f"/proc/net/{table}") if line.split()[3] == "0A"}
    own = {os.readlink(f"/proc/{agent.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{agent.pid}/fd")}
    assert agent.alive() and not {f"socket:[{inode}]" for inode in listening} & own, agent.text()


def test_token_of_loopback():
    "on loopback an agent makes a token, which its account's mounts and commands find, also after a restart; others are told the file and the socket"
    need_fuse()
    agent = Agent(makes_token=True)
    path, folder = token_file(agent), checkpoint(SMALL, seed=1)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    agent.publish("actor", 1, folder)
    try:
        agent.get("/v1/models")
        raise AssertionError("a client without a token was answered")
    except urllib.error.HTTPError as e:
        said = json.load(e)["error"]
        assert e.code == 401 and path in said and f"unix:{agent.sock}" in said, said
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    assert tensors_of(mount.file("actor", 1, "model.safetensors")) == tensors_of(f"{folder}/model.safetensors")
    assert "answers and lists 1 models" in wsync("doctor", "--agent", agent.url, check=False).stdout
    found = as_nobody("doctor", "--agent", agent.url).stdout
    assert path in found and f"unix:{agent.sock}" in found, found
    before = open(path).read()
    agent.kill()
    again = Agent(port=agent.port, sock=agent.sock, makes_token=True)
    assert open(path).read() == before
    again.publish("actor", 2, folder)
    mount.wait_version("actor", 2)
    again.end()
    assert not os.path.exists(path)
    again = Agent(port=agent.port, sock=agent.sock, makes_token=True)
    assert open(path).read() != before
    again.publish("actor", 3, folder)
    mount.wait_version("actor", 3)


def test_start_that_fails():
    "an agent that does not start leaves no token behind"
    port, taken = free_port(), socket.create_server(("127.0.0.1", 0))
    at_end(taken.close)
    said = wsync("agent", "--listen", f"127.0.0.1:{port}", "--socket", unique("agent") + ".sock",
                 "--astraflow", f"127.0.0.1:{taken.getsockname()[1]}", check=False)
    assert said.returncode and "in use" in said.stderr, said
    assert not os.path.exists(f"/run/wsync/{port}.token")


def test_port_of_another_account():
    "a mount of a server on loopback does not believe another account that takes the port when the server has ended"
    need_fuse()
    agent = Agent(makes_token=True)
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    agent.end()
    stranger = NobodysAgent(port=agent.port)
    wsync("publish", "--agent", f"unix:{stranger.sock}", "--agent-user", "nobody", "--model", "actor", "--version", 2, checkpoint(SMALL, seed=2))
    wait_for(lambda: "another account, 65534" in mount.text("status"), "the refusal")
    assert not os.path.exists(mount.file("actor/2"))
    stranger.end()
    again = Agent(port=agent.port, makes_token=True)
    again.publish("actor", 3, checkpoint(SMALL, seed=3))
    mount.wait_version("actor", 3)


def test_port_that_another_program_has():
    "where another account's program has the port of an agent, commands say whose it is and what to do"
    port = free_port()
    program = subprocess.Popen([*NobodysAgent.prefix, "/usr/bin/python3", "-c", f"""
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_error(401)
http.server.HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""], stderr=subprocess.DEVNULL)
    at_end(program.kill)

    def said():
        return wsync("release", "actor", 1, "--agent", f"http://127.0.0.1:{port}", check=False).stderr

    wait_for(lambda: "answered 401" in said(), "the other program")
    assert "account 65534" in said() and "another port" in said(), said()


def test_token_of_another_account():
    "root's mount, and the account's own commands, find the token of another account's agent"
    need_fuse()
    agent = NobodysAgent(makes_token=True)
    assert "answers and lists 0 models" in as_nobody("doctor", "--agent", agent.url).stdout
    wsync("publish", "--agent", f"unix:{agent.sock}", "--agent-user", "nobody", "--model", "actor", "--version", 1, checkpoint(SMALL))
    Mount(agent.url).wait_version("actor", 1)


def test_account_that_serves_a_socket():
    "another account's agent is refused by name until it is named, by mounts, commands and libwsync"
    need_fuse()
    agent, folder = NobodysAgent(), checkpoint(SMALL)
    url = f"unix:{agent.sock}"
    mount = Mount(url)
    wait_for(lambda: "belongs to nobody" in mount.text("status"), "the reason")
    assert "agent-user=" in mount.text("status")
    publish = ("publish", "--agent", url, "--model", "actor", "--version", 1, folder)
    said = wsync(*publish, check=False)
    assert said.returncode and "belongs to nobody" in said.stderr and "WSYNC_AGENT_USER=nobody" in said.stderr, said.stderr
    wsync(*publish, env=dict(os.environ, WSYNC_AGENT_USER=str(NOBODY)))
    assert "answers and lists 1 models" in wsync("doctor", "--agent", url, "--agent-user", "nobody", check=False).stdout
    Mount(url, "agent-user=nobody").wait_version("actor", 1)
    said = wsync("doctor", "--agent", url, "--agent-user", "no such account", check=False)
    assert said.returncode == 2 and "no account" in said.stderr, said.stderr


def test_token_of_one_source():
    "a source has a token of its own, also one that is added, and over a restart; only root names its file"
    need_fuse()
    one, two = secret_in("one", "first"), secret_in("two", "second")
    folder = checkpoint(SMALL)
    first, second = Agent("--token-file", one), Agent("--token-file", two)
    first.publish("actor", 1, folder)
    second.publish("critic", 1, folder)
    mount = Mount(f"{first.url};token-file={one},{second.url}", f"token-file={two}")
    mount.wait_version("actor", 1)
    mount.wait_version("critic", 1)
    assert "sends a token to=" + first.url + " token=its own" in mount.text()
    mount.end()
    mount = Mount(first.url, f"token-file={one}", path=mount.path)
    mount.write(f"add critic {second.url};token-file={two}", "ctl")
    mount.wait_version("critic", 1)
    assert mount.refused(f"add other {second.url};token=x", "ctl") == "EINVAL"
    assert mount.refused(f"add other {second.url};token-file={unique('absent')}", "ctl") == "ENOENT"
    mount.end()
    mount = Mount(first.url, f"token-file={one}", path=mount.path)
    mount.wait_version("critic", 1)
    assert ";" not in mount.text("status")


def test_no_token_in_clear_text():
    "a token is not sent to http:// on another host, unless the operator says insecure"
    path, token = unique("mnt"), secret_in("token", "secret")
    os.mkdir(path)
    for source in ("http://192.0.2.1:1", f"http://192.0.2.1:1;token-file={token}"):
        options = "state=none" + ("" if ";" in source else f",token-file={token}")
        said = wsync("mount", "-f", "-o", options, source, path, check=False)
        assert said.returncode and "in clear text" in said.stderr and "insecure" in said.stderr, said.stderr
    said = wsync("doctor", "--agent", "http://192.0.2.1:1", "--token-file", token, check=False)
    assert said.returncode == 2 and "in clear text" in said.stderr, said.stderr


def test_group():
    "group= lets one group read and nobody else; what contradicts it is named"
    need_fuse()
    agent, folder = Agent(), checkpoint(SMALL)
    agent.publish("actor", 1, folder)
    path = tempfile.mkdtemp(prefix="wsync-test-", dir="/tmp")
    at_end(lambda: os.path.isdir(path) and os.rmdir(path))
    mount = Mount(agent.url, f"group={GROUP}", path=path)
    mount.wait_version("actor", 1)
    for names, mode in (((), 0o550), (("actor", "1"), 0o550), (("actor", "1", "model.safetensors"), 0o440)):
        st = os.stat(mount.file(*names))
        assert (stat.S_IMODE(st.st_mode), st.st_gid) == (mode, GROUP), names
    member = as_nobody("ls", "--mount", path, groups=[GROUP])
    assert member.returncode == 0 and "actor" in member.stdout, member
    assert as_nobody("ls", "--mount", path).returncode
    assert f"{path}: root and the group {GROUP} can read it" in wsync("doctor", check=False).stdout
    for other in ("mode=0444", "gid=1", "no_allow_other"):
        said = wsync("mount", "-o", f"group={GROUP},{other}", agent.url, path, check=False)
        assert said.returncode == 2 and "group" in said.stderr and f"{other.split('=')[0]} exclude" in said.stderr, said.stderr
    assert "no_such_group" not in {g.gr_name for g in grp.getgrall()}
    said = wsync("mount", "-o", "group=no_such_group", agent.url, path, check=False)
    assert said.returncode == 2 and "no_such_group" in said.stderr, said.stderr
