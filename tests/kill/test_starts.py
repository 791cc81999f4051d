# beside others
# timeout: 300
"""Daemons killed in their first milliseconds, while they check their own mount: each of them ends, and the next one can mount there. A kill
hits the moment about once in a hundred times, so there are many of them."""
import os
import random
import subprocess

from world import *

ROUNDS = 1500


def is_mounted(path):
    with open("/proc/self/mounts") as f:
        return any(line.split()[1] == path for line in f)


def end(daemon, path):
    """A killed daemon must end at once. If it does not, it is freed so that nothing waits forever."""
    daemon.kill()
    try:
        daemon.wait(20 * SLOW)
        return True
    except subprocess.TimeoutExpired:
        while is_mounted(path):
            subprocess.run(["umount", "-f", path], stderr=subprocess.DEVNULL, check=False)
            subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL, check=False)
        daemon.wait(20 * SLOW)
        return False


def test_killed_at_the_start():
    "a daemon killed during its start ends, and the next one mounts at the same place"
    need_fuse()
    agent, path = Agent(), unique("mnt")
    agent.publish("actor", 1, checkpoint(SMALL))
    os.makedirs(path)
    at_end(subprocess.run, ["umount", "-l", path], stderr=subprocess.DEVNULL, check=False)
    for i in range(ROUNDS):
        options = "state=none,reads=" + random.choice(("auto", "link", "cached"))
        with open(path + ".log", "w") as log:
            daemon = subprocess.Popen([WSYNC, "mount", "-f", "-o", options, agent.url, path], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + 60 * SLOW
        while not is_mounted(path) and daemon.poll() is None and time.monotonic() < until:
            pass  # wait_for's sleep would miss the moment
        time.sleep(random.random() * 0.004)
        assert end(daemon, path), f"round {i}, {options}: the daemon did not end when it was killed"
    again = Mount(agent.url, path=path)
    again.wait_version("actor", 1)
