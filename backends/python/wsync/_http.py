"""JSON over HTTP to an engine, bounded, each call on a connection of its own; and such a call on a thread that can be given up."""
from __future__ import annotations

import errno
import http.client
import json
import socket
import threading
from typing import Any, Callable, Optional
from urllib.parse import urlsplit

MAX_REPLY_BYTES = 64 << 20


class Refused(RuntimeError):
    """The server answered with an error; ``status`` is its own."""

    def __init__(self, status: int, sentence: str):
        self.status = status
        super().__init__(sentence)


class Http:
    """One server. Thread safe; ``give_up`` ends what is under way."""

    def __init__(self, url: str, token: Optional[str]):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.path not in ("", "/"):
            raise ValueError(f"{url!r} is no address of a server: http(s)://HOST:PORT")
        self.url, self.host, self.port = url, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._open: set[http.client.HTTPConnection] = set()

    def call(self, path: str, body: Optional[dict[str, Any]], timeout: float) -> dict[str, Any]:
        """POST of body, or GET. The reply's object; {} where it is none. Refused; OSError: it was not reached, or broke off."""
        connection = self._make(self.host, self.port, timeout=timeout)
        self._open.add(connection)
        try:
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), self._headers)
            reply = connection.getresponse()
            said = reply.read(MAX_REPLY_BYTES)
        except http.client.HTTPException as e:
            raise ConnectionError(errno.ECONNRESET, f"{self.url}{path}: {type(e).__name__} {e}") from None
        except OSError as e:
            number = errno.ETIMEDOUT if isinstance(e, TimeoutError) else e.errno if e.errno and e.errno > 0 else errno.EHOSTUNREACH
            raise OSError(number, f"{self.url}{path}: {e.strerror or e}") from None
        finally:
            self._open.discard(connection)
            connection.close()
        if reply.status != 200:
            raise Refused(reply.status, f"{self.url}{path} answered {reply.status}: {said[:800].decode('utf-8', 'replace')}")
        try:
            found = json.loads(said)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def give_up(self) -> None:
        for connection in list(self._open):
            sock = connection.sock
            if sock is not None:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


class Call(threading.Thread):
    """A function on a thread of its own, which no exit of the interpreter waits for."""

    def __init__(self, function: Callable[..., Any], *args: Any):
        super().__init__(daemon=True)
        self._function, self._args = function, args
        self.value: Any = None
        self.error: Optional[BaseException] = None
        self.start()

    def run(self) -> None:
        try:
            self.value = self._function(*self._args)
        except BaseException as e:  # told by result
            self.error = e

    @property
    def failed(self) -> bool:
        return not self.is_alive() and self.error is not None

    def result(self, timeout: float) -> Any:
        """Its value, or its exception. TimeoutError."""
        self.join(timeout)
        if self.is_alive():
            raise TimeoutError(f"no answer within {timeout:g} s")
        if self.error is not None:
            raise self.error
        return self.value
