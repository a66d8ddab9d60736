"""OpenAI's `prediction` on ``/v1/chat/completions``, and what became of it and of our other options.

SGLang's request model drops fields that it does not know, and its answer has no place for ours. So a request
with a prediction or with our options is answered by a copy of SGLang's chat handler: the text goes into
``custom_params``, where all our options travel, and counts (in `usage`) and warnings (in `sgl_spec`, where there
are any) come back from the ``meta_info`` of the answers that pass by.
"""

import copy
import json
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import ORJSONResponse, StreamingResponse
from sglang.srt.entrypoints.openai.protocol import ChatCompletionResponse
from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat

from sgl_spec.config import RequestOptions, shown
from sgl_spec.errors import ConfigError
from sgl_spec.sglang_plugin.requests import OPTIONS_KEY

FORM = '{"type": "content", "content": TEXT}'
COUNTS = ("accepted_prediction_tokens", "rejected_prediction_tokens")


class PredictingChat(OpenAIServingChat):
    """SGLang's chat endpoint, which also takes a prediction."""

    async def handle_request(self, request: Any, raw_request: Request) -> Any:
        """Answer one request; a wrong prediction is a 400 with one sentence."""
        prediction = (await raw_request.json()).get("prediction")
        if prediction is None and OPTIONS_KEY not in (request.custom_params or {}):
            return await super().handle_request(request, raw_request)
        try:
            if prediction is not None:
                request.custom_params = with_prediction(request.custom_params, predicted_text(prediction))
        except ConfigError as error:
            return self.create_error_response(str(error), err_type="BadRequest")
        view, watched = copy.copy(self), Watched(self.tokenizer_manager)
        view.tokenizer_manager = watched
        answer = await super(PredictingChat, view).handle_request(request, raw_request)
        if isinstance(answer, StreamingResponse):
            answer.body_iterator = add_to_stream(answer.body_iterator, watched)
        elif isinstance(answer, ChatCompletionResponse):
            content = answer.model_dump(mode="json", by_alias=True)
            add_report(content, watched)
            return ORJSONResponse(content)
        return answer


class Watched:
    """SGLang's tokenizer manager for one request: remembers the last report on each choice."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._reports: dict[int, dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    async def generate_request(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Yield what the manager yields: one answer or, for several choices, a list of them."""
        async for answer in self._manager.generate_request(*args, **kwargs):
            for position, one in enumerate(answer if isinstance(answer, list) else [answer]):
                report = one["meta_info"].get(OPTIONS_KEY)
                if report is not None:
                    self._reports[one.get("index", position)] = report
            yield answer

    def counts(self) -> dict[str, int]:
        """Return accepted and rejected prediction tokens, summed over the choices; empty without reports."""
        reports = [report for report in self._reports.values() if COUNTS[0] in report]
        return {name: sum(report[name] for report in reports) for name in COUNTS} if reports else {}

    def warnings(self) -> list[str]:
        """Return each warning once."""
        return list(dict.fromkeys(text for report in self._reports.values() for text in report.get("warnings", ())))


def predicted_text(prediction: Any) -> str:
    """Return the text of OpenAI's prediction object, whose content is a string or text parts.

    Raises ConfigError for any other form.
    """
    if not isinstance(prediction, dict) or prediction.get("type") != "content":
        raise ConfigError(f"prediction={shown(prediction)} is not valid: send {FORM}.")
    content = prediction.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"prediction.content={shown(content)} is not valid: send a text, or a list of text parts.")
    return "".join(str(text) for text in texts)


def with_prediction(custom_params: Any, text: str) -> dict[str, Any]:
    """Return `custom_params` with the prediction among our options; raises ConfigError for wrong options."""
    custom = dict(custom_params or {})
    options = custom.get(OPTIONS_KEY) or {}
    if isinstance(options, dict) and options.get("prediction") is not None:
        raise ConfigError(
            f"prediction is given twice: send it as the field, or in custom_params[{OPTIONS_KEY!r}], not both."
        )
    options = {**options, "prediction": text} if isinstance(options, dict) else options
    RequestOptions.parse(options)
    return {**custom, OPTIONS_KEY: options}


def add_report(answer: dict[str, Any], watched: Watched) -> None:
    """Put the counts where OpenAI's clients read them, and the warnings beside them. Mutates `answer`."""
    counts, warnings = watched.counts(), watched.warnings()
    if counts:
        details = answer["usage"].get("completion_tokens_details") or {}
        answer["usage"]["completion_tokens_details"] = {**details, **counts}
    if warnings:
        answer[OPTIONS_KEY] = {"warnings": warnings}


async def add_to_stream(events: AsyncIterable[Any], watched: Watched) -> AsyncIterator[Any]:
    """Yield a stream's events; the last one that has usage and no choice gets the report too."""
    async for event in events:
        yield with_report(event, watched) if '"choices":[]' in event and '"usage":{' in event else event


def with_report(event: str, watched: Watched) -> str:
    """Return the event ``data: JSON`` with counts and warnings."""
    chunk = json.loads(event.removeprefix("data: "))
    add_report(chunk, watched)
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
