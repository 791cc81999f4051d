# timeout: 480, takes: 20
"""README.md and the manuals say the truth: each command in them is run, each name that the code knows is in one.

A block of commands is one that is indented in README.md, or between ``` in a manual's EXAMPLES. The blocks of a text are run one
after the other as they stand, by `sh -e` (by Python where a block begins with `import`), on a host of its own: namespaces in which
the folders /wsync, /etc/wsync, /run, /data and /var/lib are private, and 10.0.0.1 to 10.0.0.9 are this machine's. A comment in the
text (`; ` in a manual, `<!-- -->` in README.md) says what is there before, and which block cannot run here; that one's syntax is looked at:

    world: agent mount engine vllm     versions 1 and 2 of actor are published; the mount is /wsync; the engines load /wsync/actor/1
    not run: REASON                    on the line before a block; REASON is one of REASONS
"""
import ast
import glob
import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from adapters import adapter
from world import BUILD, SLOW, TESTDIR, WSYNC, Agent, Engine, Mount, checkpoint, need_fuse, scope, step, wsync

ROOT = os.environ["ROOT"]
MANUALS = sorted(glob.glob(os.path.join(ROOT, "mount-helpers/manual/*.scd")))
README = os.path.join(ROOT, "README.md")
REASONS = ("it installs", "it wants a GPU", "it wants a real engine", "it wants another host", "it wants systemd", "it wants torch")
TENSORS = {"model.embed_tokens.weight": ("BF16", [512, 64]), "model.norm.weight": ("BF16", [64]),
           "model.layers.0.self_attn.q_proj.weight": ("BF16", [64, 64])}


def title(path):
    return os.path.basename(path).removesuffix(".scd")


def read(path):
    with open(path) as f:
        return f.read()


# --- the blocks of a text ---

IN_README = re.compile(r"(?:^<!-- not run: ([^\n]*) -->\n)?^((?:    .*\n|\n(?=    ))+)", re.M)
IN_EXAMPLES = re.compile(r"(?:^; not run: ([^\n]*)\n)?^```\n(.*?)^```\n", re.M | re.S)


class Block:
    def __init__(self, line, reason, text):
        self.line, self.reason, self.text = line, reason, textwrap.dedent(text)
        self.is_python = self.text.startswith("import ")


def world_of(path):
    found = re.search(r"^; world: (.*)$", read(path), re.M)
    return found[1].split() if found else []


def blocks_of(path):
    text = read(path)
    if path == README:
        found = IN_README.finditer(text)
    elif (begin := text.find("\n# EXAMPLES\n")) >= 0:
        found = IN_EXAMPLES.finditer(text, begin, text.index("\n# ", begin + 1))
    else:
        found = ()
    blocks = [Block(text.count("\n", 0, m.start(2)) + 1, m[1], m[2]) for m in found]
    for b in blocks:
        assert b.reason in (None, *REASONS), f"{title(path)}, line {b.line}: '{b.reason}' is no known reason"
    return blocks


# --- a host of its own, and what is on it ---


def leave_mounts():
    """Unmounts the namespace's copies of all mounts, which would keep those of other tests alive. A copy goes by itself when a test
    removes the folder that it is mounted on."""
    def found():
        with open("/proc/self/mounts") as f:
            return [line.split()[1].encode().decode("unicode_escape") for line in f if line.split()[2].startswith("fuse")]

    for path in reversed(found()):
        done = subprocess.run(["umount", "-i", "-l", path], check=False)
        assert done.returncode == 0 or path not in found(), path


