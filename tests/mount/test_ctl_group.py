# beside others
# timeout: 240, takes: 25
# sanitizers: address
"""Users who are not root and may write control files (-o ctl-group=): the files, folders and servers that the daemon opens for them."""
import os
import shutil
import socket

from certificates import Tls
from proxy import Wire
from world import *

GID = 4242


def published():
    need_fuse()
    agent = Agent()
    folder = checkpoint(SMALL, seed=1)
    agent.publish("actor", 1, folder)
    return agent, folder


def same(mount, model, version, folder):
    return tensors_of(mount.file(model, version, "model.safetensors")) == tensors_of(folder + "/model.safetensors")


def by_group(mount, text, *names):
    """The result of a write by an unprivileged user of that group: 0 or an errno."""
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            os.setgroups([GID])
            os.setgid(GID)
            os.setuid(65534)
            code = 0
            mount.write(text, *names)
        except OSError as e:
            code = e.errno
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_files_of_others():
    "for a user of ctl-group the daemon reads only files in one folder, and follows nothing out of it; for root any file"
    agent, folder = published()
    engine = Engine(folder)
    secret, keys, public = unique("secret"), unique("keys"), open_to_all()
    os.mkdir(keys)
    for path in (secret, os.path.join(keys, "key")):
        with open(path, "w") as f:
            f.write("not for everybody\n")
    os.symlink("../" + os.path.basename(secret), os.path.join(keys, "out"))
    os.symlink("key", os.path.join(keys, "in"))
    os.mkfifo(os.path.join(keys, "fifo"))

    def tries(mount, **files):
        codes = [by_group(mount, f"engine add e sglang {engine.url} {option}={path}", "actor/ctl") for option, path in files.items()]
        return [errno.errorcode.get(code, code) for code in codes]

    mount = Mount(agent.url, f"ctl-group={GID}", path=public)
    mount.wait_version("actor", 1)
    assert tries(mount, **{"token-file": secret, "admin-token-file": f"{keys}/key", "ca-file": secret, "files": "/"}) == 4 * ["EPERM"]
    assert by_group(mount, f"add other dir:{folder}", "ctl") == errno.EPERM
    assert by_group(mount, "add other s3://weights/run7", "ctl") == errno.EPERM
    assert "its credentials of an object store" in mount.text("last_error")
    assert by_group(mount, f"engine add e sglang {engine.url}", "actor/ctl") == 0
    mount.write("engine remove e", "actor/ctl")
    mount.write(f"engine add e sglang {engine.url} token-file={secret}", "actor/ctl")
    mount.write("engine remove e", "actor/ctl")
    fifo = os.open(os.path.join(keys, "fifo"), os.O_RDWR)  # its reader gets a line, and does not wait forever
    os.write(fifo, b"a line\n")
    for option in ("token-file", "admin-token-file", "ca-file"):
        assert mount.refused(f"engine add e sglang {engine.url} {option}={keys}/fifo", "actor/ctl") == "EINVAL", option
        assert f"{keys}/fifo is a FIFO" in mount.text("actor/last_error"), mount.text("actor/last_error")
    os.close(fifo)
    mount.write(f"add other dir:{folder}", "ctl")
    mount.end()
    mount = Mount(agent.url, f"ctl-group={GID},files={keys}", path=public)
    mount.wait_version("actor", 1)
    assert tries(mount, **{"token-file": secret, "admin-token-file": f"{keys}/../{os.path.basename(secret)}", "ca-file": secret, "files": keys}) == 4 * ["EPERM"]
    assert [tries(mount, **{"token-file": f"{keys}/{name}"})[0] for name in ("out", "fifo", ".")] == 3 * ["EPERM"]
    assert "who is not root" in mount.text("actor/last_error")
    assert tries(mount, **{"token-file": f"{keys}/in"}) == [0]
    mount.end()
    os.unlink(os.path.join(keys, "in"))
    os.symlink(secret, os.path.join(keys, "in"))  # it must be the same file at the next start
    mount = Mount(agent.url, f"ctl-group={GID}", path=public)
    mount.wait_version("actor", 1)
    mount.refused("1", "actor/version")
    assert f"is no file below {keys}" in mount.text("actor/last_error"), mount.text("actor/last_error")


