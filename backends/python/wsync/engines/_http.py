"""JSON over HTTP to an engine, bounded, each call on a connection of its own; and such a call on a thread that can be given up."""
from __future__ import annotations

import errno
import http.client
import json
import os
import socket
import ssl
import threading
from typing import Any, Callable, Optional, Union
from urllib.parse import urlsplit

MAX_REPLY_BYTES = 64 << 20
SHORTEST_KEY = 8  # that is looked for in replies, as in backends/engine/http.c


class Refused(RuntimeError):
    """The server answered with an error; ``status`` is its own."""

    def __init__(self, status: int, sentence: str):
        self.status = status
        super().__init__(sentence)

    @property
    def changed_nothing(self) -> bool:
        """It did not begin: what a server answers before it looks at its own state. A gateway's 502 or a failure inside says no such thing."""
        return self.status in (400, 401, 403, 404, 405, 413, 415, 422)


class Http:
    """One server. token: of what only asks; admin_token: of what changes it; where one is missing the other is used. ca_file: whom to
    trust for https. A key is never part of an exception, also where a reply repeats it. Thread safe; ``give_up`` ends what is under way."""

    def __init__(self, url: str, token: Optional[str], admin_token: Optional[str] = None, ca_file: Optional[Union[str, "os.PathLike[str]"]] = None):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.path not in ("", "/"):
            raise ValueError(f"{url!r} is no address of a server: http(s)://HOST:PORT")
        self.url, self.host, self.port = url, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context(cafile=os.fspath(ca_file) if ca_file is not None else None) if parts.scheme == "https" else None
        self._keys = {"GET": token or admin_token, "POST": admin_token or token}
        self._open: set[http.client.HTTPConnection] = set()

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def _blanked(self, text: str) -> str:
        """What a server says ends up in messages, and some repeat the key that they did not like."""
        for key in filter(None, self._keys.values()):
            if len(key) >= SHORTEST_KEY:
                text = text.replace(key, "*" * len(key)).replace(json.dumps(key)[1:-1], "*" * len(key))
        return text

    def call(self, path: str, body: Optional[dict[str, Any]], timeout: float) -> dict[str, Any]:
        """POST of body, or GET. The reply's object; {} where it is none. Refused; OSError: it was not reached, or broke off."""
        method = "GET" if body is None else "POST"
        key = self._keys[method]
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        connection = self._connection(timeout)
        self._open.add(connection)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            reply = connection.getresponse()
            said = self._blanked(reply.read(MAX_REPLY_BYTES).decode("utf-8", "replace"))
        except http.client.HTTPException as e:
            raise ConnectionError(errno.ECONNRESET, self._blanked(f"{self.url}{path}: {type(e).__name__} {e}")) from None
        except OSError as e:
            number = errno.ETIMEDOUT if isinstance(e, TimeoutError) else e.errno if e.errno and e.errno > 0 else errno.EHOSTUNREACH
            raise OSError(number, f"{self.url}{path}: {e.strerror or e}") from None
        finally:
            self._open.discard(connection)
            connection.close()
        if reply.status != 200:
            raise Refused(reply.status, f"{self.url}{path} answered {reply.status}: {said[:800]}")
        try:
            found = json.loads(said)
        except (ValueError, RecursionError):
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
