"""JSON over HTTP to an engine by libwsync's client, and such a call on a thread that can be given up."""
from __future__ import annotations

import errno
import json
import math
import os
import threading
from typing import Any, Callable, Optional, Union
from urllib.parse import urlsplit

from ..lib._library import Error, Strings, check, ffi, lib, take


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
        keep, engine, out = Strings(), ffi.new("wsync_engine *"), ffi.new("wsync_engine_client **")
        whole = os.path.abspath(ca_file) if ca_file else ca_file  # it is opened by each call, wherever that runs
        engine.url, engine.token, engine.admin_token, engine.ca_file = map(keep, (url, token, admin_token, whole))
        try:
            check(lib.wsync_engine_client_open(engine, out))
        except Error as e:
            raise ValueError(e.strerror) if e.errno == errno.EINVAL else e from None
        self._client = ffi.gc(out[0], lib.wsync_engine_client_close)
        parts = urlsplit(url)
        self.url, self.host, self.port = url, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)

    def call(self, path: str, body: Optional[dict[str, Any]], timeout: float) -> dict[str, Any]:
        """POST of body, or GET. The reply's object; {} where it is none. Refused; Error: it was not reached (EHOSTUNREACH), or broke off."""
        status, out = ffi.new("int *"), ffi.new("char **")
        keep = Strings()
        check(lib.wsync_engine_request(self._client, keep(path), keep(None if body is None else json.dumps(body)), math.ceil(timeout * 1000), status, out))
        said = take(out)
        if status[0] != 200:
            raise Refused(status[0], f"{self.url}{path} answered {status[0]}: {said[:800]}")
        try:
            found = json.loads(said)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def give_up(self) -> None:
        lib.wsync_engine_client_cancel(self._client)


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
