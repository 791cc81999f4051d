"""A proxy between a mount and its engine or agent that holds requests back until the test lets them pass."""
import contextlib
import http.server
import threading
import urllib.error
import urllib.request

from world import at_end

LOADS = ("/update_weights_from_disk", "/collective_rpc")


class Between:
    """An HTTP server that passes requests on. Requests whose path contains one of `words` wait while `hold` is set, n_held counts them; they are answered with
    `wrong`, a status and a body, if that is set, or with zeros while `zeros` is set. `change`, a function of path and body, makes what is
    answered of what the server answered; `before`, the same of a request, is called before it is passed on. The connection of a request whose path contains one of
    `cut` is closed without an answer."""

    def __init__(self, server, *words):
        self.hold, self.held, self.n_held, self.zeros, self.wrong, self.cut = False, False, 0, False, None, ()
        self.change = self.before = None
        self.api = getattr(server, "api", None)
        between, over = self, threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
                meant = any(w in self.path for w in words)
                between.n_held += bool(meant and between.hold)
                while meant and between.hold and not over.is_set():
                    between.held = True
                    over.wait(0.02)
                if any(w in self.path for w in between.cut):
                    self.close_connection = True
                    return
                if between.before:
                    between.before(self.path, body)
                headers = {k: v for k, v in self.headers.items() if k.lower() in ("range", "content-type", "authorization")}
                status, text, got = *(meant and between.wrong or (None, b"")), {}
                if status is None:
                    try:
                        with urllib.request.urlopen(urllib.request.Request(server.url + self.path, data=body, headers=headers), timeout=60) as r:
                            status, text, got = r.status, r.read(), r.headers
                    except urllib.error.HTTPError as e:
                        status, text, got = e.code, e.read(), e.headers
                if meant and between.zeros:
                    text = bytes(len(text))
                if between.change and status < 300:
                    text = between.change(self.path, text)
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    for k in ("Content-Range", "ETag"):
                        if got.get(k):
                            self.send_header(k, got[k])
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)

            do_POST = do_GET

        http_server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        http_server.daemon_threads = True
        http_server.handle_error = lambda *_: None
        self.url = f"http://127.0.0.1:{http_server.server_address[1]}"
        threading.Thread(target=http_server.serve_forever, daemon=True).start()
        at_end(http_server.shutdown)
        at_end(over.set)
