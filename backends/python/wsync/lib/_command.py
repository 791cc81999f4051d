"""Entry point of the bundled wsync command, installed by pip as `wsync`."""
from __future__ import annotations

import os
import sys

from ._processes import COMMAND


def main() -> None:
    """Replaces this process by the command."""
    os.execv(COMMAND, ["wsync", *sys.argv[1:]])
