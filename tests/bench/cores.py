"""Processes on one core each, as on hosts of their own: a cpuset cgroup for each."""
import errno
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from world import at_end, wait_for


class Core:
    """A cpuset cgroup, of version 1 or 2, with one core; OSError where none can be made. It goes when the test, or the scope within it, ends,
    after those that were started in it."""

    def __init__(self, cpu):
        with open("/proc/self/cgroup") as f:
            lines = [line.strip().split(":", 2) for line in f]
        old = next((path for _, controllers, path in lines if "cpuset" in controllers.split(",")), None)
        own = old if old is not None else next((path for number, _, path in lines if number == "0"), "/")
        above = f"/sys/fs/cgroup{'/cpuset' if old is not None else ''}{own}"
        self.path = os.path.join(above, f"wsync-bench-{os.getpid()}-{cpu}")
        os.mkdir(self.path)
        at_end(self.remove)
        self.write("cpuset.cpus", cpu)
        with open(os.path.join(above, f"cpuset.{'mems' if old is not None else 'mems.effective'}")) as f:
            self.write("cpuset.mems", f.read().strip())  # version 1 lets no process in before that
        # The command prefix that starts a program there: a program counts its cores when it starts.
        self.prefix = ["sh", "-c", f'echo $$ >{self.path}/cgroup.procs && exec "$@"', "sh"]

    def write(self, name, value):
        with open(f"{self.path}/{name}", "w") as f:
            f.write(f"{value}\n")

    def remove(self):
        wait_for(lambda: not self.processes(), "the processes of a cgroup")
        os.rmdir(self.path)

    def processes(self):
        with open(self.path + "/cgroup.procs") as f:
            return f.read()

    def start(self, kind, *args, **kw):
        """One of world's processes, started there."""
        return type(kind.__name__, (kind,), {"prefix": self.prefix})(*args, **kw)


def two_cores():
    """Two of the cores that this process may use, as groups."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise OSError(errno.ENOTSUP, "there is one core only")
    return [Core(cpu) for cpu in cpus[:2]]