def enter_host():
    """Changes this process's root to a folder with the machine's own folders, except those that the texts write to."""
    leave_mounts()
    root = os.path.join(TESTDIR, "root")
    os.mkdir(root)
    subprocess.run(["mount", "-t", "tmpfs", "host", root], check=True)
    for name in os.listdir("/"):
        source, target = f"/{name}", f"{root}/{name}"
        if os.path.islink(source):
            os.symlink(os.readlink(source), target)
        elif os.path.isdir(source) and name not in ("etc", "run", "wsync", "data"):
            os.mkdir(target)
            subprocess.run(["mount", "--rbind", source, target], check=True)
    shutil.copytree("/etc", f"{root}/etc", symlinks=True)
    with open(f"{root}/etc/hosts", "w") as f:
        f.write("127.0.0.1 localhost\n10.0.0.1 node0\n10.0.0.2 node1\n10.0.0.3 trainer\n10.0.0.7 rack\n")
    for name in ("lib", "cache", "log"):
        subprocess.run(["mount", "-t", "tmpfs", "host", f"{root}/var/{name}"], check=True)
        os.mkdir(f"{root}/var/{name}/nginx")
    for name in ("run", "data", "wsync"):
        os.mkdir(f"{root}/{name}")
    os.makedirs(f"{root}/etc/wsync", exist_ok=True)
    for name, word in (("token", "a-secret-of-the-fleet"), ("sglang.key", "a-key")):
        with open(f"{root}/etc/wsync/{name}", "w") as f:
            f.write(word + "\n")
    os.chroot(root)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for i in range(1, 10):
        subprocess.run(["ip", "addr", "add", f"10.0.0.{i}/32", "dev", "lo"], check=True)


def start_world(words):
    """Creates checkpoint-1, adapter-1 and the other folders that the texts name, and starts what their first block needs."""
    here = os.path.join(TESTDIR, "here")
    os.mkdir(here)
    os.chdir(here)
    checkpoint(TENSORS, folder="checkpoint-1", seed=1)
    adapter(folder="adapter-1")
    for i in (2, 3, 4):
        os.rename(step(f"checkpoint-{i - 1}", seed=i), f"checkpoint-{i}")
    if "agent" in words:
        os.mkdir("/run/wsync")
        agent = Agent(port=18861, sock="/run/wsync/agent.sock", makes_token=True)
        for i in (1, 2):
            agent.publish("actor", i, f"checkpoint-{i}")
    if "mount" in words:
        mount = Mount(agent.url, "listen=127.0.0.1:18862", path="/wsync")
        mount.wait_version("actor", 2)
    if "engine" in words:
        Engine("/wsync/actor/1", port=30000)
    if "vllm" in words:
        Engine("/wsync/actor/1", api="vllm", port=8000)
    return dict(os.environ, PATH=f"{here}/bin:{os.environ['PATH']}", WSYNC_LOG="warn", HOME=here)


