"""A unit's restrictions without systemd: `unit_sandbox.py UNIT WRITABLE COMMAND ...` runs the command under those of UNIT, with WRITABLE
as its ReadWritePaths=. Home folders and /tmp stay, because tests and builds may lie there. Exit status 77: not possible here, and why."""
import ctypes
import os
import resource
import socket
import subprocess
import sys

EPERM = 1
NR_MOUNT_SETATTR = 442  # on every architecture
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
MS_NODEV, MS_NOSUID, MS_BIND, MS_MOVE, MS_REC, MS_SLAVE = 4, 2, 0x1000, 0x2000, 0x4000, 0x80000
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
CAPABILITIES = """chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service net_broadcast
    net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin sys_boot sys_nice sys_resource
    sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override mac_admin syslog wake_alarm block_suspend audit_read
    perfmon bpf checkpoint_restore""".split()
libc = ctypes.CDLL(None, use_errno=True)


def need(rc, what):
    if rc < 0:
        print(f"unit_sandbox: {what}: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        sys.exit(77)


def mount(source, target, kind=None, flags=0, data=None):
    texts = [t.encode() if t else None for t in (source, target, kind, data)]
    need(libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]), f"mount {source or kind} at {target}")


def settings(unit):
    """{key: all its values}"""
    out = {}
    with open(unit) as f:
        for line in f:
            key, equals, value = line.strip().partition("=")
            if equals and not key.startswith("#"):
                out.setdefault(key, []).append(value)
    return out


def set_read_only(path, on):
    attr = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY if on else 0, 0 if on else MOUNT_ATTR_RDONLY, 0, 0)
    need(libc.syscall(NR_MOUNT_SETATTR, AT_FDCWD, path.encode(), AT_RECURSIVE, attr, ctypes.sizeof(attr)), f"protect {path}")


def private_devices(place):
    new = place + "/.dev"
    os.makedirs(new, exist_ok=True)
    mount("tmpfs", new, "tmpfs", MS_NOSUID, "mode=0755")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        open(f"{new}/{name}", "w").close()
        mount("/dev/" + name, f"{new}/{name}", flags=MS_BIND)
    for name in ("shm", "pts", "mqueue", "hugepages"):
        if os.path.isdir("/dev/" + name):
            os.mkdir(f"{new}/{name}")
            mount("/dev/" + name, f"{new}/{name}", flags=MS_BIND)
    mount(new, "/dev", flags=MS_MOVE)


def close_files(s, writable):
    """What is about files: only for units with ProtectSystem=strict."""
    need(libc.unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS), "namespaces")
    mount(None, "/", flags=MS_REC | MS_SLAVE)
    mount(writable, writable, flags=MS_BIND | MS_REC)
    if s["PrivateDevices"] == ["yes"]:
        private_devices(writable)
    set_read_only("/", True)
    set_read_only(writable, False)
    set_read_only("/dev", False)
    if s["ProtectProc"] == ["invisible"]:
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV, "hidepid=invisible")


def members(group):
    """The system calls of a line of SystemCallFilter=."""
    out = set()
    for name in group.split():
        if name.startswith("@"):
            text = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", name], text=True, stdout=subprocess.PIPE, check=True).stdout
            lines = [line.strip() for line in text.splitlines()[1:]]
            out |= members(" ".join(line for line in lines if line and not line.startswith("#")))
        else:
            out.add(name)
    return out


class Compare(ctypes.Structure):
    _fields_ = [("argument", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


EQUAL, MASKED_EQUAL = 4, 7
READ, WRITE, EXECUTE = 1, 2, 4


def close_calls(s):
    try:
        lib = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError:
        print("unit_sandbox: there is no libseccomp.so.2", file=sys.stderr)
        sys.exit(77)
    lib.seccomp_init.restype = ctypes.c_void_p
    allow = 0x7FFF0000
    context = ctypes.c_void_p(lib.seccomp_init(0x00050000 | EPERM))

    def rule(name, *comparisons):
        number = lib.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            array = (Compare * max(len(comparisons), 1))(*comparisons)
            need(lib.seccomp_rule_add_array(context, allow, number, len(comparisons), array), f"a rule for {name}")

    names = members(" ".join(s["SystemCallFilter"]))
    if s["RestrictNamespaces"] == ["yes"]:
        names -= {"unshare", "setns"}
    for name in sorted(names - {"socket", "mmap", "mprotect", "pkey_mprotect"}):
        rule(name)
    for family in " ".join(s["RestrictAddressFamilies"]).split():
        rule("socket", Compare(0, EQUAL, getattr(socket, family), 0))
    if s["MemoryDenyWriteExecute"] == ["yes"]:
        rule("mprotect", Compare(2, MASKED_EQUAL, EXECUTE, 0))
        rule("mmap", Compare(2, MASKED_EQUAL, EXECUTE, 0))
        rule("mmap", Compare(2, MASKED_EQUAL, WRITE | EXECUTE, EXECUTE))
    else:
        rule("mmap")
        rule("mprotect")
    need(-abs(lib.seccomp_load(context)), "seccomp")


def close_capabilities(s):
    kept = {name[4:].lower() for name in " ".join(s["CapabilityBoundingSet"]).split()}
    assert kept <= set(CAPABILITIES), kept
    for number, name in enumerate(CAPABILITIES):
        if name not in kept:
            libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)


def main(unit, writable, *command):
    s = settings(unit)
    if s.get("ProtectSystem") == ["strict"]:
        close_files(s, writable)
    if "LimitMEMLOCK" in s and s["LimitMEMLOCK"] != ["infinity"]:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (int(s["LimitMEMLOCK"][0]),) * 2)
    os.umask(int(s["UMask"][0], 8))
    close_capabilities(s)
    need(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    close_calls(s)
    os.execv(command[0], command)


main(*sys.argv[1:])
