"""TCP proxies before a server of this host: they pass bytes on as they are, slowly, up to a limit, or note what they see."""
import contextlib
import socket
import threading
import time

from world import at_end


class Proxy:
    """Passes connections on to a port; .port and .url are its own. Subclasses say what becomes of connections (`carry`, `serve`) and of
    what is sent on them (`pass_on`)."""

    scheme = "http"

    def __init__(self, target):
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"{self.scheme}://127.0.0.1:{self.port}"
        self.sockets = [self.listener]
        at_end(self.end)
        threading.Thread(target=self.accept, daemon=True).start()

    def end(self):
        for s in self.sockets:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near = self.listener.accept()[0]
                self.sockets.append(near)
                threading.Thread(target=self.carry, args=(near,), daemon=True).start()

    def carry(self, near):
        with contextlib.suppress(OSError), near, socket.create_connection(("127.0.0.1", self.target)) as far:
            self.sockets.append(far)
            self.serve(near, far)

    def serve(self, near, far):
        self.pass_both(near, far)

    def pass_both(self, near, far, marks=True):
        """Both ways until both have ended. What the server sends is marked, if asked for."""
        back = threading.Thread(target=self.pump, args=(far, near, marks), daemon=True)
        back.start()
        self.pump(near, far, False)
        back.join()

    def pump(self, source, sink, marked):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.pass_on(data, sink, marked)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def pass_on(self, data, sink, marked):
        sink.sendall(data)


class Slow(Proxy):
    """Lets `rate` bytes a second through from the server, over all connections together."""

    def __init__(self, port, rate):
        self.rate, self.lock, self.free_at = rate, threading.Lock(), time.monotonic()
        super().__init__(port)

    def serve(self, near, far):
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        super().serve(near, far)

    def pass_on(self, data, sink, marked):
        if marked:
            with self.lock:
                self.free_at = max(self.free_at, time.monotonic()) + len(data) / self.rate
                wait = self.free_at - time.monotonic()
            if wait > 0:
                time.sleep(wait)
        sink.sendall(data)


class Wire(Proxy):
    """Notes what clients send, in .heard."""

    heard = b""

    def pass_on(self, data, sink, marked):
        if not marked:
            self.heard += data
        sink.sendall(data)


class Gate(Proxy):
    """Passes `limit` bytes of files on, more when `let` says so, and everything once it is opened. n_files: connections for files."""

    def __init__(self, url, limit):
        self.n_files, self.left, self.changed, self.over = 0, limit, threading.Condition(), False
        super().__init__(int(url.rsplit(":", 1)[1]))

    def end(self):
        with self.changed:
            self.over = True
            self.changed.notify_all()
        super().end()

    def let(self, more):
        with self.changed:
            self.left += more
            self.changed.notify_all()

    def open(self):
        self.let(1 << 60)

    def serve(self, near, far):
        first = near.recv(1 << 16)
        far.sendall(first)
        self.n_files += bool(self.is_of_files(first))
        self.pass_both(near, far, self.is_of_files(first))

    @staticmethod
    def is_of_files(first):
        """Is that the first request of a connection for files? A connection carries either only such requests, or none."""
        return b"/files/" in first

    def pass_on(self, data, sink, marked):
        while marked and data:
            with self.changed:
                self.changed.wait_for(lambda: self.left > 0 or self.over)
                n = min(len(data), self.left)
                self.left -= n
            if self.over:
                raise ConnectionAbortedError
            sink.sendall(data[:n])
            data = data[n:]
        sink.sendall(data)
