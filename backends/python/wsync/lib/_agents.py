"""This node's agent: found, or started once however many ranks ask.

An agent that a trainer starts lives on after it, but not longer than its container or job step. The supported form is an agent of
its own: mount-helpers/systemd/wsync-agent.service, a sidecar, or a job step; ``ensure`` then only finds it."""
from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Optional, Union

from ._library import Error, Timeout, native

COMMAND = native("wsync")
SYSTEM_FOLDER = "/run/wsync"
DEFAULT_LISTEN = "127.0.0.1:18861"
LOG_LINES, LOG_BYTES = 10, 4096
POLL_SECONDS, ANSWER_SECONDS = 0.02, 10
_warned = False


def ensure(address: Optional[str] = None, log: Union[str, "os.PathLike[str]", None] = None, *, timeout: float = 30.0) -> str:
    """The address ("unix:/run/wsync/agent.sock") of an agent that answers; starts one where none does.

    address: else $WSYNC_AGENT, else /run/wsync/agent.sock, or a path of this user's own where /run cannot be written. log: the
    file that a started agent appends to; default: agent.log beside the socket. It listens for mounts at $WSYNC_LISTEN, or
    127.0.0.1:18861, is no child of this process, has a session of its own, and uses all cores that this process may. Of many
    processes that ask at once one starts it and the others wait, at most timeout seconds. Warns once a process
    (RuntimeWarning) when the agent shares this process's cgroup and would be ended with it. wsync.Error: it ended at once, with the
    last lines of its log; wsync.Timeout; ValueError: no such address. Thread safe."""
    path = _socket_of(address)
    pid = _answers(path)
    folder = os.path.dirname(path)
    if pid is None and path != _default_socket() and not os.path.isdir(folder) and not _may_be_made(folder):
        raise Error(errno.ENOENT, f"no agent runs at {path}, and none is started there, since there is no folder {folder}: is the address right?")
    if pid is None:
        pid = _start_once(path, os.fspath(log) if log else os.path.join(os.path.dirname(path), "agent.log"), time.monotonic() + timeout)
    _warn_of_cgroup(pid, path)
    return f"unix:{path}"


def _socket_of(address: Optional[str]) -> str:
    address = address or os.environ.get("WSYNC_AGENT")
    if not address:
        return _default_socket()
    if not address.startswith("unix:/"):
        raise ValueError(f"'{address}' is no agent of this node: publishers reach theirs by unix:/PATH")
    return address[len("unix:"):]


def _default_socket() -> str:
    path = f"{SYSTEM_FOLDER}/agent.sock"
    if os.access(path, os.W_OK) or os.access(SYSTEM_FOLDER if os.path.isdir(SYSTEM_FOLDER) else "/run", os.W_OK | os.X_OK):
        return path
    own = os.environ.get("XDG_RUNTIME_DIR")
    if own and os.access(own, os.W_OK | os.X_OK):
        return os.path.join(own, "wsync", "agent.sock")
    return f"/tmp/wsync-{os.getuid()}/agent.sock"


def _answers(path: str) -> Optional[int]:
    """The agent's process id (0: that of another pid namespace), or None where nobody listens. PermissionError: not for us."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as s:
        # Not settimeout(), with which a connect fails at once while others queue.
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", ANSWER_SECONDS, 0))
        try:
            s.connect(path)
        except BlockingIOError:
            raise Timeout(errno.ETIMEDOUT, f"the agent at {path} takes no connection: look at its log") from None
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except PermissionError:
            raise PermissionError(errno.EACCES, f"the agent at {path} lets others in only: start it with --group of this user's, "
                                                "or set WSYNC_AGENT=unix:/PATH to another one") from None
        return int(struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def _wait(condition: Callable[[], Optional[int]], deadline: float) -> Optional[int]:
    while (found := condition()) is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return found


@contextmanager
def _lock(path: str, deadline: float) -> Iterator[None]:
    """Held by one process of the node; the kernel lets go of it when that ends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def take() -> Optional[int]:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return 0
        except BlockingIOError:
            return None

    try:
        if _wait(take, deadline) is None:
            raise Timeout(errno.ETIMEDOUT, f"another process holds {path} and has not started an agent in time: look at its log")
        yield
    finally:
        os.close(fd)


