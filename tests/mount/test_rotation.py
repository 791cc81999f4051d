# beside others
# timeout: 240, takes: 20
# sanitizers: address
"""Tokens that are exchanged while mounts, relays and commands run that were given them by a file."""
import threading

from world import *


def token(*args, file):
    return wsync("token", *args, "--file", file)


def roles_of(name, roles):
    """A tokens file with one name, and the file with its token."""
    tokens, secret = unique("tokens"), unique("secret")
    token("add", name, "--role", roles, "--out", secret, file=tokens)
    return tokens, secret


def put(path, text):
    with open(path + ".next", "w") as f:
        f.write(text + "\n")
    os.chmod(path + ".next", 0o600)
    os.rename(path + ".next", path)


def rotate(name, tokens, secret):
    """As the manual says: one more, given to the client, and the old one taken away."""
    token("add", name, "--rotate", "--out", secret + ".new", file=tokens)
    os.rename(secret + ".new", secret)
    token("remove", name, "--oldest", file=tokens)


def same(mount, version, folder):
    assert mount.read("actor", version, "model.safetensors")[-1000:] == open(f"{folder}/model.safetensors", "rb").read()[-1000:]


def answers_401(agent, secret):
    try:
        agent.get("/v1/models", Authorization=f"Bearer {secret}")
    except urllib.error.HTTPError as e:
        return e.code == 401
    return False


def test_token_of_a_mount():
    "a mount goes on with the new token of token-file=, named relative or not, and of ;token-file="
    need_fuse()
    tokens, secret = roles_of("node", "read,report")
    agent = Agent("--tokens", tokens)
    folder = checkpoint(SMALL, seed=1)
    agent.publish("actor", 1, folder)
    folder_of, name = os.path.split(secret)
    mounts = [Mount(agent.url, f"token-file={name}", cwd=folder_of), Mount(f"{agent.url};token-file={secret}")]
    path = unique("daemon")
    os.mkdir(path)
    subprocess.run([WSYNC, "mount", "-o", f"token-file={name},state=none", agent.url, path], cwd=folder_of, check=True)
    at_end(wsync, "umount", path)
    for version in 2, 3, 4:
        old = open(secret).read().strip()
        rotate("node", tokens, secret)
        wait_for(lambda old=old: answers_401(agent, old), "the end of the old token")
        folder = checkpoint(SMALL, seed=version)
        agent.publish("actor", version, folder)
        for mount in mounts:
            mount.wait_version("actor", version)
            same(mount, version, folder)
            assert "token read file=" + secret in mount.text()
        wait_for(lambda version=version: os.path.isdir(f"{path}/actor/{version}"), "the version in the daemon's mount")


def test_pulls_while_tokens_are_exchanged():
    "pulls, whole and by deltas, do not fail while the token is exchanged again and again"
    need_fuse()
    tokens, secret = roles_of("node", "read,report")
    agent = Agent("--tokens", tokens)
    mounts = [Mount(agent.url, f"token-file={secret},{DELTAS},state=none"), Mount(f"{agent.url};token-file={secret}", "delta-cache=0,state=none")]
    folder = checkpoint({"a.weight": ("BF16", [1024, 4096]), "b.weight": ("BF16", [1024, 4096])}, seed=1)
    over, wrong = threading.Event(), []

    def exchange():
        while not over.wait(0.1):
            try:
                rotate("node", tokens, secret)
            except (AssertionError, OSError) as e:
                wrong.append(e)

    thread = threading.Thread(target=exchange)
    thread.start()
    at_end(over.set)
    version = 0
    while version < 10 or (version < 300 and min(m.text().count("token read file=") for m in mounts) < 4):
        version += 1
        folder = step(folder, version) if version > 1 else folder
        agent.publish("actor", version, folder)
        for mount in mounts:
            mount.wait_version("actor", version)
            mount.write(f"pull {version}", "actor/ctl")
            same(mount, version, folder)
    over.set()
    thread.join()
    assert not wrong, wrong
    assert min(m.text().count("token read file=") for m in mounts) >= 4


def test_one_token_of_all():
    "an agent, a mount that serves with its token, and one below go on when the one token that all have is exchanged, in any order"
    need_fuse()
    files = [unique(name) for name in ("agent", "relay", "leaf")]
    for f in files:
        put(f, "first-token")
    agent = Agent("--token-file", files[0])
    port = free_port()
    relay = Mount(agent.url, f"token-file={files[1]},serve=127.0.0.1:{port},state=none")
    leaf = Mount(f"http://127.0.0.1:{port}", f"token-file={files[2]},state=none")
    for n, order in enumerate(([0, 1, 2], [2, 1, 0], [1, 0, 2]), 1):
        folder = checkpoint(SMALL, seed=n)
        agent.publish("actor", n, folder)
        leaf.wait_version("actor", n)
        same(leaf, n, folder)
        for i in order:
            put(files[i], f"token-number-{n}")
        wait_for(lambda n=n: not answers_401(agent, f"token-number-{n}"), "the new token")
        assert answers_401(agent, "first-token")
    with open(files[0], "w"):  # what holds no token changes nothing
        pass
    wait_for(lambda: answers_401(agent, "none") and "the token of before holds on" in agent.text(), "the warning")
    agent.publish("actor", 9, folder)
    leaf.wait_version("actor", 9)


def test_command_that_waits():
    "a release that waits for a mount goes on when its token is exchanged"
    need_fuse()
    tokens, secret = roles_of("trainer", "read,release")
    node = unique("node")
    token("add", "node", "--role", "read,report", "--out", node, file=tokens)
    agent = Agent("--tokens", tokens)
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    mount = Mount(agent.url, f"token-file={node},state=none")
    mount.wait_version("actor", 1)
    engine = Engine(mount.file("actor", 1), "--slow", "6000")
    mount.write(f"engine add e1 sglang {engine.url}", "actor", "ctl")
    mount.write("follow", "actor", "policy")
    wait_for(lambda: agent.get("/v1/actor/mounts", Authorization="Bearer " + open(secret).read().strip()), "the mount at the agent")
    agent.publish("actor", 2, checkpoint(SMALL, seed=2))
    release = Process("release", "--agent", agent.url, "--token-file", secret, "actor", "2", "--wait", "60")
    time.sleep(1)
    for _ in range(3):
        rotate("trainer", tokens, secret)
        time.sleep(1)
    assert release.process.wait(60) == 0, release.text()
    assert engine.serves() == "2"


def test_key_of_an_engine():
    "an engine that comes back with another key is switched with the new one, once its token-file= has it"
    need_fuse()
    agent, key = Agent(), unique("key")
    put(key, "first-key")
    for version in 1, 2, 3:
        agent.publish("actor", version, checkpoint(SMALL, seed=version))
    mount = Mount(agent.url, "state=none")
    mount.wait_version("actor", 3)

    class Keyed(Engine):
        def answers(self):
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5):
                    return True
            except urllib.error.HTTPError as e:
                return e.code == 401
            except OSError:
                return False

    engine = Keyed(mount.file("actor", 3), "--api-key-file", key)
    mount.write(f"engine add e1 sglang {engine.url} token-file={key}", "actor", "ctl")
    mount.write("2", "actor", "version")
    engine.end()
    other = unique("key")
    put(other, "second-key")
    again = Keyed(mount.file("actor", 2), "--api-key-file", other, port=engine.port)
    put(key, "second-key")

    def switched():
        try:
            mount.write_once("3", "actor", "version")
        except OSError:
            return False
        return True

    wait_for(switched, "a switch with the new key")
    assert mount.engines()["e1"].split()[1].startswith("3"), mount.engines()
    assert again.alive()
