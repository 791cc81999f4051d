"""Certificate authorities and the certificates that they sign, by trustme; a proxy that ends TLS before a server."""
import contextlib
import datetime
import ssl

import pytest

from proxy import Proxy
from world import unique


class Authority:
    """An authority; .file is its certificate."""

    def __init__(self):
        self.ca = pytest.importorskip("trustme", reason="trustme is not installed, as PyPI could not be reached").CA()
        self.file = unique("authority") + ".pem"
        self.ca.cert_pem.write_to_path(self.file)

    def certificate(self, *names, expired=False, days=None, to=None):
        """Files of a certificate for these host names and addresses (default: this host's), and of its key; days: until it ends; to: files
        that are written again."""
        now = datetime.datetime.now(datetime.timezone.utc)
        days = -1 if expired else days
        dates = {} if days is None else {"not_before": now - datetime.timedelta(days=9), "not_after": now + datetime.timedelta(days=days)}
        made = self.ca.issue_cert(*(names or ("localhost", "127.0.0.1")), **dates)
        cert, key = to or (unique("cert") + ".pem", unique("key") + ".pem")
        made.cert_chain_pems[0].write_to_path(cert)
        made.private_key_pem.write_to_path(key)
        return cert, key


class Tls(Proxy):
    """Ends TLS before a server. While .away is set, new connections are closed once the client has spoken, as by a proxy that passes TLS
    through to a server that is not there; .closed counts them."""

    scheme = "https"

    def __init__(self, port):
        authority = Authority()
        self.ca = authority.file
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(*authority.certificate())
        self.away, self.closed = False, 0
        super().__init__(port)

    def carry(self, near):
        if self.away:
            self.closed += 1
            with near:
                near.recv(4096)
            return
        with contextlib.suppress(OSError):
            super().carry(self.context.wrap_socket(near, server_side=True))
