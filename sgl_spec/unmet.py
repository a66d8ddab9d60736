"""What a request asks for and its server does not do: the answer says so, one sentence each."""

from sgl_spec.config import RequestOptions, SpecConfig


def warnings(config: SpecConfig, options: RequestOptions) -> list[str]:
    """Return the sentences about `options` on a server with `config`; normally none.

    A number of drafted tokens is a limit, so one above the server's own is no news, but for controller=fixed
    it is the number itself.
    """
    if not options.speculate:
        return []
    found = []
    if options.prediction is not None and not config.prediction:
        found.append("prediction is not used: the server was started with prediction=False.")
    asked, most = options.num_speculative_tokens, config.num_speculative_tokens
    if asked is not None and asked > most and (options.controller or config.controller) == "fixed":
        found.append(
            f"num_speculative_tokens={asked} with controller=fixed is cut to {most}: the server was started with "
            f"num_speculative_tokens={most}."
        )
    return found