def test_sources_of_others():
    "a user of ctl-group cannot make the mount send its token, or use its rights, to a source that root did not name"
    need_fuse()
    token, public = unique("token"), open_to_all()
    with open(token, "w") as f:
        f.write("a-token-of-the-trainer\n")
    agent = Agent("--token-file", token)
    agent.publish("actor", 1, checkpoint(SMALL))
    server = socket.create_server(("127.0.0.1", 0))
    at_end(server.close)
    other = f"http://127.0.0.1:{server.getsockname()[1]}"
    mount = Mount(agent.url, f"ctl-group={GID},token-file={token}", path=public)
    mount.wait_version("actor", 1)
    for source in (other, other.replace("http:", "https:"), agent.url + "0", f"unix:{agent.sock}"):
        assert by_group(mount, f"add other {source}", "ctl") == errno.EPERM, source
    assert "root" in mount.text("last_error")
    assert by_group(mount, f"add other {agent.url}", "ctl") == 0
    mount.end()
    server.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        server.accept()
        raise AssertionError("the mount went to a source that it was not to go to")
    mount = Mount(agent.url, f"ctl-group={GID},state=none", path=public)
    assert by_group(mount, f"add other {other}", "ctl") == 0  # this mount has no token that it could send
    roots = Agent(makes_token=True)  # nor is it to find one that root's agent on this host made
    roots.publish("secret", 1, checkpoint(SMALL))
    assert by_group(mount, f"add secret {roots.url}", "ctl") == 0
    wait_for(lambda: "401" in mount.text("status"), "the refusal")
    assert not os.path.exists(mount.file("secret/1"))
    mount.end()
    mount = Mount(agent.url, f"ctl-group={GID}", path=public)
    assert by_group(mount, f"add other {other}", "ctl") == 0
    mount.end()
    server.settimeout(20)
    while True:  # drop the connections of that mount
        try:
            server.accept()[0].close()
        except TimeoutError:
            break
        server.settimeout(0.1)
    mount = Mount(agent.url, f"ctl-group={GID},token-file={token}", path=public)
    wait_for(lambda: "only root has this mount send its token" in mount.text("last_error"), "the reason")
    mount.wait_version("actor", 1)
    server.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        server.accept()
        raise AssertionError("the restart lifted the limit")


def pulled(mount, model):
    with contextlib.suppress(OSError):
        mount.write("pull 1", model, "ctl")
        return True


class Folders:
    """A folder that others may name (.allowed), with model `own` in it, and one that they may not (.secret)."""

    def __init__(self):
        self.allowed, self.secret = unique("allowed"), unique("secret")
        self.good, self.bad = checkpoint(SMALL, seed=1), checkpoint(SMALL, seed=2)
        os.makedirs(self.allowed + "/own")
        os.makedirs(self.secret + "/own")
        shutil.copytree(self.good, self.allowed + "/own/1")
        for version in (1, 9):
            shutil.copytree(self.bad, f"{self.secret}/own/{version}")
        with open(self.secret + "/config.json", "w") as f:
            f.write('{"not": "for everybody"}')

    def exchange(self):
        "replaces the model's folder by a link that leads out of the allowed folder"
        os.rename(self.allowed + "/own", self.allowed + "/was")
        os.symlink(self.secret + "/own", self.allowed + "/own")

    def put_right(self):
        os.unlink(self.allowed + "/own")
        os.rename(self.allowed + "/was", self.allowed + "/own")


