"""The processes of a campaign (campaign.py): daemons that are restarted in their places, ranks that publish computed values, readers that
check every byte of them, and their hosts."""
import collections
import http.client
import os
import re
import subprocess
import sys
import threading
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import pytest

from network import Network
from ranks import Rank, Refused
from world import *

ELEMENTS = {"actor": 2 << 20, "critic": 1 << 20}  # 6 and 3 MB: more than one block of 4 MiB, and less
WORLD = {"actor": 2, "critic": 1}
LINEAGE = 8192  # versions of a lineage; content is number + LINEAGE * lineage, plus SECOND for the second model
SECOND = LINEAGE * 256
WAYS = ("read", "direct", "uring", "splice", "sendfile", "map", "private")


def salt(model, lineage):
    return LINEAGE * lineage + (SECOND if model == "critic" else 0)


class Ground:
    """The machine as hosts with links between them, daemons in memory cgroups and with their own clocks, as far as the machine supports it;
    .skipped lists what it does not support, and why."""

    def __init__(self, names):
        self.skipped, self.hosts, self.network, self.groups = {}, {n: "127.0.0.1" for n in names}, None, {}
        try:
            self.network = Network(names)
            self.hosts = {n: f"10.77.0.{i + 1}" for i, n in enumerate(names)}
            self.network.ip("hub", "addr add 10.77.0.250/24 dev bridge")
            self.network.ip("hub", "link set lo up")
            entered(self.network.inside("hub"))  # from there all hosts can be reached
        except pytest.skip.Exception as why:
            self.skipped["link"] = str(why)
        for name in names:
            try:
                self.groups[name] = Group(name)
            except OSError as e:
                self.skipped["memory"] = f"no memory cgroup can be made here: {e}"
        done = subprocess.run(["unshare", "--time", "--boottime", "864000", "cat", "/proc/uptime"], capture_output=True, text=True)
        self.has_clocks = done.returncode == 0 and float(done.stdout.split()[0]) > 864000
        if not self.has_clocks:
            self.skipped["clock"] = f"no time namespaces here: {done.stderr.strip() or 'they do not hold for what is started in them'}"

    def prefix(self, name, random, first=False):
        """The command prefix that runs a daemon there. first: killed first when memory is short."""
        words = []
        if self.network:
            words += ["nsenter", f"--net=/run/netns/{self.network.prefix}{name}"]
        if name in self.groups:
            mark = "echo 1000 >/proc/self/oom_score_adj && " * first
            words += ["sh", "-c", f'{mark}echo $$ >{self.groups[name].path}/cgroup.procs && exec "$@"', "sh"]
        if self.has_clocks and random.random() < 0.5:
            seconds = str(random.randrange(1, 20 * 86400))
            words += ["unshare", "--time", "--monotonic", seconds, "--boottime", seconds]
        return words


class Group:
    """A memory cgroup, of version 1 or 2."""

    def __init__(self, name):
        with open("/proc/self/cgroup") as f:
            own = next((line.strip().split(":", 2)[2] for line in f if line.split(":")[1] == "memory"), None)
        old = own is not None
        self.path = f"/sys/fs/cgroup{'/memory' if old else ''}/wsync-campaign-{os.getpid()}-{name}"
        self.limit_file, self.usage_file, self.events_file, self.none = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control", "-1") if old else
            ("memory.max", "memory.current", "memory.events", "max"))
        os.mkdir(self.path)
        at_end(self.remove)
        self.limit(None)

    def remove(self):
        wait_for(lambda: not self.processes(), "the processes of a cgroup")
        os.rmdir(self.path)

    def processes(self):
        with open(self.path + "/cgroup.procs") as f:
            return f.read()

    def usage(self):
        with open(f"{self.path}/{self.usage_file}") as f:
            return int(f.read())

    def kills(self):
        """The number of its processes that the kernel has killed."""
        with open(f"{self.path}/{self.events_file}") as f:
            return int(dict(line.split() for line in f)["oom_kill"])

    def limit(self, size):
        with open(f"{self.path}/{self.limit_file}", "w") as f:
            f.write(self.none if size is None else str(size))


