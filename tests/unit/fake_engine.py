"""A server in this process that speaks the engine's HTTP contract, with answers that depend on the prompt alone."""

import hashlib
import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


def answer_to(prompt: str) -> str:
    """The deterministic answer."""
    return "answer-" + hashlib.sha256(prompt.encode()).hexdigest()[:8]


def meta_of(prompt: str, text: str) -> dict[str, Any]:
    spec = {
        "num_spec_steps": 2,
        "num_plain_steps": 1,
        "num_draft_tokens": 4,
        "num_accepted_draft_tokens": 3,
        "accepted_by_source": {"model": {"proposed": 4, "accepted": 3, "draft_acceptance_rate": 0.75}},
        "reason_not_speculated": None,
    }
    return {
        "prompt_tokens": len(prompt.split()),
        "completion_tokens": 6,
        "cached_tokens": 0,
        "finish_reason": {"type": "stop"},
        "sgl_spec": spec,
    }


class FakeEngine:
    """`fail` maps a text in the prompt to [HTTP status, how often]; `reply` overrides the texts."""

    def __init__(self, delay_s: float = 0.0, reply: Any = None) -> None:
        self.fail: dict[str, list[int]] = {}
        self.delay_s = delay_s
        self.reply = reply or answer_to
        self.prompts: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def send(self, document: Any, status: int = 200) -> None:
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                self.send({"model_path": "fake", "served_model_name": "fake"})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                engine.handle(self, body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.server.shutdown()
        self.server.server_close()

    def handle(self, handler: Any, body: dict[str, Any]) -> None:
        self.bodies.append(body)
        time.sleep(self.delay_s)
        if handler.path == "/tokenize":
            if isinstance(body["prompt"], str):
                handler.send({"count": len(body["prompt"].split())})
                return
            counts = [len(text.split()) for text in body["prompt"]]
            handler.send({"tokens": [[0] * count for count in counts], "count": counts, "max_model_len": 4096})
        elif handler.path == "/generate" and isinstance(body["text"], list):
            handler.send([self.scored(text) for text in body["text"]])
        elif handler.path == "/generate":
            self.generate(handler, body)
        elif handler.path == "/v1/chat/completions":
            self.chat(handler, body)
        elif handler.path == "/v1/completions":
            self.complete(handler, body)
        else:
            handler.send({"error": {"message": f"no such path {handler.path}"}}, 404)

    def chat(self, handler: Any, body: dict[str, Any]) -> None:
        prompt = body["messages"][-1]["content"]
        self.prompts[prompt] += 1
        text = self.reply(prompt)
        usage: dict[str, Any] = {"prompt_tokens": 3, "completion_tokens": 6}
        if "prediction" in body:
            same = body["prediction"]["content"] == text
            kept = {"accepted_prediction_tokens": 5 * same, "rejected_prediction_tokens": 5 * (not same)}
            usage["completion_tokens_details"] = kept
        if body.get("stream"):
            parts = [{"choices": [{"delta": {"content": part}}]} for part in (text[:3], text[3:])]
            self.stream(handler, [*parts, {"choices": [], "usage": usage}])
            return
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        handler.send({"id": "chatcmpl-1", "choices": [choice], "usage": usage})

    def complete(self, handler: Any, body: dict[str, Any]) -> None:
        prompt = body["prompt"]
        text = self.reply(prompt)
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": 6}
        if body.get("stream"):
            parts = [{"choices": [{"text": part, "finish_reason": None}]} for part in (text[:3], text[3:])]
            self.stream(handler, [*parts, {"choices": [], "usage": usage}])
            return
        choice: dict[str, Any] = {"text": text, "finish_reason": "stop"}
        if "prompt_logprobs" in body:
            likely = -1.0 if prompt.endswith("good") else -2.0
            choice["prompt_logprobs"] = [None, *[{"7": {"logprob": likely}}] * len(prompt.split())]
        handler.send({"choices": [choice], "usage": usage})

    def stream(self, handler: Any, documents: list[dict[str, Any]]) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        for document in documents:
            handler.wfile.write(b"data: " + json.dumps(document).encode() + b"\n\n")
        handler.wfile.write(b"data: [DONE]\n\n")
        handler.close_connection = True

    def scored(self, text: str) -> dict[str, Any]:
        """For select: the longest text has the best logprob."""
        logprobs = [[-1.0 / len(text), 0, "x"], [-1.0 / len(text), 1, "y"]]
        return {"text": "", "meta_info": {"input_token_logprobs": logprobs, "output_token_logprobs": []}}

    def generate(self, handler: Any, body: dict[str, Any]) -> None:
        prompt = body["text"]
        for mark, rule in self.fail.items():
            if mark in prompt and rule[1] > 0:
                rule[1] -= 1
                handler.send({"error": {"message": f"told to fail on {mark}"}}, rule[0])
                return
        if body["sampling_params"].get("max_new_tokens") == 0:
            handler.send({"text": "", "meta_info": meta_of(prompt, "")})
            return
        self.prompts[prompt] += 1
        text = self.reply(prompt)
        if not body.get("stream"):
            handler.send({"text": text, "meta_info": meta_of(prompt, text)})
            return
        ends = (len(text) // 2, len(text))
        self.stream(handler, [{"text": text[:end], "meta_info": meta_of(prompt, text[:end])} for end in ends])
