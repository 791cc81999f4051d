"""Real vLLM and SGLang servers on a folder: started, queried, stopped, killed; a proxy between them and wsync (Proxy), and requests during
switches (Stream). All of it ends with the test's stack."""
import contextlib
import http.client
import http.server
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from package import install
from world import at_end, free_port, need_fuse, unique, wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
START_SECONDS = 480  # of three that start at once, beside other work; so much for each start must fit in a file's limit
ASK_SECONDS = 90
# The requests to every version: log probabilities of these tokens, and of the generated ones.
PROMPTS = ([5, 17, 300, 42, 7], [9, 8, 7], list(range(20, 60)))
CLOSE = 0.1  # of log probabilities: other batches round differently; versions differ by whole numbers


def need_real(package):
    need_fuse()
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: PyPI could not be reached, or `.ci/deps real` has not run")


def distance(a, b):
    """The largest difference of two answers; infinite if their lengths differ."""
    if len(a) != len(b):
        return float("inf")
    return max((abs(x - y) for x, y in zip(a, b)), default=0.0)


def freeze(pids, seconds):
    """Stops the processes; they are continued at the end."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    threading.Timer(seconds, lambda: [os.kill(pid, signal.SIGCONT) for pid in pids]).start()


class Refused(Exception):
    """The server answered with an error."""


class Server:
    """One server. A subclass defines how it is started (command, environment) and queried (score, complete)."""

    def __init__(self, folder, *options, port=None):
        self.port, self.key = port or free_port(), None
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = unique(self.kind) + ".log"
        home = unique("home")
        os.makedirs(home)
        env = dict(os.environ, HOME=home, TMPDIR=home, HF_HUB_OFFLINE="1", DO_NOT_TRACK="1", CUDA_VISIBLE_DEVICES="",
                   OMP_NUM_THREADS="1", TORCH_COMPILE_DISABLE="1", PYTHONUNBUFFERED="1") | self.environment()
        self.started = time.monotonic()
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([sys.executable, *self.command(folder), *options], env=env, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)
        at_end(self.stop)

    def healthy(self):
        with contextlib.suppress(OSError, Refused, http.client.HTTPException):
            self.call("/health", seconds=5)
            return True
        return False

    def wait(self):
        """Waits until it answers; returns itself."""
        try:
            wait_for(lambda: self.healthy() or not self.alive(), "the server", START_SECONDS)
            if not self.alive():
                raise AssertionError(f"it ended with {self.process.returncode}")
        except AssertionError as e:
            with open(self.log_path, errors="replace") as f:
                raise AssertionError(f"{' '.join(self.process.args)}: {e}\n{f.read()[-6000:]}") from None
        print(f"# {self.kind} on {self.process.args[self.process.args.index(self.folder_option) + 1]}: "
              f"healthy after {time.monotonic() - self.started:.0f} s", flush=True)
        return self

    def alive(self):
        return self.process.poll() is None

    def workers(self):
        """Ids of all processes that the server started, except Python's resource trackers."""
        parents, trackers = {}, set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as f, open(f"/proc/{pid}/cmdline", "rb") as line:
                parents.setdefault(int(f.read().rsplit(")", 1)[1].split()[1]), []).append(int(pid))
                if b"resource_tracker" in line.read():
                    trackers.add(int(pid))
        found = list(parents.get(self.process.pid, []))
        for pid in found:
            found += parents.get(pid, [])
        return [pid for pid in found if pid not in trackers]

    def shared(self):
        """Named shared memory that its processes have mapped; killed processes leave it behind."""
        found = set()
        for pid in [*self.workers(), self.process.pid]:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as f:
                found |= {line.split(None, 5)[5].strip() for line in f if " /dev/shm/" in line}
        return found

    def kill(self, gently=False):
        """kill -9, workers too; gently: only processes that do not end by themselves."""
        if not self.alive():
            return  # its process ids may have been reused by now
        workers, shared = self.workers(), self.shared()
        if gently:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) == os.getpgrp():
                    os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        for path in shared:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def stop(self):
        self.kill(gently=True)

    def call(self, path, body=None, seconds=ASK_SECONDS, post=False):
        """The reply, parsed as JSON if possible."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        with contextlib.closing(connection):
            data = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json"}
            if self.key:
                headers["Authorization"] = f"Bearer {self.key}"
            connection.request("POST" if post or data else "GET", path, data, headers)
            reply = connection.getresponse()
            text = reply.read().decode()
        if reply.status != 200:
            raise Refused(f"{path}: {reply.status} {text[:600]}")
        try:
            return json.loads(text)
        except ValueError:
            return text

    def answers(self):
        """All answers of a version, for a bitwise comparison: requests are sent one at a time."""
        return [p for prompt in PROMPTS for p in [*self.score(prompt), *self.complete(prompt, 8)[1]]]


class SGLang(Server):
    kind, package, folder_option = "sglang", "sglang", "--model-path"
    lossless, load_path = ("in_place", "retract"), "/update_weights_from_disk"
    pauses = ("/pause_generation", load_path)

    def environment(self):
        return {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": os.path.join(HERE, "stand_in")}

    def command(self, folder):
        return ["-m", "sglang.launch_server", "--model-path", folder, "--host", "127.0.0.1", "--port", str(self.port),
                "--device", "cpu", "--dtype", "bfloat16", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
                "--grammar-backend", "none", "--disable-cuda-graph", "--disable-overlap-schedule", "--context-length", "256",
                "--max-total-tokens", "2048", "--max-running-requests", "8", "--mem-fraction-static", "0.2",
                "--skip-server-warmup", "--sleep-on-idle"]  # idle ones would use a core each

    uncached = ("--disable-radix-cache",)  # for bitwise equality: a cached prefix is computed in other batches
    cached = ()

    def generate(self, prompt, tokens, **more):
        return self.call("/generate", {"input_ids": prompt, "return_logprob": True, **more, "sampling_params": {
            "temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}})

    def score(self, prompt):
        """Log probabilities of the prompt's tokens except the first."""
        return [p for p, *_ in self.generate(prompt, 1, logprob_start_len=0)["meta_info"]["input_token_logprobs"][1:]]

    def complete(self, prompt, tokens):
        """The generated tokens and their log probabilities."""
        reply = self.generate(prompt, tokens)
        assert reply["meta_info"]["finish_reason"]["type"] == "length", reply["meta_info"]
        return reply["output_ids"], [p for p, *_ in reply["meta_info"]["output_token_logprobs"]]

    def serves(self):
        return self.call("/model_info")["weight_version"].split("@")[0]


