"""libwsync's client of an engine: its steps, JSON over HTTP, and calls that run on threads of their own."""
from __future__ import annotations

import errno
import json
import math
import os
import threading
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union
from urllib.parse import urlsplit

from ..lib._library import Error, Strings, check, ffi, lib, text, text_and_free

MAX_VERSION_BYTES = len(ffi.new("wsync_engine_state *").version) - 1


class Refused(RuntimeError):
    """The server answered with an error. ``status`` is the HTTP status, after ``Http.call``. After a step, ``errno`` is wsync.h's, and
    ``changed_nothing`` is true if the step certainly changed nothing."""

    def __init__(self, sentence: str, status: int = 0, errno: int = 0, changed_nothing: bool = False):
        self.status, self.errno, self.changed_nothing = status, errno, changed_nothing
        super().__init__(sentence)


@dataclass(frozen=True)
class State:
    """The state that an engine reports; "" and None: not reported."""

    version: str
    path: str
    paused: Optional[bool]
    sleeping: Optional[bool]


class Http:
    """A client of one server. token: for requests that read; admin_token: for requests that change the server; if one is missing, the
    other is used. ca_file: certificate authorities for https. kind, pause_mode, cache: as in wsync.Engine; only the steps need them.
    Exceptions never contain a token, even if a reply repeats it. Thread safe; ``cancel`` cancels the requests in flight.

    The steps (pause, resume, flush, set_version, query) raise Refused, or Error if no reply came; with EHOSTUNREACH and EINVAL nothing was
    sent."""

    def __init__(self, url: str, token: Optional[str], admin_token: Optional[str] = None, ca_file: Optional[Union[str, "os.PathLike[str]"]] = None,
                 kind: Optional[str] = None, pause_mode: Optional[str] = None, cache: Optional[str] = None):
        keep, engine, out = Strings(), ffi.new("wsync_engine *"), ffi.new("wsync_engine_client **")
        absolute = os.path.abspath(ca_file) if ca_file else ca_file  # each call opens it; the working directory may change
        engine.url, engine.token, engine.admin_token, engine.ca_file = map(keep, (url, token, admin_token, absolute))
        engine.kind, engine.pause_mode, engine.cache = map(keep, (kind, pause_mode, cache))
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
        check(lib.wsync_engine_request(self._client, keep(path), keep(None if body is None else json.dumps(body)), _ms(timeout), status, out))
        reply = text_and_free(out)
        if status[0] != 200:
            raise Refused(f"{self.url}{path} answered {status[0]}: {reply[:800]}", status[0])
        try:
            value = json.loads(reply)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def pause(self, timeout: float) -> None:
        acted = ffi.new("int *")
        _check_step(lib.wsync_engine_pause(self._client, _ms(timeout), acted), acted[0])

    def resume(self, timeout: float) -> None:
        acted = ffi.new("int *")
        _check_step(lib.wsync_engine_resume(self._client, _ms(timeout), acted), acted[0])

    def flush(self, timeout: float) -> None:
        _check_step(lib.wsync_engine_flush(self._client, _ms(timeout)))

    def set_version(self, version: str, timeout: float) -> None:
        """Raises Refused with EPROTO and changed_nothing if only a load changes the version that the server reports."""
        keep, acted = Strings(), ffi.new("int *")
        _check_step(lib.wsync_engine_set_version(self._client, keep(version), _ms(timeout), acted), acted[0])

    def query(self, timeout: float) -> State:
        out = ffi.new("wsync_engine_state *")
        out.struct_size = ffi.sizeof("wsync_engine_state")
        _check_step(lib.wsync_engine_query(self._client, _ms(timeout), out))
        paused, sleeping = (None if value < 0 else bool(value) for value in (out.paused, out.sleeping))
        return State(text(out.version), text(out.path), paused, sleeping)

    def cancel(self) -> None:
        lib.wsync_engine_client_cancel(self._client)


def _ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def _check_step(rc: int, acted: int = 1) -> None:
    try:
        check(rc)
    except Error as e:
        if e.errno in (errno.EREMOTEIO, errno.EACCES, errno.EPROTO):
            raise Refused(e.strerror, errno=e.errno, changed_nothing=not acted) from None
        raise


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