class Place:
    """Where a daemon runs; .now is the running one. One thread owns the place, and starts and ends the daemon."""

    KEPT = 4  # logs of daemons that have ended

    def __init__(self, ground, host, random):
        self.ground, self.host, self.random = ground, host, random
        self.address = ground.hosts[host]
        self.port, self.now, self.starts = free_port(), None, 0
        self.logs = collections.deque()
        at_end(self.end)

    def start(self):
        """Until it is there."""
        self.starts += 1
        with scope() as starting:
            daemon = self.now = self.daemon()
            daemon.scope = starting.pop_all()  # it ends when asked to
        self.logs.append(daemon.log_path)
        if len(self.logs) > self.KEPT:
            os.unlink(self.logs.popleft())
        self.wait()

    def wait(self):
        wait_for(lambda: self.answers() or not self.now.alive(), f"{self.name} to answer", 60)
        if not self.now.alive():
            raise AssertionError(f"{self.name} did not start: {self.now.process.returncode}\n{self.now.text()}")

    def run(self, *args):
        """A wsync process in the foreground."""
        prefix = self.ground.prefix(self.host, self.random, first=args[0] == "mount")

        class Here(Process):
            pass

        Here.prefix = prefix
        return lambda: Here(*args)

    def end(self):
        """Ends it by SIGTERM, within the time limit."""
        if self.now:
            self.now.scope.close()

    def kill(self):
        self.now.kill()
        self.now.scope.close()


class AgentPlace(Place):
    name = "agent"

    def __init__(self, *args):
        super().__init__(*args)
        self.sock = os.path.join(TESTDIR, "agent.sock")
        self.url = f"http://{self.address}:{self.port}"

    def daemon(self):
        return self.run("agent", "--insecure", "--listen", f"{self.address}:{self.port}", "--socket", self.sock, "--threads", 1)()

    def answers(self):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as s:
            s.connect(self.sock)
            return True
        return False


