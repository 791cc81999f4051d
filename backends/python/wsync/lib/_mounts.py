"""Finds this node's mount, or starts one; any number of processes may ask at once, one mount is started, and the last of them ends it."""
from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
import warnings
from typing import Any, Optional, Union

from . import _agents
from ._folder import Folder, VersionFiles
from ._library import Error, Timeout
from ._processes import COMMAND, POLL_SECONDS, hold, lock, start, tail, wait

ANSWER_SECONDS, END_SECONDS = 10, 15
CAP_SYS_ADMIN = 21
_open: set["Mount"] = set()


class Mount:
    """A model's versions on this node, as ``mount`` has found or started them, until ``close`` or the process's exit.

    path: the folder of models; None where versions are read out of the agent's memory. how: "mount", "export" or "memory"."""

    def __init__(self, source: Optional[str], path: Optional[str], how: str, users: Optional[int] = None, state: str = ""):
        self.source, self.path, self.how = source, path, how
        self._users, self._state, self._owner = users, state, os.getpid()
        _open.add(self)

    def folder(self, model: str, version: Union[int, str], timeout: float = 300.0) -> str:
        """The path of a version (42, or 42@RUN) once it is there. Timeout. Error: there are no paths, since versions are read from memory."""
        if self.path is None:
            raise Error(errno.ENODEV, f"{self.source}: {model}/{version} has no path here, since nothing is mounted; open() reads it")
        number, _, run = str(version).partition("@")
        path = os.path.join(self.path, model, number if self.how == "export" else str(version))
        deadline = time.monotonic() + timeout
        while not os.path.isdir(path) or (self.how == "export" and run and _run_of(path) != run):
            self._require_alive()
            if time.monotonic() > deadline:
                raise Timeout(errno.ETIMEDOUT, f"{path}{f' of {run}' if self.how == 'export' and run else ''} has not appeared within {timeout:g} s"
                                               + (f"; {self.source} is read" if self.source else ""))
            time.sleep(POLL_SECONDS)
        return path

    def files(self, model: str, version: Union[int, str], timeout: float = 300.0) -> Union[Folder, VersionFiles]:
        """The version's files, wherever they are, for read._weights.Weights; the caller closes them. Timeout."""
        if self.path is not None:
            return Folder(self.folder(model, version, timeout))
        number, _, run = str(version).partition("@")
        deadline = time.monotonic() + timeout
        while True:
            try:
                found = VersionFiles(self.source, model, int(number))
                if not run or found.manifest["run"] == run:
                    return found
                found.close()
                missing = Error(errno.ENOENT, f"{found.path} is of another run than {run}")
            except Error as e:
                if e.errno not in (errno.ENOENT, errno.EAGAIN):
                    raise
                missing = e
            if time.monotonic() > deadline:
                raise Timeout(errno.ETIMEDOUT, f"{model}/{version} has not appeared within {timeout:g} s: {missing.strerror}")
            time.sleep(POLL_SECONDS)

    def _require_alive(self) -> None:
        if self._users is None:
            raise ValueError(f"{self.path} is closed")
        if self.how == "export" and _alive(_read_mark(self._state)) is None:
            raise Error(errno.ECHILD, f"the export at {self.path} has ended; the end of {self._state}.log:\n{tail(self._state + '.log')}")

    def close(self) -> None:
        """Ends what was started for it, unless other processes use it. Views of tensors stay valid. A forked child's call does nothing."""
        users, self._users = self._users, None
        _open.discard(self)
        if users is None or self._owner != os.getpid():
            return
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # others use it
        else:
            _end(self._state)
        finally:
            os.close(users)

    def __enter__(self) -> "Mount":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@atexit.register
def _close_all() -> None:
    for one in list(_open):
        with contextlib.suppress(OSError):
            one.close()


