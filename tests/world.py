"""Helpers of the Python tests: agents, mounts, engines and checkpoints, which end with the test that starts them (conftest.py).

tests/run passes each test file its folder and build in the environment; by hand, `pytest tests/mount/test_switch.py` uses those of this
tree's build/."""
import atexit
import contextlib
import errno
import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

import pytest

ROOT = os.environ.setdefault("ROOT", os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.setdefault("BUILD", os.path.join(ROOT, "build"))
WSYNC = os.environ.setdefault("WSYNC", os.path.join(BUILD, "wsync"))
SANITIZER = os.environ.setdefault("SANITIZER", "")
SLOW = 5 if SANITIZER else 1  # waits are bounds, never measurements
if "TESTDIR" not in os.environ:
    os.environ["TESTDIR"] = tempfile.mkdtemp(prefix="wsync-test.")
    atexit.register(shutil.rmtree, os.environ["TESTDIR"], ignore_errors=True)
TESTDIR = os.environ["TESTDIR"]


class Scope(contextlib.ExitStack):
    """Ends what was started in it, in reverse order. A thread without a scope of its own uses the test's."""

    of_thread = threading.local()
    of_tests = []  # the module's scope and the test's, by conftest.py

    @classmethod
    def current(cls):
        return (getattr(cls.of_thread, "scopes", None) or cls.of_tests)[-1]

    @contextlib.contextmanager
    def continued(self):
        """Makes this the thread's scope while the context lasts."""
        before = getattr(self.of_thread, "scopes", [])
        self.of_thread.scopes = [*before, self]
        try:
            yield
        finally:
            self.of_thread.scopes = before


@contextlib.contextmanager
def scope():
    """Ends what this thread starts within it."""
    with Scope() as one, one.continued():
        yield one


def at_end(call, *args, **kw):
    """Calls the function when the test, or the scope within it, ends."""
    Scope.current().callback(call, *args, **kw)


def entered(context):
    """Enters a context manager, leaves it at the end, and returns its value."""
    return Scope.current().enter_context(context)


def amount(name, short, long):
    """The amount of a random test: NAME's value in the environment, else more with LONG=1, as in .ci/run."""
    return type(short)(os.environ.get(name) or (long if os.environ.get("LONG") and not SANITIZER else short))


def need_fuse():
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no /dev/fuse on this machine")
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")


def wait_for(condition, what, seconds=20):
    end = time.monotonic() + seconds * SLOW
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds * SLOW} s for {what}")
        time.sleep(0.02)


def suspend(pid):
    """Sends SIGSTOP and waits until all threads have stopped: until the thread that takes the signal has run, others could still answer."""
    os.kill(pid, signal.SIGSTOP)

    def is_stopped():
        states = []
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat") as f:
                states.append(f.read().rsplit(")", 1)[1].split()[0])
        return set(states) <= set("tT")

    wait_for(is_stopped, f"process {pid} to stop")


