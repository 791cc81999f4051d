"""A service manager as far as its store of descriptors goes (systemd's FileDescriptorStoreMax=, sd_notify(3), sd_listen_fds(3)).

Run as a program it is what the manager starts: `service_manager.py SOCKET COMMAND ...` is given the descriptors by the manager at SOCKET and
becomes the command."""
import os
import socket
import sys
import threading

MOST = 200


class Manager:
    """Keeps what services send to .path. .kept: [(name, descriptor)]; settle() before it is looked at."""

    def __init__(self, path):
        self.path, self.kept, self.refused = path, [], []
        self.messages = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.messages.bind(path)
        self.starts = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.starts.bind(path + ".start")
        self.starts.listen()
        for serve in (self.receive, self.give):
            threading.Thread(target=serve, daemon=True).start()

    @property
    def prefix(self):
        return sys.executable, os.path.abspath(__file__), self.path

    def receive(self):
        while True:
            text, fds, _, _ = socket.recv_fds(self.messages, 4096, 10)
            if not text:  # close
                self.messages.close()
                return
            keys = dict(line.split("=", 1) for line in text.decode().splitlines())
            if keys.get("FDSTOREREMOVE") == "1":
                for name, fd in [k for k in self.kept if k[0] == keys["FDNAME"]]:
                    self.kept.remove((name, fd))
                    os.close(fd)
            elif keys.get("FDSTORE") == "1" and len(self.kept) < MOST:
                self.kept += [(keys["FDNAME"], fd) for fd in fds]
                fds = []
            elif keys.keys() - {"BARRIER", "READY", "STOPPING"}:
                self.refused.append(text)
            for fd in fds:
                os.close(fd)

    def settle(self):
        """Returns when all that was sent was done."""
        done, end = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.connect(self.path)
            socket.send_fds(s, [b"BARRIER=1"], [end])
        os.close(end)
        os.read(done, 1)
        os.close(done)

    def give(self):
        while True:
            service, _ = self.starts.accept()
            self.settle()
            with service:
                names = ":".join(name for name, _ in self.kept)
                service.sendall(f"{len(self.kept)} {names}\n".encode())
                for _, fd in self.kept:
                    socket.send_fds(service, [b"."], [fd])

    def close(self):
        """Takes no messages any more."""
        self.messages.shutdown(socket.SHUT_RDWR)

    def forget(self, name):
        """Loses one."""
        for kept in [k for k in self.kept if k[0] == name]:
            self.kept.remove(kept)
            os.close(kept[1])


def become(path, command):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.connect(path + ".start")
        line = b""
        while not line.endswith(b"\n"):
            line += s.recv(1)
        n, _, names = line.decode().strip("\n").partition(" ")
        fds = []
        while len(fds) < int(n):
            _, new, _, _ = socket.recv_fds(s, 1, 10)
            fds += new
    high = [os.dup2(fd, 1000 + i, inheritable=False) for i, fd in enumerate(fds)]
    for fd in fds:
        os.close(fd)
    for i, fd in enumerate(high):
        os.dup2(fd, 3 + i)
    os.environ.update(NOTIFY_SOCKET=path, FDSTORE=str(MOST))
    if high:
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=n, LISTEN_FDNAMES=names)
    os.execvp(command[0], command)


if __name__ == "__main__":
    become(sys.argv[1], sys.argv[2:])