def mount(source: Optional[str] = None, path: Union[str, "os.PathLike[str]", None] = None, *, options: Optional[str] = None,
          timeout: float = 30.0) -> Mount:
    """Returns this node's mount of source; starts one where none is, and then the last process that uses it ends it, at its exit.

    source: as `wsync mount` takes it ("https://TRAINER:18861", "unix:/run/wsync/agent.sock"); default $WSYNC_SOURCE, else whatever is mounted at
    path, else the agent of this node. path: default $WSYNC_MOUNT, else /wsync, or a folder of this user's if that cannot be made. options:
    `wsync mount -o`'s, for one that is started; it keeps no state. A mount that is there already, whoever made it, is used as it is and never ended;
    one of another source is refused. Where this process may not mount, it says so (RuntimeWarning), and versions are read out of the memory of a
    unix: source, without paths, or are files that `wsync export` keeps at path. Killed users are not waited for, but what they
    started goes on until the next user's end. Error; Timeout; thread safe."""
    source = source or os.environ.get("WSYNC_SOURCE") or None
    place = _real(os.path.abspath(path or os.environ.get("WSYNC_MOUNT") or _default_place()))
    deadline = time.monotonic() + timeout
    folder = os.path.dirname(_agents._default_socket())
    _agents._make_folder(folder)
    state = os.path.join(folder, "mount-" + hashlib.sha256(os.fsencode(place)).hexdigest()[:16])
    with lock(f"{state}.lock", deadline):
        users = hold(f"{state}.users", deadline, fcntl.LOCK_SH)  # whoever ends it holds it alone
        try:
            how, source = _find_or_start(source, place, options, state, deadline)
        except BaseException:
            os.close(users)
            raise
    if how != "memory":
        return Mount(source, place, how, users, state)
    os.close(users)
    return Mount(source, None, how)


def _find_or_start(source: Optional[str], place: str, options: Optional[str], state: str, deadline: float) -> tuple[str, Optional[str]]:
    """(how, source); called by one process at a time."""
    there, mark = _mounted(place), _alive(_read_mark(state))
    if there is not None and _answers(place):
        _require_same(source, there, place)
        return "mount", there
    if mark is not None and mark["how"] == "mount":
        raise Timeout(errno.ETIMEDOUT, f"the mount at {place} does not answer: its daemon, process {mark['pid']}, is stopped, or busy; see {state}.log")
    if mark is not None:
        _require_same(source, mark["source"], place)
        return "export", mark["source"]
    if source is None:
        source = _agent_of_node(place)
    lacking = _lacking()
    if lacking and source.startswith("unix:") and "," not in source:
        warnings.warn(f"wsync cannot mount here: {lacking}; versions are read out of the memory of {source}", RuntimeWarning, stacklevel=3)
        return "memory", source
    how = "export" if lacking else "mount"
    if lacking:
        warnings.warn(f"wsync cannot mount here: {lacking}; versions are files that `wsync export` keeps in {place}", RuntimeWarning, stacklevel=3)
    _start(how, source, place, options, state, deadline)
    return how, source


def _real(place: str) -> str:
    """Without links. What is mounted there is not looked at, since a daemon that is stopped would not answer."""
    above, name = os.path.split(place)
    found = os.path.join(os.path.realpath(above), name)
    return found if _mounted(found) is not None else os.path.realpath(found)


def _default_place() -> str:
    if _mounted("/wsync") is not None or os.path.isdir("/wsync") or os.access("/", os.W_OK):
        return "/wsync"
    return os.path.join(os.path.dirname(_agents._default_socket()), "mount")


def _agent_of_node(place: str) -> str:
    path = _agents._socket_of(None)
    if _agents._agent_pid(path) is None:
        raise Error(errno.ENOENT, f"nothing is mounted at {place}, and no agent runs at {path}: say what to mount, as wsync.mount(\"http://TRAINER:18861\") "
                                  "or by $WSYNC_SOURCE")
    return f"unix:{path}"


def _require_same(wanted: Optional[str], there: str, place: str) -> None:
    if wanted is not None and wanted != there:
        raise Error(errno.EBUSY, f"{place} shows {there}, not {wanted}: give another path, or no source for what is there")


