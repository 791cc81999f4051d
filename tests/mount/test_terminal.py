# beside others
# takes: 12
"""Output on a terminal: tables, events and progress bars keep to its width; in a pipe nothing is cut."""
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

from proxy import Slow
from world import *

NAMES = {f"model.layers.{i}.self_attn.q_proj.weight": ("BF16", [64, 64]) for i in range(3)}


def at_terminal(columns, *args):
    "The command's output on a terminal of that width, as lines; each redraw of a line counts as a line."
    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([WSYNC, *args], stdin=subprocess.DEVNULL, stdout=far, stderr=far, start_new_session=True)
    os.close(far)
    text = b""
    try:
        while data := os.read(near, 65536):
            text += data
    except OSError:  # EIO: the command has closed it
        pass
    os.close(near)
    assert process.wait(60) == 0, text
    return [line for line in re.split("\r?\n|\r", text.decode().replace("\x1b[K", "")) if line]


def world():
    need_fuse()
    agent = Agent()
    for v in (1, 2):
        agent.publish("actor", v, checkpoint(NAMES, seed=v))
    mount = Mount(agent.url)
    for v in (1, 2):
        mount.wait_version("actor", v)
        wsync("pull", "--mount", mount.path, "actor", str(v))
    return agent, mount


def test_tables():
    "status, ls, inspect, diff and events fit 80 columns, and contain the same in a pipe"
    agent, mount = world()
    for args in (("status", "-v", mount.path), ("ls", mount.path), ("inspect", mount.file("actor/1")),
                 ("diff", mount.file("actor/1"), mount.file("actor/2")), ("events", mount.path)):
        shown, piped = at_terminal(80, *args), wsync(*args).stdout
        wide = [line for line in shown if len(line) > 80 and not line.endswith(".weight")]  # tensor names are not broken
        assert not wide, (args, wide)
        one = lambda text: " ".join(text.split())
        changing = re.compile(r"[\d.]+ s ago")
        assert changing.sub("", one("\n".join(shown))) == changing.sub("", one(piped)), (args, shown, piped)
    assert wsync("ls", mount.path).stdout.splitlines()[0].split() == ["MODEL", "VERSION", "STATE", "SIZE", "HERE", "HOW"]


def test_long_names():
    "an address wider than the terminal is shortened in the middle there, and complete in a pipe"
    agent = Agent()
    mount = Mount(f"{agent.url},http://{'a' * 50}.example:1")
    row = next(line for line in at_terminal(60, "status", mount.path) if line.startswith("  http://aa"))
    assert len(row) <= 60 and ".." in row and ".example:1" in row, row
    assert f"http://{'a' * 50}.example:1 " in wsync("status", mount.path).stdout


def test_a_long_word():
    "a word that is wider than the terminal stays whole, and what follows it is broken between words again"
    agent, mount = world()
    long = "x" * 300
    mount.refused(f"pull {long}", "actor/ctl")
    shown = at_terminal(80, "events", "-n", "1", mount.path, "actor")
    assert any("NUMBER@RUN" in line and len(line) <= 80 for line in shown), shown


def test_events():
    "events shows the last ones, follows new ones, and prints the file's lines with --raw"
    agent, mount = world()
    lines = mount.text("actor/events").splitlines()
    assert wsync("events", "--raw", "-n", "0", mount.path, "actor").stdout.splitlines() == lines
    assert wsync("events", "--raw", "-n", "2", mount.path + "/actor").stdout.splitlines() == lines[-2:]
    head, *rows = wsync("events", "-n", "3", mount.path, "actor").stdout.splitlines()
    assert head.split() == ["TIME", "(UTC)", "EVENT", "WHAT"] and len(rows) == 3, rows
    assert rows[-1].split(None, 3)[2:] == lines[-1].split(" ", 2)[1:], (rows[-1], lines[-1])
    following = Process("events", "--follow", "-n", "1", mount.path)
    wait_for(lambda: len(following.text().splitlines()) == 2, "the newest event")
    mount.write("follow", "actor/policy")
    wait_for(lambda: "policy=follow-published" in following.text(), "an event that came later")
    assert sum("TIME (UTC)" in line for line in following.text().splitlines()) == 1
    assert wsync("events", unique("nowhere"), check=False).returncode == 1


def test_progress():
    "a long pull draws a bar that fits the terminal"
    need_fuse()
    agent = Agent()
    for v in (1, 2):
        agent.publish("actor", v, checkpoint({"w": ("F32", [3 << 20])}, seed=v))
    slow = Slow(agent.port, 4e6)  # 12.6 MB take 3 s at least
    mount = Mount(f"http://127.0.0.1:{slow.port}")
    for v, columns in ((1, 80), (2, 50)):
        mount.wait_version("actor", v)
        *drawn, last = at_terminal(columns, "pull", "--mount", mount.path, "actor", str(v))
        assert drawn and max(map(len, drawn)) < columns, drawn
        assert all(re.match(rf"pull actor/{v} (\[[# ]+\] )? *\d+ %  [\d.]+ k?M?B of 12.6 MB", line) for line in drawn), drawn
        assert columns == 50 or all("] " in line and "B/s" in line for line in drawn), drawn
        assert last.startswith(f"actor/{v}: here in "), last
