"""Certificate authorities and the certificates that they sign, by trustme; a proxy that ends TLS before a server."""
import contextlib
import datetime
import socket
import ssl
import threading

import pytest

from world import at_end, unique

trustme = pytest.importorskip("trustme", reason="trustme is not installed, as PyPI could not be reached")


class Authority:
    """An authority; .file is its certificate."""

    def __init__(self):
        self.ca = trustme.CA()
        self.file = unique("authority") + ".pem"
        self.ca.cert_pem.write_to_path(self.file)

    def certificate(self, *names, expired=False):
        """Files of a certificate for these host names and addresses (default: this host's), and of its key."""
        now = datetime.datetime.now(datetime.timezone.utc)
        dates = {"not_before": now - datetime.timedelta(days=9), "not_after": now - datetime.timedelta(days=1)} if expired else {}
        made = self.ca.issue_cert(*(names or ("localhost", "127.0.0.1")), **dates)
        cert, key = unique("cert") + ".pem", unique("key") + ".pem"
        made.cert_chain_pems[0].write_to_path(cert)
        made.private_key_pem.write_to_path(key)
        return cert, key


class Tls:
    """Ends TLS before a server. While the server is away, new connections are accepted and closed, as by a TLS pass-through proxy."""

    def __init__(self, port):
        authority = Authority()
        self.ca = authority.file
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(*authority.certificate())
        self.port, self.away, self.closed = port, False, 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self.server.getsockname()[1]}"
        at_end(self.server.close)
        at_end(self.server.shutdown, socket.SHUT_RDWR)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.carry, args=self.server.accept()[:1], daemon=True).start()

    def carry(self, plain):
        if self.away:
            self.closed += 1
            with plain:
                plain.recv(4096)
            return
        with contextlib.suppress(OSError), self.context.wrap_socket(plain, server_side=True) as near, \
                socket.create_connection(("127.0.0.1", self.port)) as far:
            threading.Thread(target=self.pump, args=(far, near), daemon=True).start()
            self.pump(near, far)

    @staticmethod
    def pump(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
