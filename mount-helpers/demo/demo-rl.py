#!/usr/bin/env python3
"""A small real reinforcement-learning run on one machine without a GPU.

Two ranks of FSDP2 or Megatron-core train a tiny Qwen3 of random weights on what a real engine samples from a mount of the run. After every
step the trainer publishes (wsync.Publisher) and the mount, whose policy is `follow`, pulls, pauses, loads and resumes by
itself. One version is held back on purpose, to show that a stale one would be seen. At the end the run checks what it claims,
and fails if that is not so. Nothing is left behind, also after Ctrl-C."""
import argparse
import contextlib
import datetime
import importlib.util
import json
import math
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time

import sandbox

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MODEL = "actor"
ROLLOUTS = {"bf16": MODEL, "fp8": f"{MODEL}@fp8-channel-ct"}  # the view is the FP8 that vLLM runs on a CPU
NAMES = {"vllm": "vLLM", "sglang": "SGLang"}
TRAINERS = {"fsdp": ("FSDP2", ()), "megatron": ("Megatron-core", ("megatron",))}  # and the packages that it needs beside torch
START_SECONDS = 420  # others may use this machine, too
STEP_SECONDS = 240
# bf16 keeps 8 bits of a number. Engine and trainer round each layer's results and the logits, and add up in other orders: seen
# were differences of 3 roundings of the largest logit at most, and of 17 to 60 where the engine had the version before. In FP8 a
# difference that small carries some activations over to the next code, which is up to 2^-3 away: 8 at most, and 33 or more.
ROUNDINGS, ROUNDING = {"bf16": 6, "fp8": 15}, 2.0**-8
SURE = 5  # standard errors that the reward must have risen by
WHOSE = {"bf16": "the trainer's own", "fp8": "those of the view's weights"}
# --steps and --learning-rate, if they are not given: FP8 is slow on a CPU, and its model (rl_ranks.py) narrower
USUAL = {"bf16": (20, 6e-3), "fp8": (8, 4e-2)}
# vLLM with the package beside it, and with torch's own linear layers, as on GPUs: its CPU build packs them, so that no parameter is there to patch
PATCHABLE = ("--worker-cls", "patch_probe.Worker", "--worker-extension-cls", "wsync.vllm.Extension")


class Failed(Exception):
    """A sentence for the user."""


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--engine", choices=tuple(NAMES), default="vllm", help="the server that samples (default: %(default)s)")
    p.add_argument("--trainer", choices=tuple(TRAINERS), default="fsdp", help="what trains (default: %(default)s)")
    p.add_argument("--rollout", choices=tuple(ROLLOUTS), default="bf16",
                   help="what it samples with: the trained weights, or the agent's view of them in FP8 (default: %(default)s)")
    p.add_argument("--update", choices=("whole", "patch"), default="whole",
                   help="how a switch brings a version into vLLM: by loading it whole, or by writing what changed into its parameters. "
                        "The model is larger then: of lm_head all changes in a step, and where more than 5 %% of a model does, it is "
                        "loaded whole; vLLM runs torch's linear layers (default: %(default)s)")
    p.add_argument("--steps", type=int, metavar="N", help="training steps, 3 or more (default: 20; 8 with fp8)")
    p.add_argument("--hold", type=int, metavar="N", help="the step whose version is held back (default: half of the steps)")
    p.add_argument("--learning-rate", type=float, metavar="RATE",
                   help="of lm_head; of the rest it is 3e-6, with patches 1e-6 (default: 0.006; 0.04 with fp8)")
    a = p.parse_args()
    steps, rate = USUAL[a.rollout]
    a.steps = steps if a.steps is None else a.steps
    a.learning_rate = rate if a.learning_rate is None else a.learning_rate
    a.hold = a.hold if a.hold is not None else a.steps // 2
    if a.steps < 3 or not 1 <= a.hold <= a.steps:
        p.error("--steps is 3 or more, --hold one of them")
    if not 0 < a.learning_rate < 1:
        p.error("--learning-rate is between 0 and 1")
    if a.rollout == "fp8" and a.engine == "sglang":
        p.error("--rollout fp8 is for vLLM: SGLang runs no FP8 of a scale a channel on a CPU")
    if a.update == "patch" and (a.rollout, a.engine) != ("bf16", "vllm"):
        p.error("--update patch is for vLLM and --rollout bf16")
    a.served = ROLLOUTS[a.rollout]
    return a


def check_machine(engine, trainer):
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise Failed("there is no /dev/fuse on this machine: load the fuse module, or give the container --device /dev/fuse --cap-add SYS_ADMIN")
    if os.geteuid() != 0:
        raise Failed("mounting needs root: run it as root or with sudo")
    for package in ("torch", "transformers", engine, *TRAINERS[trainer][1]):
        if importlib.util.find_spec(package) is None:
            raise Failed(f"the Python package {package} is not here: `make demo-rl` fetches it into build/venv-real, where PyPI can be reached")
    if not os.access(os.environ["WSYNC"], os.X_OK):
        raise Failed(f"there is no {os.environ['WSYNC']}: `make` builds it")