class MountPlace(Place):
    def __init__(self, ground, host, random, agent, before=None):
        super().__init__(ground, host, random)
        self.name, self.agent, self.before = f"mount {host}", agent, before
        self.url = f"http://{self.address}:{self.port}"
        self.path = os.path.join(TESTDIR, host)
        self.reading, self.old = 0, []  # running reads; daemons that were detached lazily
        os.makedirs(self.path)

    def daemon(self):
        r = self.random
        source = self.agent.url if r.random() < 0.7 else f"unix:{self.agent.sock}"
        if self.before:
            source = f"{self.before.url},{self.agent.url}"
        options = [f"serve={self.address}:{self.port},serve-insecure,state={TESTDIR}/state,host={self.host},deadline=20,cache=300M,threads=1",
                   "reads=" + r.choice(("auto", "auto", "auto", "link", "cached")), "open=" + r.choice(("wait", "stream"))]
        return self.run("mount", "-f", "-o", ",".join(options), source, self.path)()

    def answers(self):
        return os.path.exists(self.path + "/status")

    def mounts(self):
        with open("/proc/self/mounts") as f:
            return [line.split()[2] for line in f if line.split()[1] == self.path]

    def detach(self):
        """Detaches the mount lazily. Its daemon serves its readers, and ends with the last of them."""
        subprocess.run(["umount", "-l", self.path + "/.regions"], stderr=subprocess.DEVNULL, check=False)
        done = subprocess.run(["umount", "-l", self.path], capture_output=True, text=True)
        return done.returncode == 0

    def leave(self):
        """Gives up its place to another mount."""
        self.old.append(self.now)

    def reap(self):
        """Collects the ended ones of the detached daemons; returns whether all have ended."""
        for daemon in [d for d in self.old if not d.alive()]:
            daemon.scope.close()
            self.old.remove(daemon)
        return not self.old

    def kill(self):
        super().kill()
        if self.random.random() < 0.5:
            self.detach()  # else the next daemon finds a dead mount

    def end(self):
        super().end()
        for daemon in self.old:
            daemon.scope.close()
        if self.mounts():
            left = self.mounts()
            self.detach()
            raise AssertionError(f"{self.name} has ended and left at its path: {left}")

    def file(self, *names):
        return os.path.join(self.path, *map(str, names))

    def text(self, *names):
        with open(self.file(*names), "rb") as f:
            return f.read().decode()

    def write(self, text, *names):
        fd = os.open(self.file(*names), os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(fd, f"{text}\n".encode())
        finally:
            os.close(fd)

    def versions(self, model):
        """The listed versions."""
        try:
            return sorted(int(n) for n in os.listdir(self.file(model)) if n.isdigit())
        except OSError:
            return []

    def engines(self, model):
        """{name: "state version kind url ..."}; {} if the mount cannot be read."""
        try:
            return dict(line.split(" ", 1) for line in self.text(model, "engines").splitlines() if " " in line)
        except OSError:
            return {}

    def doing(self):
        """The command in progress."""
        out = {"read"} if self.reading else set()
        for model in ELEMENTS:
            try:
                status = self.text(model, "status")
            except OSError:
                return out
            out |= {"pull"} if re.search(r"^version\.\d+ (pulling|verifying) ", status, re.M) else set()
            out |= {"load"} if any(line.split(" ")[0] in ("paused", "loading") for line in self.engines(model).values()) else set()
        return out


class EnginePlace(Place):
    def __init__(self, ground, mount, random, name, model, api, *args):
        super().__init__(ground, mount.host, random)
        self.name, self.mount, self.model, self.api, self.args = name, mount, model, api, args
        self.url = f"http://{self.address}:{self.port}"

    def start(self):
        """Until it serves something; it may lack its weights while its mount is in trouble."""
        end = time.monotonic() + 120 * SLOW
        while time.monotonic() < end:
            versions = self.mount.versions(self.model)
            if versions:
                try:
                    return super().start()
                except AssertionError:
                    self.kill()
            time.sleep(0.1)
        raise AssertionError(f"{self.name} does not start: {self.now and self.now.text()}")

    def daemon(self):
        path = self.mount.file(self.model, self.mount.versions(self.model)[-1:][0] if self.mount.versions(self.model) else 0)
        return self.run("engine", "--listen", f"{self.address}:{self.port}", "--model-path", path, "--api", self.api, *self.args)()

    answers = Engine.answers

    def ask(self, path, body=None, timeout=30):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout * SLOW) as r:
            return json.load(r)

    def label(self):
        return self.ask("/weight_info" if self.api == "vllm" else "/model_info")["weight_version"]

    checksum = Engine.checksum

    def is_paused(self):
        return self.api == "vllm" and self.ask("/is_paused")["is_paused"]

    def generate(self):
        """Waits while the engine is paused."""
        return self.ask("/v1/completions" if self.api == "vllm" else "/generate", {"prompt": "x"})

    def doing(self):
        state = self.mount.engines(self.model).get(self.name, "").split(" ")[0]
        return {"load"} if state in ("paused", "loading") else set()


class Worker(threading.Thread):
    """Runs steps until it is told to stop; .hold prevents the next step, .still says that none is running. An exception of a step fails the
    campaign."""

    def __init__(self, campaign, name):
        super().__init__(daemon=True, name=name)
        self.campaign, self.hold, self.still, self.over = campaign, False, False, False

    def run(self):
        while not self.over:
            if self.hold:
                self.still = True
                time.sleep(0.05)
                continue
            self.still = False
            try:
                self.step()
            except Exception as e:
                self.campaign.fail(f"{self.name}: {e if isinstance(e, AssertionError) else traceback.format_exc()}")
                return

    def quiet(self, seconds=150):
        self.hold = True
        wait_for(lambda: self.still or not self.is_alive(), f"{self.name} to be done with what it does", seconds)

    def stop(self):
        self.over = True
        self.join(150 * SLOW)
        if self.is_alive():
            raise AssertionError(f"{self.name} hangs")