def _lacking() -> Optional[str]:
    """Why this process may not mount; None: it may."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened"
    with open("/proc/self/status") as f:
        capabilities = next(int(line.split()[1], 16) for line in f if line.startswith("CapEff:"))
    if not capabilities >> CAP_SYS_ADMIN & 1 and shutil.which("fusermount3") is None:
        return "it has neither CAP_SYS_ADMIN nor fusermount3"
    return None


def _mounted(place: str) -> Optional[str]:
    """The source of the wsync mount that is on top at place."""
    found = None
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        for line in f:
            before, _, after = line.partition(" - ")
            if _unescaped(before.split()[4]) == place:
                kind, source = after.split()[:2]
                found = _unescaped(source) if kind == "fuse.wsync" else None
    return found


def _unescaped(field: str) -> str:
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(octal, character)
    return field


def _answers(place: str) -> bool:
    """Does the mount's daemon answer? By a process of its own, since a read of one that is stopped does not return."""
    try:
        return subprocess.run([COMMAND, "status", "--mount", place], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, timeout=ANSWER_SECONDS, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _run_of(version: str) -> Optional[str]:
    """The lineage of a version that `wsync export` keeps, by its mark."""
    with contextlib.suppress(OSError, ValueError):
        with open(os.path.join(version, ".wsync-export"), "rb") as f:
            return json.load(f).get("run")
    return None


# --- what was started: a process, told by its id and its start ---


def _start(how: str, source: str, place: str, options: Optional[str], state: str, deadline: float) -> None:
    made = not os.path.isdir(place)
    try:
        os.makedirs(place, exist_ok=True)
    except OSError as e:
        raise Error(e.errno, f"cannot make {place} for a mount: {e.strerror}; give another path, or $WSYNC_MOUNT") from None
    command = [COMMAND, how, *(["-f"] if how == "mount" else [])]
    given = [options] if options else []
    if how == "mount" and not any(o.startswith("state=") for o in (options or "").split(",")):
        given.append("state=none")
    command += ["-o", ",".join(given)] if given else []
    log = state + ".log"
    pid, process = start([*command, source, place], log)
    try:
        ended = select.poll()
        ended.register(process, select.POLLIN)
        began = _began(pid)
        if began is not None:  # before it answers: if we are killed now, the next one finds it
            _write_mark(state, {"pid": pid, "began": began, "namespace": _namespace(), "how": how, "source": source, "made": made, "place": place})

        def ready() -> Optional[int]:
            if ended.poll(0):
                return -1
            return 1 if how == "export" or (_mounted(place) is not None and _answers(place)) else None

        is_ready = wait(ready, deadline)
        if is_ready != 1:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGTERM)  # else it would run on unnoticed
            with contextlib.suppress(FileNotFoundError):
                os.unlink(state)
            said = f"the {how} that was started at {place} {'does not answer' if is_ready is None else 'ended at once'}; the end of {log}:\n{tail(log)}"
            raise Timeout(errno.ETIMEDOUT, said) if is_ready is None else Error(errno.ECHILD, said)
    finally:
        os.close(process)


def _end(state: str) -> None:
    """Ends what was started, if it still runs; called by the last user alone."""
    mark = _alive(_read_mark(state))
    if mark is not None:
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(mark["pid"])
            try:
                if _alive(mark) is not None:  # the descriptor is of that process
                    signal.pidfd_send_signal(process, signal.SIGTERM)
                    ended = select.poll()
                    ended.register(process, select.POLLIN)
                    ended.poll(END_SECONDS * 1000)
            finally:
                os.close(process)
        if mark["made"]:
            with contextlib.suppress(OSError):
                os.rmdir(mark["place"])
    with contextlib.suppress(FileNotFoundError):
        os.unlink(state)


def _write_mark(state: str, mark: dict[str, Any]) -> None:
    with open(state + ".new", "w") as f:
        json.dump(mark, f)
    os.replace(state + ".new", state)


def _read_mark(state: str) -> Optional[dict[str, Any]]:
    try:
        with open(state) as f:
            return json.load(f)
    except (FileNotFoundError, ValueError):
        return None


def _alive(mark: Optional[dict[str, Any]]) -> Optional[dict[str, Any]]:
    """The mark, if its process runs; None also where that cannot be told, as in another pid namespace."""
    return mark if mark and mark["namespace"] == _namespace() and mark["began"] == _began(mark["pid"]) else None


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _began(pid: int) -> Optional[int]:
    """When a process started, in the kernel's ticks; None: it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            fields = f.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
