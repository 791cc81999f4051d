"""Processes of the bundled command that outlive whoever starts them, and the locks that let one of several start them."""
from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Optional

from ._library import Error, Timeout, native

COMMAND = native("wsync")
LOG_LINES, LOG_BYTES = 10, 4096
POLL_SECONDS = 0.02


def wait(condition: Callable[[], Optional[int]], deadline: float) -> Optional[int]:
    while (found := condition()) is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return found


def hold(path: str, deadline: float, mode: int) -> int:
    """Locks a file between the processes of this node (fcntl.LOCK_EX or LOCK_SH). The kernel unlocks it when the returned descriptor is closed
    or its holder ends. Timeout."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def try_lock() -> Optional[int]:
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
            return 0
        except BlockingIOError:
            return None

    try:
        if wait(try_lock, deadline) is None:
            raise Timeout(errno.ETIMEDOUT, f"another process holds {path} and is not done in time: look at the log beside it")
        return fd
    except BaseException:
        os.close(fd)
        raise


@contextmanager
def lock(path: str, deadline: float) -> Iterator[None]:
    """Holds it alone for a while."""
    fd = hold(path, deadline, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


def start(command: list[str], log: str) -> tuple[int, int]:
    """Starts a command as a child of init, because launchers kill their processes' children. Returns its process id and a pidfd."""
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    except OSError as e:
        raise Error(e.errno, f"cannot open the {command[1]}'s log {log}: {e.strerror}; pass another one by log=") from None
    script = '"$@" >&3 2>&1 3>&- & echo $!'  # the shell exits, so init adopts the command
    shell = ["/bin/sh", "-c", 'exec 3>&2; ' + script, "sh", *command]
    own_cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # ranks are pinned to few cores, the command must not be; cgroup limits still apply
        r = subprocess.run(shell, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out, start_new_session=True,
                           cwd="/", check=False, timeout=10)
    finally:
        os.sched_setaffinity(0, own_cores)
        os.close(out)
    try:
        return int(r.stdout), os.pidfd_open(int(r.stdout))
    except (ValueError, ProcessLookupError):
        raise Error(errno.ECHILD, f"wsync {command[1]} could not be started; the end of {log}:\n{tail(log)}") from None


def tail(path: str) -> str:
    try:
        with open(path, "rb") as f:
            f.seek(max(0, os.fstat(f.fileno()).st_size - LOG_BYTES))
            return "\n".join(f.read().decode("utf-8", "replace").splitlines()[-LOG_LINES:])
    except OSError as e:
        return f"({e})"
