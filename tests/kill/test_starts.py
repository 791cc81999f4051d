# beside others
# timeout: 300
"""Daemons that are killed in their first milliseconds, while they look at their own mount: each of them ends, and the next one
mounts there. It is a matter of luck to hit the moment (one in some hundred), so there are many of them."""
import os
import random
import subprocess

from world import *

ROUNDS = 1500


def is_mounted(path):
    with open("/proc/self/mounts") as f:
        return any(line.split()[1] == path for line in f)


def end(daemon, path):
    """Killed, it is gone at once. One that is not is freed, so that nothing waits for it for ever."""
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
    "a daemon that is killed while it starts ends, and the next one mounts at the same place"
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
            pass  # wait_for sleeps past the moment
        time.sleep(random.random() * 0.004)
        assert end(daemon, path), f"round {i}, {options}: the daemon did not end when it was killed"
    again = Mount(agent.url, path=path)
    again.wait_version("actor", 1)