def test_token_files_of_sources():
    "a user of ctl-group may have a source's own token read from files= alone, also after a restart and by a link; root from anywhere"
    need_fuse()
    allowed, secret, token, public = unique("allowed"), unique("secret"), unique("token"), open_to_all()
    os.mkdir(allowed)
    for path in (allowed + "/own", secret, token):
        with open(path, "w") as f:
            f.write(f"a-token-{path == token}\n")
    os.symlink(secret, allowed + "/link")
    agent, other = Agent("--token-file", token), Agent("--token-file", allowed + "/own")
    other.publish("critic", 1, checkpoint(SMALL))
    one = f"ctl-group={GID},token-file={token}"
    mount = Mount(agent.url, one, path=public)
    assert by_group(mount, f"add critic {other.url};token-file={allowed}/own", "ctl") == errno.EPERM  # without files=
    mount.end()
    mount = Mount(agent.url, f"{one},files={allowed}", path=public)
    for file in (secret, allowed + "/link", allowed + "/../" + os.path.basename(secret)):
        assert by_group(mount, f"add critic {other.url};token-file={file}", "ctl") == errno.EPERM, file
    assert by_group(mount, f"add critic {other.url}", "ctl") == errno.EPERM  # it would be sent the mount's token
    assert by_group(mount, f"add critic {other.url};token-file={allowed}/own", "ctl") == 0
    mount.wait_version("critic", 1)
    mount.end()
    os.rename(allowed + "/own", allowed + "/own-1")
    os.symlink(secret, allowed + "/own")
    mount = Mount(agent.url, one, path=public)  # the folder of before holds
    wait_for(lambda: "critic" in mount.text("last_error"), "the reason")
    assert not os.path.exists(mount.file("critic/1"))
    os.rename(allowed + "/own-1", allowed + "/own")
    mount.wait_version("critic", 1)
    mount.write(f"add root {other.url};token-file={secret}", "ctl")


def test_folders_of_others():
    "a folder added by a user of ctl-group must be below files=, and so must everything that is opened in it"
    agent, _ = published()
    f, public = Folders(), open_to_all()
    shutil.copytree(f.good, f.allowed + "/blobs/2")
    os.makedirs(f.allowed + "/own/2")  # as in the hub's cache: links that stay inside
    for name in os.listdir(f.good):
        os.symlink(f"../../blobs/2/{name}", f"{f.allowed}/own/2/{name}")
    os.symlink(f.secret + "/own/9", f.allowed + "/own/3")
    shutil.copytree(f.good, f.allowed + "/own/4")
    os.unlink(f.allowed + "/own/4/config.json")
    os.symlink(f.secret + "/config.json", f.allowed + "/own/4/config.json")
    shutil.copytree(f.good, f.allowed + "/own/5")
    os.unlink(f.allowed + "/own/5/model.safetensors")
    os.symlink(f"../../../{os.path.basename(f.secret)}/own/9/model.safetensors", f.allowed + "/own/5/model.safetensors")
    os.symlink(f.secret, f.allowed + "/out")
    mount = Mount(agent.url, f"ctl-group={GID},files={f.allowed}", path=public)
    for path in (f.secret + "/own", f.allowed + "/out/own", f"{f.allowed}/../{os.path.basename(f.secret)}/own", f.allowed + "x", "own",
                 f"/proc/self/root{f.allowed}/own"):
        assert by_group(mount, f"add own dir:{path}", "ctl") == errno.EPERM, path
        assert f"below {f.allowed}" in mount.text("last_error"), mount.text("last_error")
    for source in (f"unix:{agent.sock}", f"unix:{f.allowed}/own", f"fault:flip=1:dir:{f.allowed}/own"):
        assert by_group(mount, f"add own {source}", "ctl") == errno.EPERM, source
    assert by_group(mount, f"add own dir:{f.allowed}/own", "ctl") == 0
    mount.wait_version("own", 2)
    assert same(mount, "own", 1, f.good) and same(mount, "own", 2, f.good)
    wait_for(lambda: len([line for line in mount.text().splitlines() if "left out" in line]) == 3, "what leads out to be said")
    assert not any(os.path.exists(mount.file("own", n)) for n in (3, 4, 5)), os.listdir(mount.file("own"))
    mount.write(f"add root dir:{f.secret}", "ctl")  # root may