class Printer:
    def __init__(self):
        self.n, self.tty = 0, sys.stdout.isatty()

    def say(self, text):
        self.n += 1
        bold, plain = ("\033[1m", "\033[0m") if self.tty else ("", "")
        print(f"\n{bold}{self.n:2}. {text}{plain}", flush=True)

    def wait(self, what, condition, seconds):
        """Until condition() holds; says every now and then how long it has been."""
        start = told = time.monotonic()
        while not condition():
            now = time.monotonic()
            if now - start > seconds:
                raise Failed(f"{what}: not within {seconds} s")
            if self.tty:
                print(f"\r    {what}: {now - start:.0f} s ", end="", flush=True)
            elif now - told >= 15:
                told = now
                print(f"    {what}: {now - start:.0f} s ...", flush=True)
            time.sleep(0.2)
        print(f"{chr(13) if self.tty else ''}    {what}: done after {time.monotonic() - start:.1f} s", flush=True)


class Ranks:
    """torchrun and its two ranks, which end with the demo; their lines of JSON."""

    def __init__(self, work, env, *args):
        from world import at_end

        self.log_path, self.lines = os.path.join(work, "ranks.log"), queue.Queue()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", os.path.join(HERE, "rl_ranks.py")]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([*command, *map(str, args)], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                            text=True)
        at_end(self.stop)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(json.loads(line))
        self.lines.put(None)

    def next(self, seconds, check):
        """What is told next; None: the ranks have ended well. check() is called meanwhile, and raises where waiting is no use."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                line = self.lines.get(timeout=0.5)
                if line is None and self.process.wait(STEP_SECONDS):
                    raise Failed("the trainer failed")
                return line
            check()
        raise Failed(f"the trainer said nothing for {seconds} s")

    def check(self):
        if self.process.poll() is not None:
            raise Failed("the trainer ended before its time")

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()  # torchrun ends the ranks
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def install(python_path):
    """As a user would."""
    r = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--root-user-action", "ignore", "--no-deps",
                        "--no-build-isolation", "--no-index", "--target", python_path, os.path.join(ROOT, "backends/python")],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=180, check=False)
    if r.returncode:
        raise Failed(f"pip could not install backends/python:\n{r.stdout[-3000:]}")


def moment(text):
    return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ")


def travel(mount, served, version):
    """What the mount's files say of a version: how it came, bytes moved, seconds of the pull, and of the engine's pause; whether it was a patch."""
    line = mount.status(served)[f"version.{version}"]
    said = {k: re.search(rf" {k}=([0-9.]+)", line).group(1) for k in ("moved", "seconds")}
    times = {}
    for event in mount.text(served, "events").splitlines():
        at, what, rest = event.split(" ", 2)
        if what in ("paused", "loaded", "resumed") and re.search(rf" version={version}(@| |$)", rest):
            times[what] = moment(at), rest
    if len(times) != 3:
        raise Failed(f"{mount.file(served, 'events')} has no pause of version {version}")
    return {"how": re.search(r' how="([^"]*)"', line).group(1), "moved": int(said["moved"]), "pull": float(said["seconds"]),
            "pause": (times["resumed"][0] - times["paused"][0]).total_seconds(), "patch": " how=patch" in times["loaded"][1]}


def bound(line, rollout):
    """How far noise may carry a log probability."""
    return ROUNDINGS[rollout] * ROUNDING * line["logit"] if math.isfinite(line["logit"]) else 0.0


HEADER = "   version  offload    pull   pause    step   reward  difference (bound)  how it came"


def row(line, rollout, how=None):
    seconds, came = "      -       -       -       -", "the engine was started on it"
    if how:
        seconds = f"{line['offload']:5.3f} s {how['pull']:5.3f} s {how['pause']:5.3f} s {line['seconds']:5.2f} s"
        came = how["how"] if " instead of " in how["how"] else f"{how['how']}, {how['moved'] / 1e6:.2f} MB"
        came += "; patched" if how["patch"] else ""
    elif line.get("held"):
        came = f"HELD BACK: the engine still serves {line['serving']}"
    print(f"   {line['version']:>7}  {seconds}  {line['reward'] * 100:5.1f} %  {line['difference']:10.3f} ({bound(line, rollout):.3f})  {came}", flush=True)


def verdict(lines, a):
    """The claims, each with the figures that it stands on; prints them and returns whether all hold."""
    good = [x for x in lines if not x.get("held")]
    held = next((x for x in lines if x.get("held")), None)
    if len(good) < 2 or not held:
        raise Failed("the trainer has ended before its last step")
    n = max(1, len(good) // 4)
    p, q = (sum(x["reward"] for x in of) / n for of in (good[:n], good[-n:]))
    error = math.sqrt((p * (1 - p) + q * (1 - q)) / (n * good[0]["tokens"]))
    most = lambda x: bound(x, a.rollout)
    worst = max(good, key=lambda x: x["difference"] / (most(x) or 1e-9))
    claims = [
        ([x["version"] for x in good] == list(range(1, a.steps + 2)), f"{len(good) - 1} steps, each published, switched to and sampled from"),
        (q - p > SURE * error, f"the reward rose from {p * 100:.1f} % to {q * 100:.1f} % (means over {n} of the versions; {SURE} standard "
                               f"errors are {SURE * error * 100:.1f} %)"),
        (all(x["difference"] <= most(x) for x in good),
         f"the engine's log probabilities are {WHOSE[a.rollout]} but for noise: {max(x['difference'] for x in good):.3f} apart at most. The "
         f"bound is {ROUNDINGS[a.rollout]} bf16 roundings (2^-8)\n         of the largest logit; version {worst['version']} comes closest to it, "
         f"{worst['difference']:.3f} of {most(worst):.3f}"),
        (held["difference"] > most(held) and held["serving"] == str(held["version"] - 1),
         f"while version {held['version']} was held back they were not: {held['difference']:.3f} apart, "
         f"{held['difference'] / (most(held) or 1):.1f} times the bound"),
    ]
    for holds, text in claims:
        print(f"    {'yes' if holds else 'NO '}  {text}", flush=True)
    return all(holds for holds, _ in claims)


def tell_apart(lines, a):
    if a.rollout != "bf16":
        good = [x for x in lines if not x.get("held")]
        print(f"         (the policy that is trained says otherwise of a token by {sum(x['apart'] for x in good) / len(good):.4f} in the mean: "
              "what FP8 costs,\n         and what the loss weighs its tokens for)", flush=True)


def compare_pauses(a, out, mount, url, lines):
    """The last two versions are loaded whole, for comparison; whether all switches were patches."""
    versions = [x["version"] for x in lines if "offload" in x]
    out.say("The same engine loads the last two versions whole, for comparison")
    patches = sorted(x["travel"]["pause"] for x in lines if x.get("travel", {}).get("patch"))
    mount.write("manual", f"{a.served}/policy")
    mount.write("engine remove e1", f"{a.served}/ctl")
    mount.write(f"engine add e1 vllm {url} update=whole", f"{a.served}/ctl")
    loads = []
    for version in (versions[-2], versions[-1]):
        mount.write(version, f"{a.served}/version")
        loads.append(travel(mount, a.served, version)["pause"])
    holds = len(patches) == len(versions)
    said = f"pauses of {patches[0]:.3f} to {patches[-1]:.3f} s, median {patches[len(patches) // 2]:.3f} s" if patches else "no pause to compare"
    print(f"    {'yes' if holds else 'NO '}  {len(patches)} of {len(versions)} switches were patches: {said}\n"
          f"         loaded whole: {', '.join(f'{x:.3f} s' for x in loads)}", flush=True)
    return holds




def start_ranks(a, work, out, agent, mount, package, url):
    out.say(f"Two ranks of {TRAINERS[a.trainer][0]} publish version 1, random weights of a Qwen3")
    home = os.path.join(work, "home")
    os.makedirs(home)
    path = [package, os.path.join(ROOT, "tests/real"), os.path.join(ROOT, "tests/real/trainers")]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path), WSYNC_AGENT=f"unix:{agent.sock}", HOME=home, OMP_NUM_THREADS="1",
               TORCHDYNAMO_DISABLE="1", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo", PYTHONWARNINGS="ignore")
    size = "patch" if a.update == "patch" else a.rollout
    ranks = Ranks(work, env, a.trainer, a.engine, a.served, size, url, mount.path, os.path.join(work, "hf"), a.steps, a.hold, a.learning_rate)

    def published():
        ranks.check()
        return os.path.isdir(mount.file(a.served, 1))

    out.wait(f"torch is loaded, version 1 of {a.served} is published", published, START_SECONDS)
    return ranks


def make_server(a, port, mount, package):
    from servers import VLLM, SGLang, WithWsync

    folder = mount.file(a.served, 1)
    if a.update == "patch":
        WithWsync.target = os.pathsep.join((package, os.path.join(ROOT, "tests/real")))
        return WithWsync(folder, "--max-num-seqs", "64", *PATCHABLE, port=port)
    return VLLM(folder, "--max-num-seqs", "64", port=port) if a.engine == "vllm" else SGLang(folder, "--max-running-requests", "64", port=port)


def start_engine(a, server, out, mount, ranks):
    """Returns a function that raises when the engine is no more."""
    kind, served = server.kind, a.served
    out.say(f"{NAMES[kind]} starts on {mount.file(served, 1)}; on two idle cores that takes about 40 s")

    def alive():
        if not server.alive():
            raise Failed(f"{NAMES[kind]} ended by itself, with {server.process.returncode}")

    def healthy():
        ranks.check()
        alive()
        return server.healthy()

    out.wait("it answers", healthy, START_SECONDS)
    command = f"engine add e1 {kind} {server.url}" + (f" update={a.update}" if a.update != "whole" else "")
    mount.write(command, f"{served}/ctl")
    mount.write("follow", f"{served}/policy")
    print(f"    {command} > {mount.file(served, 'ctl')}; follow > {mount.file(served, 'policy')}", flush=True)
    return alive


def follow(a, out, mount, ranks, check):
    """The steps as they come; all that the trainer told."""
    out.say(f"{a.steps} steps; version {a.hold + 1} is held back at first. Reward: the share of sampled tokens that have a vowel")
    print(HEADER, flush=True)
    lines = []
    while (line := ranks.next(STEP_SECONDS, check)) is not None:
        lines.append(line)
        if "offload" in line:
            line["travel"] = travel(mount, a.served, line["version"])
        row(line, a.rollout, line.get("travel"))
    if not lines:
        raise Failed("the trainer ended without a step")
    print(f"    the first text:  {lines[0]['text']!r}\n    the last text:   {lines[-1]['text']!r}", flush=True)
    return lines


def demo(a, work, out):
    from world import Agent, Mount, at_end, free_port

    at_end(lambda: print("\n    all is ended: trainer, engine, mount, agent", flush=True))
    out.say("The trainer's Python package (pip install backends/python), an agent, a mount")
    package = os.path.join(work, "package")
    install(package)
    agent = Agent(*([] if a.served == MODEL else ["--derive", a.served]))
    mount = Mount(agent.url)
    print(f"    agent at {agent.url} and unix:{agent.sock}; mount at {mount.path}", flush=True)
    if a.served != MODEL:
        print(f"    the agent makes {a.served} of each version of {MODEL}; the engine is started on it, and switched", flush=True)
    port = free_port()  # the trainer is told it before the engine is there
    ranks = start_ranks(a, work, out, agent, mount, package, f"http://127.0.0.1:{port}")
    server = make_server(a, port, mount, package)
    check = start_engine(a, server, out, mount, ranks)
    lines = follow(a, out, mount, ranks, check)
    out.say("Is it as claimed?")
    holds = verdict(lines, a)
    tell_apart(lines, a)
    if a.update == "patch":
        holds = compare_pauses(a, out, mount, server.url, lines) and holds
    return 0 if holds else 1


def logs(work):
    for name in sorted(n for n in os.listdir(work) if n.endswith(".log")):
        with open(os.path.join(work, name), errors="replace") as f:
            print(f"--- the end of {name}\n{f.read()[-3000:]}", file=sys.stderr)


def run(a, work):
    from world import scope

    out, code = Printer(), 1
    try:
        with scope():
            try:
                check_machine(a.engine, a.trainer)
                code = demo(a, work, out)
                if code:
                    print("demo-rl: FAILED: a claim above does not hold", file=sys.stderr)
            except (Failed, AssertionError, OSError, subprocess.SubprocessError) as e:
                print(f"\ndemo-rl: FAILED{f' at {out.n}' if out.n else ''}: {e}", file=sys.stderr, flush=True)
                logs(work)
            except sandbox.Interrupted:
                print("\ndemo-rl: interrupted; all that was started is being ended", file=sys.stderr, flush=True)
                raise
    except (AssertionError, OSError) as e:
        print(f"demo-rl: FAILED at its end: {e}", file=sys.stderr)
        code = 1
    return code


def main():
    a = arguments()
    build = os.environ.setdefault("BUILD", os.path.join(ROOT, "build"))
    os.environ.setdefault("WSYNC", os.path.join(build, "wsync"))
    short = len(tempfile.gettempdir()) <= 40  # the paths of sockets have to be
    work = tempfile.mkdtemp(prefix="wsync-rl.", dir=None if short else "/tmp")
    os.environ.update(TESTDIR=work, TMPDIR=work, PYTHONDONTWRITEBYTECODE="1")
    for name in [n for n in os.environ if n.startswith("WSYNC_")]:
        del os.environ[name]
    sys.path += [os.path.join(ROOT, "tests"), os.path.join(ROOT, "tests/real")]
    sys.exit(sandbox.keep(work, lambda: run(a, work)))


if __name__ == "__main__":
    main()
