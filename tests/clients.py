"""Clients that ask an agent one thing after the other on one connection: by HTTP, by HTTPS with a certificate, by the unix socket."""
import http.client
import json
import os
import socket
import struct

from world import SLOW, at_end


class Http:
    """A client by http, or by https with a certificate; one connection."""

    def __init__(self, url, token=None, context=None):
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        kind = http.client.HTTPSConnection if context else http.client.HTTPConnection
        self.connection = kind("127.0.0.1", int(url.rsplit(":", 1)[1]), timeout=30 * SLOW, **({"context": context} if context else {}))
        at_end(self.connection.close)

    def ask(self, method, path, body=None):
        self.connection.request(method, path, body=json.dumps(body) if body is not None else None, headers=self.headers)
        answer = self.connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")


class Unix:
    """A client by the socket (transports/ipc/ipc.h); 401 and 403 stand for its EACCES and EPERM."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30 * SLOW)
        self.socket.connect(path)
        at_end(self.socket.close)

    def take(self, n):
        got = b""
        while len(got) < n:
            more, fds, *_ = socket.recv_fds(self.socket, n - len(got), 64)
            for fd in fds:
                os.close(fd)
            assert more, "the agent closed the connection"
            got += more
        return got

    def ask(self, method, path, body=None):
        path, _, query = path.partition("?")
        text = json.dumps({"method": method, "path": path, "query": query, "body": body}).encode()
        self.socket.sendall(struct.pack("<4sII", b"WSF1", len(text), 0) + text)
        size = struct.unpack("<4sII", self.take(12))[1]
        reply = json.loads(self.take(size))
        return {"EACCES": 401, "EPERM": 403}.get(reply.get("errno"), reply["status"]), json.dumps(reply)