def free_port():
    """A port outside the kernel's range for outgoing connections, so that before it is bound no test's client can get it; and no other process
    of tests, whose ports are locked files, for as long as this one runs."""
    folder = f"/tmp/wsync-test-ports-{os.geteuid()}"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    while True:
        port = random.SystemRandom().randrange(10000, 32768)
        lock = os.open(f"{folder}/{port}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with socket.socket() as s, contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            s.bind(("127.0.0.1", port))
            free_port.locks.append(lock)
            return port
        os.close(lock)


free_port.locks = []


def wsync(*args, check=True, timeout=60, command=WSYNC, **kw):
    r = subprocess.run([command, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       timeout=timeout * SLOW, stdin=subprocess.DEVNULL, **kw)
    if check and r.returncode:
        raise AssertionError(f"wsync {' '.join(map(str, args))}: {r.returncode}\n{r.stdout}{r.stderr}")
    return r


def unique(name):
    unique.n += 1
    return os.path.join(TESTDIR, f"{name}{unique.n}")


unique.n = 0


def open_to_all():
    """A folder that every user can reach, for a program, a socket or a mount; it goes with the test."""
    path = tempfile.mkdtemp(prefix="wsync-test-")
    at_end(lambda: shutil.rmtree(path, ignore_errors=True))
    os.chmod(path, 0o755)
    return path


def as_user(uid, call, groups=()):
    """The call by a child process of that user: 0, or its errno."""
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            os.setgroups(groups)
            os.setgid(uid)
            os.setuid(uid)
            call()
            code = 0
        except OSError as e:
            code = e.errno
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Process:
    """A wsync process in the foreground with its log; it ends with the test."""

    command = WSYNC
    prefix = ()  # the command that runs it, with arguments

    def __init__(self, name, *args, cwd=None):
        self.log_path = unique(name) + ".log"
        self.log = open(self.log_path, "wb")
        self.process = subprocess.Popen([*self.prefix, self.command, name, *map(str, args)], stdout=self.log, stderr=self.log,
                                        stdin=subprocess.DEVNULL, cwd=cwd)
        at_end(self.end)

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        if self.alive():
            self.process.terminate()
            try:
                self.process.wait(20 * SLOW)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"{self.process.args[1]} did not end by itself:\n{self.text()}")
        self.log.close()
        text = self.text()
        if "Sanitizer" in text or ": Assertion `" in text:
            raise AssertionError(text)

    def text(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()


def asks_nothing(args):
    """Agents of tests ask for no token unless the test is about that."""
    return () if {"--insecure", "--tokens", "--token-file", "--tls-client-ca"} & set(args) else ("--insecure",)


class Agent(Process):
    def __init__(self, *args, port=None, sock=None, host="127.0.0.1", makes_token=False):
        self.port = port or free_port()
        self.sock = sock or unique("agent") + ".sock"
        self.url = f"http://{host}:{self.port}"
        super().__init__("agent", "--listen", f"{host}:{self.port}", "--socket", self.sock, *(() if makes_token else asks_nothing(args)), *args)
        wait_for(lambda: self.answers() or not self.alive(), "the agent")
        if not self.alive():
            raise AssertionError(self.text())

    def answers(self):
        """The agent answers on both its port and its socket; they do not start to listen at the same moment."""
        try:
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(self.sock)
            return self.get("/healthz")["ok"]
        except OSError:
            return False

    def get(self, path, **headers):
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=20) as r:
            return json.load(r)

    def ask(self, path, body=None):
        """POST of JSON."""
        request = urllib.request.Request(self.url + path, data=json.dumps(body or {}).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=20) as r:
            return json.load(r)

    def publish(self, model, version, folder, *args, **kw):
        try:
            return wsync("publish", "--agent", f"unix:{self.sock}", "--model", model, "--version", version, *args, folder,
                         **{"command": self.command, **kw})
        except AssertionError as e:
            if self.alive():
                raise
            raise AssertionError(f"{e}\nthe agent has ended with {self.process.returncode}:\n{self.text()[-4000:]}") from None


class Mount(Process):
    """A mount in the foreground, at .path; waits until it answers."""

    def __init__(self, source, options="", path=None, wait=True, cwd=None):
        self.path = path or unique("mnt")
        if not path:
            os.makedirs(self.path)
        if "state=" not in options:  # settings survive only for a mount of the same path in the same test
            options += f"{',' if options else ''}state={TESTDIR}/state"
        args = ["-f", "-o", options, source, self.path]
        at_end(self.detach)
        super().__init__("mount", *args, cwd=cwd)
        if wait:
            wait_for(lambda: os.path.exists(os.path.join(cwd or "", self.path, "status")) or not self.alive(), "the mount")
            if not self.alive():
                raise AssertionError(self.text())

    def detach(self):
        if self.log.closed and self.mounted():
            subprocess.run(["umount", "-l", self.path + "/.regions"], stderr=subprocess.DEVNULL)
            subprocess.run(["umount", "-l", self.path], check=False)

    def mounted(self):
        with open("/proc/self/mounts") as f:
            return any(line.split()[1] == self.path for line in f)

    def file(self, *names):
        return os.path.join(self.path, *map(str, names))

    def read(self, *names):
        with open(self.file(*names), "rb") as f:
            return f.read()

    def text(self, *names):
        if not names:
            return Process.text(self)
        return self.read(*names).decode()

    def write(self, text, *names):
        """Like echo. A failure's message includes the mount's last_error."""
        try:
            self.write_once(text, *names)
        except OSError as e:
            said = ""
            with contextlib.suppress(OSError):
                said = self.text(os.path.dirname(os.path.join(*map(str, names))), "last_error")
            raise OSError(e.errno, f"{e.strerror}; {said}") from None

    def write_once(self, text, *names):
        """One write(2): a buffered Python file would write again when it is closed after a failure."""
        fd = os.open(self.file(*names), os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(fd, f"{text}\n".encode())
        finally:
            os.close(fd)

    def refused(self, text, *names):
        """The errno's name of a write that must fail."""
        try:
            self.write_once(text, *names)
        except OSError as e:
            return errno.errorcode[e.errno]
        raise AssertionError(f"'{text}' was taken")

    def engines(self, model="actor"):
        """{name: "state version kind url ..."}; none while the mount has not heard of the model, as just after its start."""
        try:
            return dict(line.split(" ", 1) for line in self.text(model, "engines").splitlines())
        except FileNotFoundError:
            return {}

    def wait_model(self, model="actor"):
        """Waits until the mount has heard of the model: before that it has none of the model's files."""
        wait_for(lambda: os.path.isdir(self.file(model)), f"the mount to hear of {model}")

    def wait_version(self, model, version, sources=1):
        """Waits until that many sources list the version: before that not all transports are connected."""
        wait_for(lambda: os.path.isdir(self.file(model, version)), f"{model}/{version}")
        if sources > 1:
            wait_for(lambda: f" sources={sources}" in self.status(model).get(f"version.{version}", ""), f"{model}/{version} at {sources} sources")

    def status(self, *names):
        return dict(line.split(" ", 1) for line in self.text(*names, "status").splitlines() if " " in line)


class Engine(Process):
    """The reference engine, speaking SGLang's or vLLM's API."""

    def __init__(self, path, *args, api="sglang", port=None):
        self.port = port or free_port()
        self.api = api
        self.url = f"http://127.0.0.1:{self.port}"
        super().__init__("engine", "--listen", f"127.0.0.1:{self.port}", "--model-path", path, "--api", api, *args)
        wait_for(lambda: self.answers() or not self.alive(), "the engine")
        if not self.alive() and "dies as told" not in self.text():  # ended by --die-at, in whichever test called it first
            raise AssertionError(self.text())

    def answers(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as r:
                return r.status == 200
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as r:
            return json.load(r)

    def serves(self, whole=False):
        """Its version's number; whole: with the lineage, as the mount names it."""
        told = self.ask("/weight_info" if self.api == "vllm" else "/model_info")["weight_version"]
        return told if whole else told.split("@")[0]

    def checksum(self):
        route = "/weight_checker" if self.api == "vllm" else "/weights_checker"
        return self.ask(route, {"action": "checksum"})["per_engine_checksum"]

    def generate(self):
        return self.ask("/v1/completions" if self.api == "vllm" else "/generate", {"prompt": "x"})

    def is_ready(self):  # SGLang reports it
        try:
            urllib.request.urlopen(self.url + "/ready", timeout=20).close()
        except urllib.error.HTTPError as e:
            assert e.code == 503, e
            return False
        return True

    def is_paused(self):  # vLLM reports it
        return self.ask("/is_paused")["is_paused"]


SIZES = {"BF16": 2, "F32": 4, "F16": 2, "U8": 1, "I8": 1, "I64": 8}


def checkpoint(tensors, folder=None, seed=0, files=None, sidecars=True):
    """A checkpoint folder. tensors: {name: (dtype, shape)}. files: {file: [names]} for several shards."""
    folder = folder or unique("ckpt")
    os.makedirs(folder, exist_ok=True)
    generator = random.Random(seed)
    for file, names in (files or {"model.safetensors": list(tensors)}).items():
        header, data = {"__metadata__": {"format": "pt"}}, []
        end = 0
        for name in names:
            dtype, shape = tensors[name]
            n = SIZES[dtype]
            for d in shape:
                n *= d
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + n]}
            end += n
            data.append(generator.randbytes(n))
        write_safetensors(os.path.join(folder, file), header, b"".join(data))
    if files:
        index = {"metadata": {}, "weight_map": {n: f for f, names in files.items() for n in names}}
        with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
            json.dump(index, f)
    if sidecars:
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump({"model_type": "test", "seed": seed}, f)
    return folder


MANY = 0.1  # of the elements


def many_changed(data, share, by, generator):
    """The 16-bit elements, each changed with that probability, to 1/256. Millions of them one by one would take most of a test's time:
    all are added in one number, in which no sum carries into the next element."""
    n = len(data) // 2
    add = {byte: (by, -by)[byte % 2] % 65536 if byte < 256 * share else 0 for byte in range(256)}
    chosen, changes = generator.randbytes(n), bytearray(2 * n)
    changes[::2] = chosen.translate(bytes(a & 255 for a in add.values()))
    changes[1::2] = chosen.translate(bytes(a >> 8 for a in add.values()))
    a, b, top = (int.from_bytes(x, "little") for x in (data, changes, b"\0\x80" * n))
    return (((a & ~top) + (b & ~top)) ^ ((a ^ b) & top)).to_bytes(2 * n, "little")


def step(folder, seed, share=0.01, by=1):
    """A checkpoint like the one in `folder`, with a share of its 16-bit elements changed by `by` units."""
    out = unique("step")
    os.makedirs(out)
    generator = random.Random(seed)
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as f:
            data = bytearray(f.read())
        if name.endswith(".safetensors"):
            begin = 8 + struct.unpack("<Q", data[:8])[0]
            begin += begin % 2
            n = (len(data) - begin) // 2
            with memoryview(data)[begin:begin + 2 * n] as raw, raw.cast("H") as elements:
                if share > MANY:
                    raw[:] = many_changed(raw, share, by, generator)
                else:
                    chosen = generator.sample(range(n), int(n * share))
                    for i, change in zip(chosen, generator.choices((by, -by), k=len(chosen))):
                        elements[i] = (elements[i] + change) % 65536
        with open(os.path.join(out, name), "wb") as f:
            f.write(data)
    return out


def write_safetensors(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def tensors_of(path):
    """{name: (dtype, shape, bytes)} of a safetensors file, by the standard library."""
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + n])
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], raw[8 + n + v["data_offsets"][0] : 8 + n + v["data_offsets"][1]])
            for k, v in header.items()}


