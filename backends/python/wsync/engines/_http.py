"""JSON over HTTP to an engine by libwsync's client, and calls that run on threads of their own."""
from __future__ import annotations

import errno
import json
import math
import os
import threading
from typing import Any, Callable, Optional, Union
from urllib.parse import urlsplit

from ..lib._library import Error, Strings, check, ffi, lib, text_and_free


class Refused(RuntimeError):
    """The server answered with an error; ``status`` is the HTTP status."""

    def __init__(self, status: int, sentence: str):
        self.status = status
        super().__init__(sentence)

    @property
    def changed_nothing(self) -> bool:
        """Whether the request certainly changed nothing: a server answers with these statuses before it acts. A gateway's 502 or a 500 does
        not show that."""
        return self.status in (400, 401, 403, 404, 405, 413, 415, 422)


class Http:
    """A client of one server. token: for requests that read; admin_token: for requests that change the server; if one is missing, the
    other is used. ca_file: certificate authorities for https. Exceptions never contain a token, even if a reply repeats it. Thread safe;
    ``give_up`` cancels the requests in flight."""

    def __init__(self, url: str, token: Optional[str], admin_token: Optional[str] = None, ca_file: Optional[Union[str, "os.PathLike[str]"]] = None):
        keep, engine, out = Strings(), ffi.new("wsync_engine *"), ffi.new("wsync_engine_client **")
        absolute = os.path.abspath(ca_file) if ca_file else ca_file  # each call opens it; the working directory may change
        engine.url, engine.token, engine.admin_token, engine.ca_file = map(keep, (url, token, admin_token, absolute))
        try:
            check(lib.wsync_engine_client_open(engine, out))
        except Error as e:
            raise ValueError(e.strerror) if e.errno == errno.EINVAL else e from None
        self._client = ffi.gc(out[0], lib.wsync_engine_client_close)
        parts = urlsplit(url)
        self.url, self.host, self.port = url, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)

    def call(self, path: str, body: Optional[dict[str, Any]], timeout: float) -> dict[str, Any]:
        """POST of body, or GET if there is none. Returns the reply's JSON object, or {} if the reply is none. Raises Refused, or Error if the
        server was not reached (EHOSTUNREACH) or the connection broke."""
        status, out = ffi.new("int *"), ffi.new("char **")
        keep = Strings()
        check(lib.wsync_engine_request(self._client, keep(path), keep(None if body is None else json.dumps(body)), math.ceil(timeout * 1000), status, out))
        reply = text_and_free(out)
        if status[0] != 200:
            raise Refused(status[0], f"{self.url}{path} answered {status[0]}: {reply[:800]}")
        try:
            value = json.loads(reply)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def give_up(self) -> None:
        lib.wsync_engine_client_cancel(self._client)


class Call(threading.Thread):
    """Runs a function on a daemon thread."""

    def __init__(self, function: Callable[..., Any], *args: Any):
        super().__init__(daemon=True)
        self._function, self._args = function, args
        self.value: Any = None
        self.error: Optional[BaseException] = None
        self.start()

    def run(self) -> None:
        try:
            self.value = self._function(*self._args)
        except BaseException as e:  # raised by result()
            self.error = e

    @property
    def failed(self) -> bool:
        return not self.is_alive() and self.error is not None

    def result(self, timeout: float) -> Any:
        """Returns the function's value or raises its exception. TimeoutError."""
        self.join(timeout)
        if self.is_alive():
            raise TimeoutError(f"no answer within {timeout:g} s")
        if self.error is not None:
            raise self.error
        return self.value