def _may_be_made(folder: str) -> bool:
    """One level, below a folder that is there, but not below /: else a mistyped address makes an agent that nobody looks for."""
    above = os.path.dirname(folder)
    return above != "/" and os.path.isdir(above)


def _make_folder(folder: str) -> None:
    try:
        os.makedirs(folder, mode=0o755 if folder == SYSTEM_FOLDER else 0o700, exist_ok=True)
    except OSError as e:
        raise Error(e.errno, f"cannot make {folder} for the agent's socket: {e.strerror}; set WSYNC_AGENT=unix:/PATH to another place") from None
    found = os.stat(folder)
    if found.st_uid not in (0, os.getuid()) or (found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX):
        raise Error(errno.EPERM, f"{folder} could be changed by another user: an agent's socket does not belong there; set WSYNC_AGENT=unix:/PATH to another place")


def _start_once(path: str, log: str, deadline: float) -> int:
    _make_folder(os.path.dirname(path))
    with _lock(f"{path}.lock", deadline):
        pid = _answers(path)
        if pid is not None:
            return pid  # somebody else did, while we waited
        agent = _start(path, log)
        try:
            ended = select.poll()
            ended.register(agent, select.POLLIN)
            pid = _wait(lambda: -1 if ended.poll(0) else _answers(path), deadline)
            if pid is None:
                signal.pidfd_send_signal(agent, signal.SIGTERM)  # nobody would know of it
        finally:
            os.close(agent)
        if pid == -1:
            raise Error(errno.ECHILD, f"the agent that was started for {path} ended at once; the end of {log}:\n{_tail(log)}")
        if pid is None:
            raise Timeout(errno.ETIMEDOUT, f"the agent that was started for {path} does not answer; the end of {log}:\n{_tail(log)}")
        return pid


def _start(path: str, log: str) -> int:
    """Starts the agent as nobody's child, since launchers end the children of theirs. Returns a descriptor of its process."""
    listen = os.environ.get("WSYNC_LISTEN") or DEFAULT_LISTEN
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    except OSError as e:
        raise Error(e.errno, f"cannot open the agent's log {log}: {e.strerror}; pass another one by log=") from None
    script = '"$@" >&3 2>&1 3>&- & echo $!'  # the shell ends, the agent is adopted by init
    command = ["/bin/sh", "-c", 'exec 3>&2; ' + script, "sh", COMMAND, "agent", "--listen", listen, "--socket", path]
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # a rank is pinned to few cores, the agent is not; cgroups still hold
        r = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out, start_new_session=True,
                           cwd="/", check=False, timeout=10)
    finally:
        os.sched_setaffinity(0, mine)
        os.close(out)
    try:
        return os.pidfd_open(int(r.stdout))
    except (ValueError, ProcessLookupError):
        raise Error(errno.ECHILD, f"{COMMAND} agent could not be started; the end of {log}:\n{_tail(log)}") from None


def _tail(path: str) -> str:
    try:
        with open(path, "rb") as f:
            f.seek(max(0, os.fstat(f.fileno()).st_size - LOG_BYTES))
            return "\n".join(f.read().decode("utf-8", "replace").splitlines()[-LOG_LINES:])
    except OSError as e:
        return f"({e})"


def _cgroup(pid: Union[int, str]) -> Optional[str]:
    try:
        with open(f"/proc/{pid}/cgroup") as f:
            return f.read()
    except OSError:
        return None


def _warn_of_cgroup(pid: int, path: str) -> None:
    global _warned
    if _warned or pid <= 0:
        return
    ours = _cgroup("self")
    if ours is not None and ours == _cgroup(pid):
        _warned = True
        warnings.warn(f"the agent at {path} (process {pid}) is in the cgroup of this trainer: it ends when the container or job step "
                      "does, and mounts lose their source; run `wsync agent` as a unit, a sidecar or a job step of its own", RuntimeWarning, stacklevel=3)
