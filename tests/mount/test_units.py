# beside others
# timeout: 150, takes: 20
"""systemd's units: how much they leave open, and that agent and mount do all their work with the rest closed."""
import re
import shutil
import sys

import pytest

from world import *

UNITS = ROOT + "/mount-helpers/systemd"
AGENT, MOUNT = UNITS + "/wsync-agent.service", UNITS + "/wsync-mount@.service"
TENSORS = {f"layer.{i}.weight": ("BF16", [512, 1024]) for i in range(9)}


def need_analyze():
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")


def exposure(unit):
    """systemd's figure for a unit, from 0 to 10, and {setting: whether it is as closed as can be}."""
    need_analyze()
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", unit], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=60)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze has no --offline")
    figure = re.search(r"Overall exposure level for .*: ([\d.]+)", done.stdout)
    assert figure, (done.stdout, done.stderr)
    return float(figure.group(1)), {m.group(2): m.group(1) == "✓" for m in re.finditer(r"^(✓|✗) (\S+)", done.stdout, re.M)}


def with_dropin(name):
    """The agent's unit with one of its drop-ins."""
    place = unique("units")
    os.makedirs(place + "/wsync-agent.service.d")
    shutil.copy(AGENT, place)
    shutil.copy(f"{UNITS}/{name}", place + "/wsync-agent.service.d")
    return place + "/wsync-agent.service"


def test_exposure():
    "systemd-analyze security says at most 3.0 of the agent's unit, and at most 5.0 of the mount's"
    assert exposure(AGENT)[0] <= 3.0, exposure(AGENT)
    assert exposure(MOUNT)[0] <= 5.0, exposure(MOUNT)


def test_gpu():
    "gpu.conf opens devices, IPC and memory that is written and run, and nothing else that is closed without it"
    closed = exposure(AGENT)[1]
    opened = {name for name, is_closed in exposure(with_dropin("gpu.conf"))[1].items() if not is_closed and closed[name]}
    assert {"PrivateDevices=", "MemoryDenyWriteExecute="} <= opened <= {
        "PrivateDevices=", "PrivateIPC=", "MemoryDenyWriteExecute=", "ProtectClock=", "DeviceAllow=",
        "CapabilityBoundingSet=~CAP_IPC_LOCK"}, opened
    with open(UNITS + "/gpu.conf") as f:
        text = f.read()
    assert "\nPrivateIPC=no\n" in text and "\nLimitMEMLOCK=infinity\n" in text, text


class Confined:
    """Of a unit: a process under its restrictions, which may write to the test's folder."""

    unit = AGENT

    @property
    def prefix(self):
        return (sys.executable, ROOT + "/tests/unit_sandbox.py", self.unit, TESTDIR)


class ConfinedAgent(Confined, Agent):
    pass


class ConfinedMount(Confined, Mount):
    unit = MOUNT


def need_sandbox(unit):
    need_analyze()
    done = subprocess.run([sys.executable, ROOT + "/tests/unit_sandbox.py", unit, TESTDIR, "/bin/true"], text=True, stderr=subprocess.PIPE,
                          timeout=60)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


def use(agent, archive=None):
    """Steps over all of the ways of a trainer's node: shared memory, HTTP, deltas, a third slot, an archive."""
    folders = {1: checkpoint(TENSORS, seed=1)}
    for version in range(1, 5):
        folders[version] = folders.get(version) or step(folders[version - 1], version, share=0.004)
        agent.publish("actor", version, folders[version])
        for mount in agent.mounts:
            mount.wait_version("actor", version)
            assert tensors_of(mount.file("actor", version, "model.safetensors")) == tensors_of(folders[version] + "/model.safetensors")
    if archive:
        wait_for(lambda: os.path.exists(archive + "/v1/actor/4/manifest"), "version 4 in the archive")
        assert os.stat(archive + "/v1/actor/4/manifest").st_mode & 0o777 == 0o640


def test_agent():
    "an agent with no more than its unit allows publishes, lends memory, serves, makes deltas and archives"
    need_fuse()
    need_sandbox(AGENT)
    archive, token = unique("archive"), unique("token")
    with open(token, "w") as f:
        f.write("a-token-of-the-unit\n")
    os.chmod(token, 0o600)
    agent = ConfinedAgent("--slots", "3", "--archive", archive, "--archive-every", "2", "--token-file", token, "--group", "nogroup",
                          "--state", unique("state"), "--astraflow", f"127.0.0.1:{free_port()}", "--nice", "5")
    agent.mounts = [Mount(f"unix:{agent.sock}"), Mount(agent.url, f"token-file={token}")]
    use(agent, archive)
    assert not re.search(r"no huge-page tmpfs|permi|denied|Read-only|^error ", agent.text(), re.M), agent.text()
    with open(f"/proc/{agent.pid}/status") as f:
        assert "\nCapEff:\t0000000000000000\n" in f.read()


def test_mount():
    "a mount with no more than its unit allows shares memory, pulls, makes deltas, switches an engine, and unmounts"
    need_fuse()
    need_sandbox(MOUNT)
    agent = Agent("--slots", "3")
    agent.mounts = [ConfinedMount(f"unix:{agent.sock}"), ConfinedMount(agent.url)]
    use(agent)
    for mount in agent.mounts:
        engine = Engine(mount.file("actor", 3))
        mount.write(f"engine add e1 sglang {engine.url}", "actor", "ctl")
        mount.write("4", "actor", "version")
        assert "permission" not in mount.text().lower() and "not permitted" not in mount.text(), mount.text()
    with scope():
        last = ConfinedMount(agent.url)
    assert not last.mounted()
