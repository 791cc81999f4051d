"""nginx: as what stands between agents and mounts, or as the server of a folder."""
import contextlib
import os
import shutil
import subprocess
import urllib.error
import urllib.request

import pytest

from world import at_end, free_port, unique, wait_for

CONF = """
daemon off;
%(user)s
worker_processes 1;
pid %(dir)s/pid;
error_log %(dir)s/error.log;
events {}
http {
    access_log %(dir)s/access.log;
    client_body_temp_path %(dir)s/body; proxy_temp_path %(dir)s/temp; fastcgi_temp_path %(dir)s/fastcgi;
    uwsgi_temp_path %(dir)s/uwsgi; scgi_temp_path %(dir)s/scgi;
%(http)s
    server {
        listen 127.0.0.1:%(port)d;
%(server)s
    }
}
"""


class Nginx:
    """Serves with these lines in its `server` and its `http` block; %(dir)s in them is a folder of its own. As root its
    workers are those of `user`: "NAME", or "NAME GROUP"."""

    def __init__(self, server, http="", user="root"):
        if not shutil.which("nginx"):
            pytest.skip("nginx is not installed")
        self.place, self.port = unique("nginx"), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        os.makedirs(self.place)
        own = {"dir": self.place}
        with open(self.place + "/conf", "w") as f:
            f.write(CONF % (own | {"port": self.port, "user": f"user {user};" if os.geteuid() == 0 else "",
                                   "http": http % own, "server": server % own}))
        self.output = open(self.place + "/output", "wb")
        self.process = subprocess.Popen(["nginx", "-e", self.place + "/error.log", "-c", self.place + "/conf"], stdout=self.output,
                                        stderr=self.output, stdin=subprocess.DEVNULL)
        at_end(self.end)
        wait_for(lambda: self.answers() or self.process.poll() is not None, "nginx")
        assert self.process.poll() is None, self.text("output") + self.text("error.log")

    def end(self):
        self.process.terminate()
        self.process.wait(20)
        self.output.close()

    def answers(self):
        with contextlib.suppress(OSError):
            try:
                urllib.request.urlopen(self.url + "/healthz", timeout=5).close()
            except urllib.error.HTTPError as e:
                return e.code < 500
            return True

    def text(self, name):
        with open(f"{self.place}/{name}") as f:
            return f.read()