class VLLM(Server):
    kind, package, folder_option = "vllm", "vllm", "--model"
    lossless, load_path = ("keep", "wait"), "/collective_rpc"
    pauses = ("/pause", load_path)

    def environment(self):
        return {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_NO_USAGE_STATS": "1"}

    def command(self, folder):
        # `vllm serve` does not start in the CPU build: it requires a package named vllm.
        return ["-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name", "m",
                "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "bfloat16", "--enforce-eager",
                "--max-model-len", "256", "--max-num-seqs", "8"]

    uncached = ("--no-enable-prefix-caching",)
    cached = ("--enable-prefix-caching",)

    def generate(self, prompt, tokens, **more):
        return self.call("/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                                             "ignore_eos": True, "return_tokens_as_token_ids": True, **more})["choices"][0]

    def score(self, prompt):
        reply = self.generate(prompt, 1, prompt_logprobs=0)["prompt_logprobs"]
        return [of[str(token)]["logprob"] for token, of in zip(prompt[1:], reply[1:])]

    def complete(self, prompt, tokens):
        reply = self.generate(prompt, tokens, logprobs=0)
        assert reply["finish_reason"] == "length", reply
        said = reply["logprobs"]
        return [int(t.split(":")[1]) for t in said["tokens"]], said["token_logprobs"]

    def serves(self):
        return self.call("/weight_info")["weight_version"].split("@")[0]

    def reload(self, folder):
        """What a user without wsync's switch does. Nothing is resumed after a failed load."""
        self.call("/pause?mode=keep", post=True)
        self.call("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}, "timeout": 60})
        self.call("/resume", post=True)


def installed():
    """A folder for PYTHONPATH with the package as pip installs it, with entry points; vLLM's own environment is not changed."""
    for module in ("cffi", "setuptools"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: PyPI could not be reached, or `.ci/deps real` has not run")
    target = unique("installed")
    pip = install(target)
    assert pip.returncode == 0, pip.stdout
    return target


class WithWsync(VLLM):
    """vLLM with the package on its path."""

    target = None
    more = {}

    def environment(self):
        return {**super().environment(), "PYTHONPATH": self.target, **self.more}

    def update(self, info):
        """A trainer's update, paused as required. The server is resumed in any case: every state must be able to serve."""
        self.call("/pause?mode=keep", post=True)
        try:
            self.call("/start_weight_update", post=True)
            self.call("/update_weights", {"update_info": info})
            self.call("/finish_weight_update", {"weight_version": str(info.get("target_version"))})
        finally:
            self.call("/resume", post=True)

    def rpc(self, method, **kwargs):
        """The result of each worker."""
        return self.call("/collective_rpc", {"method": method, "kwargs": kwargs, "timeout": 60})["results"]

    def load(self, path, **kwargs):
        self.call("/pause?mode=keep", post=True)
        try:
            return self.rpc("wsync_load", path=path, **kwargs)
        finally:
            self.call("/resume", post=True)

    def mapped(self):
        """Checkpoint files that its processes have mapped."""
        found = set()
        for pid in [*self.workers(), self.process.pid]:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as f:
                found |= {line.split(None, 5)[5].strip() for line in f if ".safetensors" in line}
        return found


class SGLangWithWsync(SGLang):
    """SGLang with the package on its path: it finds the plug-in by its entry point."""

    target = None
    more = {}

    def environment(self):
        env = super().environment()
        return {**env, "PYTHONPATH": os.pathsep.join((self.target, env["PYTHONPATH"])), **self.more}


class Proxy:
    """A proxy before a server: records each path, and calls before[path] before it passes such a request on. key: replaces the key of POST
    requests."""

    def __init__(self, server, before=None):
        self.server, self.kind, self.before, self.seen, self.key = server, server.kind, {} if before is None else before, [], None
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = ASK_SECONDS

            def do_GET(self):
                path = self.path.split("?")[0]
                proxy.seen.append(path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.before.get(path, lambda: None)()
                upstream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=ASK_SECONDS)
                self.close_connection = True  # also for a server that died
                headers = {name: self.headers[name] for name in ("Content-Type", "Authorization") if self.headers[name]}
                if proxy.key and self.command == "POST":
                    headers["Authorization"] = f"Bearer {proxy.key}"
                with contextlib.closing(upstream), contextlib.suppress(OSError, http.client.HTTPException):
                    upstream.request(self.command, self.path, body or None, headers)
                    reply = upstream.getresponse()
                    text = reply.read()
                    self.send_response(reply.status)
                    self.send_header("Content-Type", reply.headers.get("Content-Type", "text/plain"))
                    self.send_header("Content-Length", str(len(text)))
                    self.send_header("Connection", "close")
                    self.end_headers()
                    self.wfile.write(text)

            do_POST = do_GET

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        thread = threading.Thread(target=self.http.serve_forever, args=(0.1,))
        thread.start()
        at_end(lambda: (self.http.shutdown(), thread.join(), self.http.server_close()))


class Stream:
    """Continuous requests, short and long ones, until end(). Each is recorded with its time."""

    LONG = 40  # tokens: some hundred milliseconds, longer than a switch

    def __init__(self, server):
        self.server, self.over = server, threading.Event()
        self.scores, self.texts, self.lost = [], [], []
        self.threads = [threading.Thread(target=self.work, args=(one,)) for one in (self.ask_score, self.ask_text)]
        for t in self.threads:
            t.start()
        at_end(self.end)

    def work(self, one):
        while not self.over.is_set():
            start = time.monotonic()
            try:
                one(start)
            except Exception as e:  # whatever the error, the answer is lost
                self.lost.append(repr(e))
            time.sleep(0.01)

    def ask_score(self, start):
        answer = self.server.score(PROMPTS[2])
        self.scores.append((start, time.monotonic(), answer))

    def ask_text(self, start):
        tokens, answer = self.server.complete(PROMPTS[0], self.LONG)
        assert len(tokens) == len(answer) == self.LONG
        self.texts.append((start, time.monotonic(), tokens, answer))

    def settle(self):
        """Waits until a text and some scores were requested and answered after the call, however slow the server is, or one is lost."""
        now = time.monotonic()
        answered = lambda of: sum(start >= now for start, *_ in list(of))
        wait_for(lambda: self.lost or answered(self.scores) >= 2 and answered(self.texts), "answers between two switches",
                 2 * ASK_SECONDS)  # of the text in progress, and the next

    def end(self):
        self.over.set()
        for t in self.threads:
            t.join(ASK_SECONDS)
            assert not t.is_alive(), "a request got no answer"
