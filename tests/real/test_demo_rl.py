# timeout: 1500, takes: 200
"""`make demo-rl` with few steps: its claims hold; interrupted or killed, it leaves nothing behind."""
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import types

import pytest

from servers import need_real
from world import TESTDIR, at_end, wait_for

DEMO = os.path.join(os.environ["ROOT"], "mount-helpers/demo/demo-rl.py")
RUN_SECONDS, SAY_SECONDS, END_SECONDS = 600, 240, 120


def descendants(pid):
    parents = {}
    for p in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{p}/stat") as f:
            parents.setdefault(int(f.read().rsplit(")", 1)[1].split()[1]), []).append(int(p))
    found = list(parents.get(pid, []))
    for p in found:
        found += parents.get(p, [])
    return found


def running():
    """Processes that the demo has started, recognized by their environment."""
    found, mark = [], f"TESTDIR={TESTDIR}/wsync-rl.".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as f:
            if mark in f.read():
                found.append(int(pid))
    return found


class Demo:
    """The demo in its own process group, as a shell starts it."""

    def __init__(self, *args):
        self.said = ""
        self.process = subprocess.Popen([sys.executable, "-u", DEMO, *args], env=dict(os.environ, TMPDIR=TESTDIR), process_group=0,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        at_end(self.stop)

    def stop(self):
        """Like Ctrl-C; kills what does not end by itself."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        for pid in [*descendants(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_one(self, word):
        """kill -9 of the process with the word in its command line; returns whether there was one."""
        for pid in descendants(self.process.pid):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:
                if word in f.read():
                    os.kill(pid, signal.SIGKILL)
                    return True
        return False

    def hear(self, word, seconds):
        """Reads until the word was printed; None: to the end."""
        late = threading.Timer(seconds, self.stop)
        late.start()
        for line in self.process.stdout:
            self.said += line
            if word and word in line:
                break
        in_time = late.is_alive()
        late.cancel()
        assert in_time and (word is None or word in self.said), f"waited for {word or 'its end'}, {seconds} s at most:\n{self.said}"

    def ends(self, code, seconds=END_SECONDS):
        """It ends with that exit code, and nothing is left of it."""
        self.hear(None, seconds)
        assert self.process.wait(END_SECONDS) == code, f"it ended with {self.process.returncode}, not {code}:\n{self.said}"
        assert not running(), (running(), self.said)
        with open("/proc/self/mounts") as f:
            assert f"{TESTDIR}/wsync-rl." not in f.read(), self.said
        assert not [n for n in os.listdir(TESTDIR) if n.startswith("wsync-rl.")], os.listdir(TESTDIR)


def test_verdict():
    "each claim that does not hold fails the demo: a flat reward, a difference above noise, an undetected stale version"
    sys.path.insert(0, os.path.dirname(DEMO))
    spec = importlib.util.spec_from_file_location("demo_rl", DEMO)
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    a = types.SimpleNamespace(steps=4, rollout="bf16")

    def verdict(change=lambda lines: None):
        lines = [{"version": v, "reward": 0.2 + 0.1 * v, "tokens": 1024, "difference": 0.04, "logit": 5.0} for v in range(1, 6)]
        lines.insert(3, dict(lines[3], held=True, serving="3", difference=0.9))
        change(lines)
        return demo.verdict(lines, a)

    assert verdict()
    assert not verdict(lambda lines: lines[5].update(reward=0.31))
    for wrong in (0.2, float("nan"), float("inf")):
        assert not verdict(lambda lines: lines[2].update(difference=wrong)), wrong
    assert not verdict(lambda lines: lines[2].update(logit=float("inf")))
    assert not verdict(lambda lines: lines[3].update(difference=0.05))
    assert not verdict(lambda lines: lines[3].update(serving="4"))
    assert not verdict(lambda lines: lines[4].update(version=3))


def test_claims():
    "four steps of a real run: switched, sampled, a withheld version is detected, the reward rises"
    need_real("vllm")
    demo = Demo("--steps", "4", "--learning-rate", "1e-2")
    demo.ends(0, RUN_SECONDS)
    rows = [line.strip() for line in demo.said.splitlines() if line.strip().startswith(("yes ", "NO ")) or " instead of " in line or "HELD" in line]
    print(*("# " + line for line in rows), sep="\n", flush=True)
    assert demo.said.count("    yes  ") == 4 and "HELD BACK" in demo.said, demo.said


def test_fp8():
    "an engine that samples with the agent's FP8 view: switched at each step, it has the view's weights, and the reward rises"
    need_real("vllm")
    demo = Demo("--rollout", "fp8")
    demo.ends(0, RUN_SECONDS)
    assert demo.said.count("    yes  ") == 4 and "actor@fp8-channel-ct/1" in demo.said, demo.said
    print(*("# " + line.strip() for line in demo.said.splitlines() if line.strip().startswith(("yes ", "(the policy"))), sep="\n", flush=True)


def test_patch():
    "an engine whose parameters are patched: it has the trainer's weights as before, and all switches are patches"
    need_real("vllm")
    if os.environ.get("CI"):
        pytest.skip("it starts vLLM for one more run of the demo: minutes that the hour of CI does not have")
    demo = Demo("--update", "patch", "--steps", "4", "--learning-rate", "1e-2")
    demo.ends(0, RUN_SECONDS)
    assert demo.said.count("    yes  ") == 5 and "4 of 4 switches were patches" in demo.said, demo.said
    print(*("# " + line.strip() for line in demo.said.splitlines() if "patched" in line or "loaded whole" in line), sep="\n", flush=True)


def test_megatron():
    "Megatron-core's distributed optimizer, whose gathers come late, trains: each version is the one that its optimizer has just made"
    need_real("vllm")
    need_real("megatron")
    if os.environ.get("CI"):
        pytest.skip("it starts vLLM for one more run of the demo: minutes that the hour of CI does not have")
    demo = Demo("--trainer", "megatron", "--steps", "4", "--learning-rate", "1e-2")
    demo.ends(0, RUN_SECONDS)
    assert demo.said.count("    yes  ") == 4 and "Two ranks of Megatron-core" in demo.said, demo.said


def test_interrupted():
    "Ctrl-C while the engine starts: 130, and nothing is left"
    need_real("vllm")
    demo = Demo()
    demo.hear("vLLM starts", SAY_SECONDS)
    os.killpg(demo.process.pid, signal.SIGINT)
    demo.ends(130)
    assert "interrupted" in demo.said, demo.said


def test_engine_ends():
    "an engine that ends is reported at once, with the ends of the logs, and nothing is left"
    need_real("vllm")
    demo = Demo()
    demo.hear("vLLM starts", SAY_SECONDS)
    wait_for(lambda: demo.kill_one(b"vllm.entrypoints"), "the engine's process")
    demo.ends(1)
    assert "vLLM ended by itself, with -9" in demo.said and "the end of vllm" in demo.said, demo.said


def test_killed():
    "the cleanup process is killed while torch is loaded: nothing is left either"
    need_real("vllm")
    demo = Demo()
    demo.hear("Two ranks", SAY_SECONDS)
    os.kill(next(pid for pid in descendants(demo.process.pid)), signal.SIGKILL)
    demo.ends(137)


def test_bad_options():
    "invalid options are refused before anything is started"
    need_real("vllm")
    for options in (("--steps", "2"), ("--hold", "0"), ("--steps", "5", "--hold", "6"), ("--learning-rate", "nan"), ("--engine", "x"), ("--trainer", "x"),
                    ("--rollout", "fp8", "--engine", "sglang"), ("--update", "patch", "--engine", "sglang"), ("--update", "patch", "--rollout", "fp8")):
        demo = Demo(*options)
        demo.ends(2)
        assert "error: " in demo.said, demo.said
