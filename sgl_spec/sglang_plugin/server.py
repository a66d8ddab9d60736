"""SGLang's server in this process, with this package's plugins loaded: ``python -m sgl_spec.sglang_plugin.server``."""

import sys
from collections.abc import Sequence


def run(arguments: Sequence[str]) -> None:
    """Run SGLang's server with SGLang's command line; returns when it ends."""
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    from sgl_spec.sglang_plugin import lossy_stream

    lossy_stream.install()
    load_plugins()
    run_server(prepare_server_args(list(arguments)))


if __name__ == "__main__":
    from sgl_spec.orphans import die_with_stdin

    die_with_stdin()
    run(sys.argv[1:])