def test_folder_exchanged():
    "each opening checks anew where a name leads: at a pull, and at a poll of the folder"
    agent, _ = published()
    f, public = Folders(), open_to_all()
    mount = Mount(agent.url, f"ctl-group={GID},files={f.allowed}", path=public)
    assert by_group(mount, f"add own dir:{f.allowed}/own", "ctl") == 0
    mount.wait_version("own", 1)
    f.exchange()
    assert mount.refused("pull 1", "own/ctl") in ("EPERM", "ESTALE", "ENOENT", "EIO"), mount.text("own/last_error")
    with open(f.allowed + "/was/wake", "w"):  # the mount watches the folder and polls it again
        pass
    wait_for(lambda: f"{f.allowed}/own is no folder below" in mount.text("status"), "the look into the folder")
    assert not os.path.exists(mount.file("own", 9))
    f.put_right()
    shutil.copytree(f.good, f.allowed + "/own/2")
    mount.wait_version("own", 2)
    wait_for(lambda: pulled(mount, "own"), "a pull")  # shortly after a failure the answer is cached
    assert same(mount, "own", 1, f.good)


def test_archive_of_others():
    "an archive that a user of ctl-group adds has the same restriction"
    agent, folder = published()
    f, public = Folders(), open_to_all()
    first = Mount(agent.url)
    first.wait_version("actor", 1)
    for to in (f.allowed, f.secret):
        wsync("save", first.file("actor/1"), f"{to}/archive")
    first.end()
    agent.end()
    os.symlink(f.secret + "/archive", f.allowed + "/out")
    mount = Mount(agent.url, f"ctl-group={GID},files={f.allowed}", path=public)
    for path in (f.secret + "/archive", f.allowed + "/out"):
        assert by_group(mount, f"add actor dir:{path}", "ctl") == errno.EPERM, path
        assert f"below {f.allowed}" in mount.text("last_error"), mount.text("last_error")
    assert by_group(mount, f"add actor dir:{f.allowed}/archive", "ctl") == 0
    mount.wait_version("actor", 1)
    file = f.allowed + "/archive/v1/actor/1/files/model.safetensors"
    os.rename(file, file + ".was")
    os.symlink(f.secret + "/archive/v1/actor/1/files/model.safetensors", file)
    assert mount.refused("pull 1", "actor/ctl") == "EPERM"
    os.rename(file + ".was", file)
    wait_for(lambda: pulled(mount, "actor"), "a pull")
    assert same(mount, "actor", 1, folder)


def test_added_are_kept():
    "after a restart added sources are there, with the same restriction, and after the mount's own; removed ones are not"
    agent, _ = published()
    f, public = Folders(), open_to_all()
    one = f"ctl-group={GID},files={f.allowed}"
    roots = unique("roots folder") + "/root"
    shutil.copytree(f.bad, roots + "/1")
    mount = Mount(agent.url, one, path=public)
    assert by_group(mount, f"add own dir:{f.allowed}/own", "ctl") == 0
    mount.write(f'add root "dir:{roots}" policy=pull', "ctl")
    mount.write(f"add gone dir:{f.secret}", "ctl")
    mount.write("remove gone", "ctl")
    mount.end()
    f.exchange()
    mount = Mount(agent.url, f"ctl-group={GID}", path=public)  # without files= the earlier restriction holds
    mount.wait_version("root", 1)
    assert mount.text("root/policy").split()[0] == "pull"
    wait_for(lambda: f"is no folder below {f.allowed}" in mount.text("last_error"), "the reason")
    sources = [line for line in mount.text("status").splitlines() if line.startswith("source ")]
    assert len(sources) == 2 and agent.url in sources[0] and f"dir:{roots} " in sources[1], sources
    assert not os.path.exists(mount.file("own/1"))
    assert "gone" not in os.listdir(public)
    f.put_right()
    mount.wait_version("own", 1)  # it is tried again
    assert same(mount, "own", 1, f.good)
    f.exchange()
    shutil.copytree(f.bad, f.secret + "/own/10")
    with open(f.allowed + "/was/wake", "w"):
        pass
    wait_for(lambda: f"{f.allowed}/own is no folder below" in mount.text("status"), "the look into the folder")
    assert not os.path.exists(mount.file("own/10")) and not os.path.exists(mount.file("own/9"))
    mount.write("remove own", "ctl")
    mount.write("remove root", "ctl")
    mount.end()
    mount = Mount(agent.url, one, path=public)
    mount.wait_version("actor", 1)
    assert "root" not in os.listdir(public) and "own" not in os.listdir(public), os.listdir(public)


