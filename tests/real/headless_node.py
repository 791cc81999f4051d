"""A node of vLLM's without a server: headless_node.py OPTIONS, as `vllm serve --headless`, which does not start in the CPU build.

BIND=FROM:TO in the environment: TO is another folder for it than for all others, as a path is on another host."""
import ctypes
import os
import subprocess

CLONE_NEWNS = 0x20000


def bind(source, target):
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rslave", "/"], check=True)
    subprocess.run(["mount", "--bind", source, target], check=True)


def main():
    if "BIND" in os.environ:
        bind(*os.environ["BIND"].split(":"))
    from vllm.entrypoints.cli.serve import run_headless
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    options = make_arg_parser(FlexibleArgumentParser()).parse_args()
    options.api_server_count = 0
    run_headless(options)


if __name__ == "__main__":  # its worker imports this file, too
    main()