def put_on_path(environment):
    """Puts the command, the tests' interpreter and the Python package on the path under their usual names."""
    os.mkdir("bin")
    os.symlink(WSYNC, "bin/wsync")
    with open("bin/python3", "w") as f:  # with a link it would lose its environment
        f.write(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    os.chmod("bin/python3", 0o755)
    os.symlink(os.path.join(ROOT, "mount-helpers"), "mount-helpers")
    environment.update(PYTHONPATH=os.path.join(ROOT, "backends/python"), PYTHONDONTWRITEBYTECODE="1", LD_LIBRARY_PATH=BUILD)


def run_block(path, block, environment):
    command = [sys.executable, "-c"] if block.is_python else ["sh", "-e", "-c"]
    with open("output", "w+") as output:  # not a pipe, which background processes would keep open
        done = subprocess.run([*command, block.text], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment,
                              timeout=60 * SLOW)
        output.seek(0)
        assert done.returncode == 0, f"{title(path)}, line {block.line}: this ended with {done.returncode}:\n{block.text}\n{output.read()}"


def run_blocks(path):
    """Within the namespaces: runs all blocks that can run here; an error names the line."""
    enter_host()
    with scope():
        environment = start_world(world_of(path))
        put_on_path(environment)
        for block in blocks_of(path):
            if block.reason and block.is_python:
                ast.parse(block.text)
            elif block.reason:
                subprocess.run(["sh", "-n"], input=block.text, text=True, check=True, timeout=20)
            else:
                run_block(path, block, environment)
    os._exit(0)  # processes left by the blocks end with the namespace


def in_host(path):
    need_fuse()
    if subprocess.run(["unshare", "-mnp", "--fork", "true"], capture_output=True).returncode:
        pytest.skip("no namespaces on this machine")
    folder = os.path.join(TESTDIR, title(path))
    os.mkdir(folder)
    done = subprocess.run(["unshare", "-mnp", "--fork", "--kill-child", "--mount-proc", sys.executable, os.path.abspath(__file__), path],
                          env=dict(os.environ, TESTDIR=folder, PYTHONPATH=os.path.join(ROOT, "tests")), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=120 * SLOW)
    assert done.returncode == 0, done.stdout


TEXTS = [README, *MANUALS]


@pytest.mark.parametrize("path", [p for p in TEXTS if any(not b.reason for b in blocks_of(p))], ids=title)
def test_commands(path):
    "the blocks of commands run without failure"
    in_host(path)


@pytest.mark.parametrize("path, reason", [(p, r) for p in TEXTS for r in sorted({b.reason for b in blocks_of(p) if b.reason})])
def test_left_out(path, reason):
    "blocks that cannot run here are named, with the reason"
    pytest.skip(f"{sum(b.reason == reason for b in blocks_of(path))} of its blocks are not run here: {reason}")


# --- the form of the texts ---


def test_rendering():
    "every manual is rendered without a warning, by scdoc and by groff"
    if not shutil.which("scdoc") or not shutil.which("groff"):
        pytest.skip("scdoc or groff is not installed")
    assert len(MANUALS) == 16, MANUALS
    for path in MANUALS:
        with open(path, "rb") as f:
            roff = subprocess.run(["scdoc"], stdin=f, capture_output=True, timeout=20)
        assert roff.returncode == 0 and not roff.stderr, f"{path}: {roff.stderr.decode()}"
        page = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-t"], input=roff.stdout, capture_output=True, timeout=20)
        assert page.returncode == 0 and not page.stderr, f"{path}: {page.stderr.decode()}"
        name, section = title(path).rsplit(".", 1)
        assert read(path).startswith(f'{name}({section}) "wsync" "wsync manual"\n\n# NAME\n\n{name} - '), path


def test_links():
    "every manual or command page that is named exists, and so does each file that README.md links to"
    pages = {title(p).replace(".", "(") + ")" for p in MANUALS} | {"wsync(1)"}
    pages |= {f"wsync-{c}(1)" for c in wsync("help", "--list").stdout.split()}
    for path in [README, *MANUALS]:
        named = set(re.findall(r"\bwsync[a-z-]*\(\d\)", read(path).replace("*", "")))
        assert named <= pages, f"{path} names {named - pages}"
    for link in re.findall(r"\]\(([^)]*)\)", read(README)):
        assert os.path.exists(os.path.join(ROOT, link)), f"README.md links to {link}, which is not there"


def test_length():
    "README.md is short: 150 lines, 1,100 words, 100 columns"
    lines = read(README).splitlines()
    words = sum(len(line.split()) for line in lines)
    assert len(lines) <= 150 and words <= 1100, f"it has {len(lines)} lines and {words} words"
    assert max(map(len, lines)) <= 100, max(lines, key=len)


# --- names that the code defines ---

NO_ROUTES = {"/v1", "/v1/local", "/abort", "/path", "/p", "/s"}  # parts of routes, and words of messages


def say(names, *manuals):
    """Asserts that each name occurs in one of these manuals as a separate word."""
    text = "\n".join(read(p) for p in MANUALS if title(p) in manuals or not manuals).replace("*", "").replace("\\_", "_")
    lacking = [n for n in sorted(names) if not re.search(rf"(?<![\w-]){re.escape(n)}(?![\w-])", text)]
    assert names and not lacking, f"{', '.join(manuals) or 'the manuals'} do not name {lacking}"


def sources(*ends):
    for folder in ("transports", "backends", "fs", "mount-helpers"):
        for place, _, names in os.walk(os.path.join(ROOT, folder)):
            for name in names:
                if name.endswith(ends):
                    yield read(os.path.join(place, name))


def test_control():
    "each control command, option, flag, file, attribute and metric of a mount is in a manual"
    need_fuse()
    agent = Agent()
    mount = Mount(agent.url)
    agent.publish("actor", 1, checkpoint(TENSORS))
    mount.wait_version("actor", 1)
    usages = [line for file in ("ctl", "actor/ctl") for line in mount.text(file).splitlines() if not line.startswith(" ")]
    assert len(usages) > 15, usages
    for usage in usages:
        words = re.match(r"[a-z]+( (add|remove|sync)\b)?", usage)[0]
        say({words}, "wsync-control.7")
        say({words, *re.findall(r"\b([a-z][a-z-]+)=", usage), *re.findall(r"\[([a-z-]+)\]", usage)}, "wsync-control.7", "wsync-engines.7")
    files = {*os.listdir(mount.file()), *os.listdir(mount.file("actor")), *os.listdir(mount.file("actor/1/.wsync"))} - {"actor", "1"}
    say({*files, "tensors"}, "wsync-control.7")
    tensor = mount.file("actor/1/tensors/model.norm.weight")
    say(set(os.listxattr(tensor)), "wsync-control.7")
    say(set(re.findall(r"^# HELP (wsync_\w+)", mount.text("metrics"), re.M)), "wsync-control.7")
    keys = {line.split(" ")[0].split(".")[0] for file in ("status", "actor/status") for line in mount.text(file).splitlines()}
    say(keys, "wsync-control.7")
    say(set(re.findall(r" ([a-z_-]+)=", mount.status("actor")["version.1"])), "wsync-control.7")


def test_options():
    "each mount option is in wsync-control(7)"
    lines = wsync("mount", "--list-options").stdout.splitlines()
    say({re.split(r"[= ]", line)[0] for line in lines}, "wsync-control.7")


def test_events():
    "each event's name is in wsync-control(7)"
    text = "\n".join(sources(".c"))
    say(set(re.findall(r'_event\([^;"]*"([a-z][a-z-]+) model=', text)), "wsync-control.7")


def test_served():
    "each metric and each HTTP route of agents, mounts and AstraFlow's listeners is in a manual"
    text = "\n".join(sources(".c"))
    say(set(re.findall(r"# TYPE (wsync_[a-z_]+)[ \\]", text)) | {"wsync_agent_versions_published_total"}, "wsync-api.5")
    paths = {p.rstrip("/") for p in re.findall(r'"(/[a-z_0-9][a-z_/0-9{}-]*)[?"]', text)} - NO_ROUTES
    paths = {p for p in paths if p.split("/")[1] not in ("dev", "proc", "sys", "var")}
    assert {"/healthz", "/metrics", "/v1/models", "/v1/release", "/model_info"} <= paths, paths
    say(paths)
    verbs = set(re.findall(r'\{WS_API_\w+, "([a-z]+)"\}', text)) | set(re.findall(r'strcmp\((?:r->)?(?:q->)?verb, "([a-z]+)"\)', text))
    assert {"manifest", "files", "mounts", "wanted", "broadcast", "node"} <= verbs, verbs
    say(verbs, "wsync-api.5")
    ranks = set(re.findall(r'WS_RANK_ROUTE\("([a-z/]+)", ', text))
    assert {"register", "gpu/open"} <= ranks, ranks
    say({f"/v1/local/{r}" for r in ranks}, "wsync-api.5")


def test_environment():
    "each environment variable that wsync reads is in wsync(7)"
    text = "\n".join(sources(".c", ".py"))
    names = set(re.findall(r'"(WSYNC_[A-Z_]+)"', text))
    assert {"WSYNC_AGENT", "WSYNC_LOG", "WSYNC_STRATEGY"} <= names, names
    say(names, "wsync.7")


def test_exit_statuses():
    "umount's exit status 3 is in its manual, below the others"
    with open(os.path.join(BUILD, "man/wsync-umount.1")) as f:
        statuses = f.read().split(".SH EXIT STATUS\n")[1].split(".SH")[0].splitlines()
    assert len(statuses) == 2 and statuses[1].startswith("3: ") and "daemon" in statuses[1], statuses


if __name__ == "__main__":
    run_blocks(sys.argv[1])