def test_certificates_of_others():
    "an engine's CA file, below files= for a user of ctl-group, is checked at each call, also after a restart"
    agent, folder = published()
    agent.publish("actor", 2, checkpoint(SMALL, seed=2))
    engine = Engine(folder)
    tls, keys, public = Tls(engine.port), unique("keys"), open_to_all()
    os.mkdir(keys)
    ca, outside = keys + "/ca.pem", unique("outside")
    shutil.copy(tls.ca, outside)
    add = f"engine add e sglang {tls.url} ca-file={ca}"
    mount = Mount(agent.url, f"ctl-group={GID},files={keys}", path=public)
    mount.wait_version("actor", 2)
    os.symlink(outside, ca)
    assert by_group(mount, add, "actor/ctl") == errno.EPERM
    os.unlink(ca)
    with open(ca, "w") as f:
        f.write("no certificate\n")
    assert by_group(mount, add, "actor/ctl") == errno.EACCES
    shutil.copy(tls.ca, ca)
    assert by_group(mount, add, "actor/ctl") == 0, mount.text("actor/last_error")
    assert by_group(mount, "1", "actor/version") == 0, mount.text("actor/last_error")

    def leads_out(mount):
        os.unlink(ca)
        os.symlink(outside, ca)
        refused = by_group(mount, "2", "actor/version")
        assert refused == errno.EPERM and f"is no file below {keys}" in mount.text("actor/last_error"), mount.text("actor/last_error")
        assert engine.serves() == "1"
        os.unlink(ca)
        shutil.copy(tls.ca, ca)

    leads_out(mount)
    mount.end()
    mount = Mount(agent.url, f"ctl-group={GID}", path=public)
    mount.wait_version("actor", 2)
    wait_for(lambda: mount.text("actor/version").strip() == "1", "the current version")
    leads_out(mount)
    wait_for(lambda: by_group(mount, "2", "actor/version") == 0, "the switch")
    assert engine.serves() == "2"


def test_words_are_kept():
    "after a restart an engine has the options that it was added with, and none of them becomes a file that root never named"
    agent, folder = published()
    engine, secret, public = Engine(folder), unique("secret"), open_to_all()
    with open(secret, "w") as f:
        f.write("not-for-everybody\n")
    wire = Wire(engine.port)
    mount = Mount(agent.url, f"ctl-group={GID}", path=public)
    mount.wait_version("actor", 1)
    # the displayed command has one quote less, since a possible key is hidden
    words = f'"prefix=/w key=b" "group=x token-file={secret} load-format=auto"'
    assert by_group(mount, f"engine add e sglang {wire.url} {words}", "actor/ctl") == 0, mount.text("actor/last_error")
    before = len(wire.heard)
    mount.end()
    mount = Mount(agent.url, f"ctl-group={GID}", path=public)
    mount.wait_version("actor", 1)
    wait_for(lambda: len(wire.heard) > before and mount.text("actor/engines").split()[1] != "unknown", "the engine to be asked")
    assert b"not-for-everybody" not in wire.heard, wire.heard[before:]
