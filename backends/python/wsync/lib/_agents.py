"""Finds this node's agent, or starts one; any number of ranks may ask at once, one agent is started.

An agent that a trainer starts outlives the trainer, but not its container or job step. The supported form is an agent that runs
separately: mount-helpers/systemd/wsync-agent.service, a sidecar, or a job step; ``ensure`` then only finds it."""
from __future__ import annotations

import errno
import os
import pwd
import select
import signal
import socket
import stat
import struct
import time
import warnings
from typing import Optional, Union

from ._library import Error, Timeout
from ._processes import COMMAND, lock, start, tail, wait

SYSTEM_FOLDER = "/run/wsync"
DEFAULT_LISTEN = "127.0.0.1:18861"
ANSWER_SECONDS = 10
_warned = False


def ensure(address: Optional[str] = None, log: Union[str, "os.PathLike[str]", None] = None, *, timeout: float = 30.0) -> str:
    """Returns the address ("unix:/run/wsync/agent.sock") of an agent that answers; starts an agent if none does.

    address: default $WSYNC_AGENT, else /run/wsync/agent.sock, or a path of this user if /run is not writable. log: the file that a
    started agent appends to; default: agent.log beside the socket. A started agent listens for mounts at $WSYNC_LISTEN or
    127.0.0.1:18861, where mounts of this account and of root find the token that it makes; it is adopted by init, has its own session, and may use all cores. If several processes call this at once, one
    starts the agent and the others wait, at most timeout seconds. Warns once per process (RuntimeWarning) if the agent shares this
    process's cgroup and would be ended with it. wsync.Error: the agent ended at once, and the
    message has the end of its log; or another account could have put the socket there, or serves it, which is neither root, this one,
    the owner of /run/wsync nor $WSYNC_AGENT_USER (a name or number). wsync.Timeout. ValueError: not an agent's address. Thread safe."""
    path = _socket_of(address)
    folder = os.path.dirname(path)
    if os.path.lexists(folder):
        _check_folder(folder)  # anybody may make folders in /tmp
    pid = _agent_pid(path)
    if pid is None and path != _default_socket() and not os.path.isdir(folder) and not _parent_exists(folder):
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


def _agent_pid(path: str) -> Optional[int]:
    """The process id of the agent that listens at path (0: in another pid namespace), or None. PermissionError: this user may not connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as s:
        # SO_SNDTIMEO, because with settimeout() connect fails at once when the listen queue is full.
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
        pid, uid, _ = struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if not _is_trusted(uid & 0xFFFFFFFF):
            raise Error(errno.EPERM, f"the agent at {path} is run by {_name_of(uid)}, neither root nor this account: set WSYNC_AGENT=unix:/PATH to another "
                                     f"one, or if that account is meant, name it: WSYNC_AGENT_USER={_name_of(uid)}")
        return int(pid)


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def _is_trusted(uid: int) -> bool:
    """May this account serve a socket? As in transports/ipc/peer.h."""
    named = os.environ.get("WSYNC_AGENT_USER")
    if uid in (0, os.geteuid()) or (named and named in (str(uid), _name_of(uid))):
        return True
    try:
        system = os.lstat(SYSTEM_FOLDER)  # only root can make a folder there
    except OSError:
        return False
    return stat.S_ISDIR(system.st_mode) and system.st_uid == uid


def _parent_exists(folder: str) -> bool:
    """Only one missing level is created, and not below /: a mistyped address must not start an agent in the wrong place."""
    above = os.path.dirname(folder)
    return above != "/" and os.path.isdir(above)


def _make_folder(folder: str) -> None:
    try:
        os.makedirs(folder, mode=0o755 if folder == SYSTEM_FOLDER else 0o700, exist_ok=True)
    except OSError as e:
        raise Error(e.errno, f"cannot make {folder} for the agent's socket: {e.strerror}; set WSYNC_AGENT=unix:/PATH to another place") from None
    _check_folder(folder)


def _check_folder(folder: str) -> None:
    """Whoever owns the folder of a socket decides which agent listens there."""
    try:
        found, link = os.stat(folder), os.lstat(folder)
    except OSError as e:
        raise Error(e.errno, f"cannot look at {folder}, the folder of the agent's socket: {e.strerror}; set WSYNC_AGENT=unix:/PATH to another place") from None
    owners = {uid for uid in (found.st_uid, link.st_uid) if not _is_trusted(uid)}
    if owners or (found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX):
        raise Error(errno.EPERM, f"{folder} belongs to user {max(owners, default=found.st_uid)} or could be changed by another user, who could put an agent of their own "
                                 "there; set WSYNC_AGENT=unix:/PATH to another place, or if that user's agent is meant, name it: WSYNC_AGENT_USER=NAME")


def _start_once(path: str, log: str, deadline: float) -> int:
    _make_folder(os.path.dirname(path))
    with lock(f"{path}.lock", deadline):
        pid = _agent_pid(path)
        if pid is not None:
            return pid  # another process started it while this one waited for the lock
        listen = os.environ.get("WSYNC_LISTEN") or DEFAULT_LISTEN
        _, agent = start([COMMAND, "agent", "--listen", listen, "--socket", path], log)
        try:
            ended = select.poll()
            ended.register(agent, select.POLLIN)
            pid = wait(lambda: -1 if ended.poll(0) else _agent_pid(path), deadline)
            if pid is None:
                signal.pidfd_send_signal(agent, signal.SIGTERM)  # else it would run on unnoticed
        finally:
            os.close(agent)
        if pid == -1:
            raise Error(errno.ECHILD, f"the agent that was started for {path} ended at once; the end of {log}:\n{tail(log)}")
        if pid is None:
            raise Timeout(errno.ETIMEDOUT, f"the agent that was started for {path} does not answer; the end of {log}:\n{tail(log)}")
        return pid


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
    own_cgroup = _cgroup("self")
    if own_cgroup is not None and own_cgroup == _cgroup(pid):
        _warned = True
        warnings.warn(f"the agent at {path} (process {pid}) is in the cgroup of this trainer: it ends when the container or job step "
                      "does, and mounts lose their source; run `wsync agent` as a unit, a sidecar or a job step of its own", RuntimeWarning, stacklevel=3)
