"""SGLang's server in this process, with this package's plugins loaded: ``python -m sgl_spec.sglang_plugin.server``."""

import gc
import importlib
import os
import sys
import warnings
from collections.abc import Sequence

INTERRUPTED = 130  # exit status, as a shell's
OUR_VARIABLES = "Environment variable SGL_SPEC_"  # SGLang takes every SGL_ for an old name of its own, and warns


def run(arguments: Sequence[str]) -> None:
    """Run SGLang's server with SGLang's command line; returns when it and all its processes ended.

    An interrupt ends the interpreter with INTERRUPTED, without a traceback.
    """
    try:
        _serve(list(arguments))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _serve(arguments: list[str]) -> None:
    """Serve; imports run without garbage collection, a sixth of their time: nearly all that they make stays."""
    gc.disable()
    warnings.filterwarnings("ignore", message=OUR_VARIABLES)
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    from sgl_spec.sglang_plugin import http_server, lossy_stream

    lossy_stream.install()
    load_plugins()
    server_args = prepare_server_args(arguments)
    importlib.import_module(http_server.MODULE)  # what SGLang would import next
    gc.enable()
    gc.freeze()
    try:
        run_server(server_args)
    finally:  # the end of the interpreter would wait for the others
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    from sgl_spec.orphans import die_with_stdin

    die_with_stdin()
    run(sys.argv[1:])
