"""Runs a program so that nothing of it outlives it: keep(work, main).

main runs in a process and session of its own, so that Ctrl-C reaches only this one, which hands it on once, as SIGTERM.
Whatever main starts and forgets is adopted here when its parent ends, and is ended; so are mounts below the folder
`work`, and the folder. A program that is killed itself cleans up no less."""
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LET_GO_SECONDS = 60  # an interrupted program may take that long to end what it started
END_SECONDS = 10
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class Interrupted(SystemExit):
    """Raised in main by the first signal; later ones are ignored."""


def _child(main, parent):
    """Never returns."""

    def interrupt(*_):
        for s in SIGNALS:
            signal.signal(s, signal.SIG_IGN)
        raise Interrupted(143)

    code = 1
    try:
        for s in SIGNALS:
            signal.signal(s, interrupt)
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            raise Interrupted(143)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        code = main()
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code or 0)


def keep(work, main):
    """Returns main's exit code; 128 + the signal's number where one ended it; 1 where it left something behind."""
    if _prctl(PR_SET_CHILD_SUBREAPER, 1):
        raise OSError(ctypes.get_errno(), "this process cannot adopt what its children leave")
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    parent, got = os.getpid(), []
    child = os.fork()
    if child == 0:
        _child(main, parent)

    def hand_on(number, _):
        if not got:
            os.kill(child, signal.SIGTERM)
        got.append(number)
        signal.alarm(LET_GO_SECONDS)

    for s in SIGNALS:
        signal.signal(s, hand_on)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    code = _wait(child)
    signal.alarm(0)
    for s in SIGNALS:
        signal.signal(s, signal.SIG_IGN)
    left = _sweep(work)
    if got:
        return 128 + got[0]
    if left and code == 0:
        print(f"it left behind, and the end of it was made here: {', '.join(left)}", file=sys.stderr)
        return 1
    return code


def _wait(child):
    while True:
        pid, status = os.wait()
        if pid == child:  # the others were adopted
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _adopted():
    """{pid: name} of what descends from this process and has not ended."""
    children, names = {}, {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as f:
            name, fields = f.read().split("(", 1)[1].rsplit(")", 1)
            names[pid] = name if fields.split()[0] not in "ZX" else None
            children.setdefault(int(fields.split()[1]), []).append(pid)
    found = list(children.get(os.getpid(), []))
    for pid in found:
        found += children.get(pid, [])
    return {pid: names[pid] for pid in found if names[pid]}


def _shared(pid):
    """Shared memory by name that a process has mapped: killed, it leaves it."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as f:
        return {line.split(None, 5)[5].strip() for line in f if " /dev/shm/" in line}
    return set()


def _mounts(work):
    with open("/proc/self/mounts") as f:
        found = [line.split()[1].encode().decode("unicode_escape") for line in f]
    return [m for m in reversed(found) if m.startswith(work + "/")]


def _sweep(work):
    """Ends and removes all that is left; returns what that was."""
    left, shared, end = [], set(), time.monotonic() + END_SECONDS
    grace = time.monotonic() + 2  # what was told to end may still be ending
    while (adopted := _adopted()) and time.monotonic() < end:
        for pid, name in adopted.items() if time.monotonic() > grace else ():
            left.append(f"process {pid} ({name})")
            shared |= _shared(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)
    for mount in _mounts(work):
        left.append(f"a mount at {mount}")
        subprocess.run(["umount", "-l", mount], check=False)
    for path in shared:
        with contextlib.suppress(OSError):
            os.unlink(path)
    if not _mounts(work):
        shutil.rmtree(work, ignore_errors=True)
    return list(dict.fromkeys(left))
