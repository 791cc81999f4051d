# timeout: 200
"""The shipped manifests without a cluster: the very commands of agent and DaemonSet, in a mount and network namespace of their own in which the
volumes lie where the manifests mount them."""
import glob
import re
import shutil
import signal
import subprocess

from certificates import Authority
from driver import NOBODY, driver, mounted, unmount
from world import *

FOLDER = ROOT + "/mount-helpers/kubernetes/"


def command_of(name, first):
    with open(FOLDER + name) as f:
        return json.loads(re.search(rf'^ *command: (\["{first}".*?\])$', f.read(), re.M | re.S)[1])


def config_map(name="wsync-mount.yaml"):
    """{file: text} of the manifest's ConfigMap."""
    with open(FOLDER + name) as f:
        text = next(part for part in f.read().split("\n---\n") if "kind: ConfigMap" in part)
    files = {}
    for line in text[text.index("\ndata:\n") + 7:].splitlines():
        if found := re.match(r"  (\S+): \|$", line):
            files[found[1]] = ""
            last = found[1]
        else:
            files[last] += line[4:] + "\n"
    return files


class Node:
    """The namespaces. .root is a folder whose subfolders lie at the manifests' mount paths."""

    def __init__(self):
        self.root = unique("node")
        for name in ("etc/wsync", "etc/wsync-mount", "run", "lib", "wsync"):
            os.makedirs(f"{self.root}/{name}")
        script = f"""ip link set lo up
            cp -a /etc/. {self.root}/etc/ 2>/dev/null
            mount --bind {self.root}/etc /etc && mount --bind {self.root}/run /run && mount --bind {self.root}/lib /var/lib
            mkdir -p /wsync && mount --bind --make-shared {self.root}/wsync /wsync && echo ready && exec sleep 1000"""
        made = not os.path.exists("/wsync")
        self.process = subprocess.Popen(["unshare", "-mn", "--propagation", "private", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
        if made:  # the place of the mount, in this host's root folder, too
            at_end(subprocess.run, ["rmdir", "/wsync"], stderr=subprocess.DEVNULL, check=False)
        at_end(self.process.wait)
        at_end(self.process.kill)
        assert self.process.stdout.readline() == "ready\n"

    def inside(self, *command):
        return ["nsenter", "-t", str(self.process.pid), "-m", "-n", "--", *command]

    def run(self, *command, check=True):
        done = subprocess.run(self.inside(*command), capture_output=True, text=True, timeout=120, env=self.env(), stdin=subprocess.DEVNULL)
        assert not check or done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def start(self, *command):
        log = open(unique("pod") + ".log", "wb")
        at_end(log.close)
        process = subprocess.Popen(self.inside(*command), env=self.env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        process.log = log.name
        at_end(process.wait, 60)
        at_end(process.terminate)
        return process

    @staticmethod
    def env():
        return os.environ | {"PATH": os.path.dirname(WSYNC) + ":" + os.environ["PATH"]}


def text_of(process):
    with open(process.log, errors="replace") as f:
        return f.read()


def test_manifests():
    "agent and mount by the shipped manifests: the ConfigMap's engine follows a release, also after the agent's pod was replaced, and a reload"
    need_fuse()
    node, authority = Node(), Authority()
    cert, key = authority.certificate("wsync-agent", "localhost", "127.0.0.1")
    with open(cert) as f, open(authority.file) as ca:
        secret = {"token": "a-token-of-the-fleet\n", "cert.pem": f.read(), "ca.pem": ca.read()}
    with open(key) as f:
        secret["key.pem"] = f.read()
    for name, text in (*secret.items(), *((f"../wsync-mount/{k}", v) for k, v in config_map().items())):
        with open(f"{node.root}/etc/wsync/{name}", "w") as f:
            f.write(text)
        os.chmod(f"{node.root}/etc/wsync/{name}", 0o600)
    folders = [checkpoint(SMALL, seed=v) for v in range(4)]

    def publish(version):
        node.run(WSYNC, "publish", "--agent", "unix:/run/wsync/agent.sock", "--model", "actor", "--version", str(version), folders[version])

    def release(version):
        node.run(WSYNC, "release", "--agent", "unix:/run/wsync/agent.sock", "--wait", "60", "--min-engines", "1", "actor", str(version))

    os.makedirs(node.root + "/run/wsync")  # the hostPath that the trainer's pods share
    os.makedirs(node.root + "/lib/wsync")
    agent = node.start(*command_of("wsync-agent.yaml", "wsync"))
    wait_for(lambda: os.path.exists(node.root + "/run/wsync/agent.sock") or agent.poll() is not None, "the agent")
    assert agent.poll() is None, text_of(agent)
    publish(1)
    engine = node.start(WSYNC, "engine", "--listen", "127.0.0.1:30000", "--model-path", folders[1])
    command = [word.replace("$(NODE_NAME)", "node-1").replace("SOURCE", "https://127.0.0.1:18861") for word in command_of("wsync-mount.yaml", "sh")]
    mount = node.start(*command)
    wait_for(lambda: mount.poll() is not None or "actor" in node.run("ls", "/wsync/mnt", check=False), "the mount", 60)
    assert mount.poll() is None, text_of(mount)
    read = lambda name: node.run("cat", f"/wsync/mnt/actor/{name}")
    assert read("policy") == "follow-released\n" and read("engines").startswith("e1 "), read("engines")
    release(1)
    assert read("version") == "1\n" and "config_differs" not in read("status")

    wait_for(lambda: os.path.exists(node.root + "/lib/wsync/archive/v1/models") and '"version":1' in node.run("cat", "/var/lib/wsync/archive/v1/models"), "the archive")
    agent.kill()  # its pod is replaced
    agent.wait()
    node.start(*command_of("wsync-agent.yaml", "wsync"))
    listed = lambda: json.loads(node.run("sh", "-c", "curl -s --cacert /etc/wsync/ca.pem -H 'Authorization: Bearer a-token-of-the-fleet' "
                                                     "https://127.0.0.1:18861/v1/models || echo {}"))
    wait_for(lambda: any(v["version"] == 1 for m in listed().get("models", []) for v in m["versions"]), "the archived version")
    assert listed()["models"][0]["released"]["version"] == 1
    publish(2)
    release(2)
    assert read("version") == "2\n" and "serving 2" in read("engines")

    with open(f"{node.root}/etc/wsync-mount/actor.conf", "a") as f:
        f.write("pin 2\n")
    os.kill(int(node.run("sh", "-c", f"pgrep -P {mount.pid} || echo {mount.pid}").split()[0]), signal.SIGHUP)
    wait_for(lambda: re.search(r"^version.2 .* pinned", read("status"), re.M), "the pin")
    assert engine.poll() is None and mount.poll() is None


def test_sidecar():
    "the sidecar's command, as a user without privileges whose descriptor a driver passes: its engine follows a release"
    need_fuse()
    agent, folders = Agent(), [checkpoint(SMALL, seed=v) for v in range(3)]
    agent.publish("actor", 1, folders[1])
    fd, place = mounted()
    engine, port, volumes = Engine(folders[1]), free_port(), {name: open_to_all() for name in ("fuse", "wsync-mount")}
    for name, text in config_map("wsync-sidecar.yaml").items():
        with open(f"{volumes['wsync-mount']}/{name}", "w") as f:
            f.write(text.replace("http://127.0.0.1:30000", engine.url))
    program = shutil.copy(WSYNC, volumes["fuse"] + "/wsync")  # the image, which nobody reaches
    socket_path = volumes["fuse"] + "/wsync.sock"
    driver(socket_path, (b'{"volumeName":"wsync"}', [fd]))
    replaced = {"wsync": program, "/fuse/wsync.sock": socket_path, "SOURCE": agent.url, "/wsync": place}
    command = [replaced.get(word, word) for word in command_of("wsync-sidecar.yaml", "wsync")]
    options = next(i for i, word in enumerate(command) if "token-file=" in word)
    command[options] = re.sub("token-file=[^,]*,ca-file=[^,]*,", "", command[options]).replace("/etc/wsync-mount/", volumes["wsync-mount"] + "/").replace(
        "18862", str(port))
    log = open(unique("sidecar") + ".log", "wb")
    at_end(log.close)
    process = subprocess.Popen(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all",
                                "--no-new-privs", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
    at_end(process.wait, 60)
    at_end(process.terminate)
    process.log = log.name
    wait_for(lambda: process.poll() is not None or os.path.isdir(place + "/actor/1"), "the version")
    assert process.poll() is None, text_of(process)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=20) as r:
        assert r.status == 200
    agent.publish("actor", 2, folders[2])
    wsync("release", "--agent", f"unix:{agent.sock}", "--wait", "60", "--min-engines", "1", "actor", "2")
    with open(place + "/actor/version") as f:
        assert f.read() == "2\n"
    assert tensors_of(place + "/actor/2/model.safetensors") == tensors_of(folders[2] + "/model.safetensors")
    assert unmount(place)
    assert process.wait(30) == 0, text_of(process)


def test_schemas():
    "every manifest is one by Kubernetes' own schemas, strictly"
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed, as PyPI could not be reached")
    yaml = pytest.importorskip("yaml", reason="kubernetes-validate is not installed, as PyPI could not be reached")
    kinds = set()
    for path in glob.glob(FOLDER + "*.yaml"):
        with open(path) as f:
            for resource in filter(None, yaml.safe_load_all(f)):
                validate.validate(resource, "1.30", strict=True)
                kinds.add(resource["kind"])
    assert kinds == {"ConfigMap", "DaemonSet", "Deployment", "NetworkPolicy", "Pod", "Service"}, kinds