SMALL = {"a.weight": ("BF16", [64, 32]), "b.weight": ("F32", [16]), "model.layers.10.x": ("BF16", [8, 8]),
         "model.layers.2.x": ("BF16", [8, 8]), "nested/name": ("U8", [5])}
# With these speeds (of the link, and of a thread that patches or copies) a mount uses a delta wherever possible.
DELTAS = "speeds=40M:5G:2G"
# LARGE has more than one block of 4 MiB; both have a partial last block.
MEDIUM = {f"layer.{i}.weight": ("BF16", [256, 256]) for i in range(12)} | {"tail": ("U8", [12345])}
LARGE = {f"layer.{i}.weight": ("BF16", [1024, 1024]) for i in range(12)} | {"tail": ("U8", [12345])}


def listing(archive, model="actor"):
    """{version: its entry} of an archive; {}: it has no list yet."""
    if not os.path.exists(archive + "/v1/models"):
        return {}
    with open(archive + "/v1/models") as f:
        models = {m["name"]: m for m in json.load(f)["models"]}
    return {v["version"]: v for v in models.get(model, {"versions": []})["versions"]}


def pulled(mount, version=1):
    """Pulls, and from status: (strategy, {strategy: why not})."""
    mount.write(f"pull {version}", "actor/ctl")
    return said(mount, version)


def said(mount, version=1):
    line = mount.status("actor")[f"version.{version}"]
    found = re.search(r' how="([^"]*)" strategy=(\S+)(?: why_not="([^"]*)")? seconds=', line)
    assert found, line
    reasons = [part.split(": ", 1) for part in found.group(3).split("; ")] if found.group(3) else []
    assert len({why for _, why in reasons}) == len(reasons), reasons  # each reason is given once
    return found.group(2), {name: why for names, why in reasons for name in names.split(", ")}