class Trainer(Worker):
    """The ranks of a model. Version numbers rise whatever happens to them; .begun: every content that readers may see."""

    def __init__(self, campaign, agent, model, random):
        super().__init__(campaign, f"trainer of {model}")
        self.agent, self.model, self.random = agent, model, random
        self.world, self.ranks = WORLD[model], [None] * WORLD[model]
        self.version, self.lineage, self.is_open, self.renew = 0, 0, False, False
        self.begun, self.published, self.last, self.offloading = set(), 0, 0, False
        self.one_more = False
        self.refused = collections.Counter()
        at_end(self.end)

    def end(self):
        self.stop()
        self.drop()

    @property
    def run_id(self):
        return f"{self.model}{self.lineage}"

    def begin_anew(self):
        """Opens another lineage, whose numbers begin lower."""
        self.renew, self.is_open = False, False
        self.lineage += 1
        self.version = max(0, self.version - self.random.randrange(6)) if self.version < LINEAGE - 600 else 0
        self.drop()

    def drop(self, which=None):
        for i, r in enumerate(self.ranks):
            if r and which in (None, i):
                r.kill()
                r.scope.close()
                os.unlink(r.log_path)
                self.ranks[i] = None

    def spawn(self, i):
        args = [f"run={self.run_id}", f"salt={salt(self.model, self.lineage)}"] + ["new-run"] * (not self.is_open)
        starting = Scope()
        try:
            with starting.continued():
                rank = Rank(self.agent, self.model, i, self.world, ELEMENTS[self.model], *args)
            rank.scope = starting
            self.ranks[i] = rank
        except AssertionError as e:
            with contextlib.suppress(AssertionError):
                starting.close()
            if "error 0" not in str(e) and "''" not in str(e):
                raise
            time.sleep(0.1)  # there is no agent now, or it was just killed

    def ask(self, command):
        """Asks all ranks: [line, Refused or None]."""
        ranks = list(self.ranks)
        for r in ranks:
            r.send(command)
        out = []
        for i, r in enumerate(ranks):
            try:
                out.append(r.answer(120))
            except Refused as e:
                self.refused[errno.errorcode.get(e.errno, e.errno)] += 1
                self.campaign.tell_event(f"rank {i} of {self.model} was refused {command}: {e.text}")
                out.append(e)
            if out[-1] is None:
                self.drop(i)
        return out

    def step(self):
        if self.one_more and self.last:
            self.hold, self.one_more = True, False
            return
        if self.renew and self.lineage < 255:
            self.begin_anew()
        for i in range(self.world):
            if not self.ranks[i]:
                self.spawn(i)
        if not all(self.ranks):
            return
        self.version += 1
        self.begun.add(salt(self.model, self.lineage) + self.version)
        self.offloading = True
        answers = self.ask(f"offload {self.version}")
        self.offloading = False
        if all(isinstance(a, str) for a in answers):
            answers = self.ask(f"wait {self.version}")
            if all(isinstance(a, str) for a in answers):
                self.is_open = True
                self.published += 1
                self.last = self.version
        for a in answers:
            if isinstance(a, Refused) and "lineage" in a.text and a.errno in (errno.EEXIST, errno.EPROTO):
                self.is_open = "already" in a.text or "has the lineage" in a.text
                self.drop()
                break
        time.sleep(self.random.random() * 0.3)

    def settle(self):
        """Publishes one more version, and then waits."""
        self.last, self.one_more, self.hold = 0, True, False
        wait_for(lambda: not self.one_more or not self.is_alive(), f"{self.name}: a version that gets through", 150)


