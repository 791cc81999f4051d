"""The bundled wsync command, under the name that pip gives it."""
from __future__ import annotations

import os
import sys

from ._agents import COMMAND


def main() -> None:
    """Becomes the command; its exit status is the process's."""
    os.execv(COMMAND, ["wsync", *sys.argv[1:]])