class Reader(Worker):
    """Opens and reads mounted files in all ways, and checks that the bytes are of the version that it opened."""

    def __init__(self, campaign, number, mounts, trainers, random):
        super().__init__(campaign, f"reader {number}")
        self.mounts, self.trainers, self.random = mounts, trainers, random
        self.process, self.reading = None, False
        self.right, self.errors, self.bytes, self.skipped = collections.Counter(), collections.Counter(), 0, {}
        at_end(self.end)

    def end(self):
        self.stop()
        if self.process:
            self.process.kill()
            self.process.communicate()

    def start_process(self):
        if not self.process or self.process.poll() is not None:
            if self.process:
                self.process.communicate()
            self.process = subprocess.Popen([os.path.join(BUILD, "tests/tools/witness")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            text=True, bufsize=1, cwd=TESTDIR)

    def step(self):
        r = self.random
        mount, model = r.choice(self.mounts), r.choice(list(self.trainers))
        found = mount.versions(model)
        if found:
            which = found[-1] if r.random() < 0.6 else r.choice(found + ["latest", "current"])
            self.look(mount, model, which, r.choice(WAYS), r.randrange(1000) if r.random() < 0.3 else 0)
        time.sleep(r.random() * 0.1)

    def look(self, mount, model, which, way, hold):
        """Reads once; returns whether the bytes were right."""
        self.start_process()
        path = mount.file(model, which, "model.safetensors")
        timer = threading.Timer(120 * SLOW, self.process.kill)
        timer.start()
        mount.reading += 1
        self.reading = True
        try:
            self.process.stdin.write(f"{way} {hold} {path}\n")
            line = self.process.stdout.readline().strip()
        except BrokenPipeError:
            line = ""
        self.reading = False
        mount.reading -= 1
        late = timer.finished.is_set()
        timer.cancel()
        if late and not line:
            raise AssertionError(f"{path} by {way}: no answer within {120 * SLOW} s")
        kind, _, rest = line.partition(" ")
        if kind == "right":
            self.judge(path, model, which, way, int(rest.split()[0]))
            self.right[way] += 1
            self.bytes += int(rest.split()[1])
        elif kind == "error":
            self.errors[way, errno.errorcode.get(int(rest.split()[0]), rest.split()[0])] += 1
        elif kind == "skip":
            self.skipped[way] = rest
        elif kind == "wrong":
            raise AssertionError(f"WRONG BYTES in {path} by {way}, held for {hold} ms: {rest}")
        return kind == "right"

    def judge(self, path, model, which, way, content):
        number = (content - salt(model, 0)) % LINEAGE
        if content not in self.trainers[model].begun:
            raise AssertionError(f"WRONG BYTES in {path} by {way}: all of content {content}, which was never published for {model}")
        if isinstance(which, int) and number != which:
            raise AssertionError(f"WRONG BYTES in {path} by {way}: all of version {number} (content {content})")


class Auditor(Worker):
    """Compares each engine's reported version with the checksum of its weights."""

    def __init__(self, campaign, engines, random):
        super().__init__(campaign, "auditor")
        self.engines, self.random, self.sums, self.looks = engines, random, {}, 0
        at_end(self.stop)

    def step(self):
        engine = self.random.choice(self.engines)
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            label, paused = engine.label(), engine.is_paused()
            total = engine.checksum()
            if "@" in label and not paused and not engine.is_paused() and engine.label() == label:
                self.looks += 1
                known = self.sums.setdefault((engine.model, label), total)
                if known != total:
                    raise AssertionError(f"WRONG WEIGHTS: {engine.name} says that it serves {engine.model} {label}, whose checksum is {known}, "
                                         f"and holds weights of {total}")
        time.sleep(0.2)


class Switcher(Worker):
    """An operator who switches the second model's engines, whatever the result."""

    def __init__(self, campaign, mount, model, random):
        super().__init__(campaign, "switcher")
        self.mount, self.model, self.random = mount, model, random
        self.done, self.refused = 0, collections.Counter()
        at_end(self.stop)

    def step(self):
        what = self.random.choice(["latest", "latest", "previous"] + self.mount.versions(self.model))
        try:
            self.mount.write(what, self.model, "version")
            self.done += 1
        except OSError as e:
            self.refused[errno.errorcode.get(e.errno, e.errno)] += 1
        time.sleep(self.random.random())
