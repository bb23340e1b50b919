"""Settings of a model that a server holds: how hard it may be asked, and what it charges."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ragen2.component import Settings


class ServerSettings(Settings):
    """How a served model is asked; but for `api`, nothing here changes what it answers."""

    url: str = Field(
        "",
        description='vLLM server that samples for training with `model.engine = "server"`, as '
        "http://host:8000#NAME",
    )
    api: Literal["tokens", "chat"] = Field(
        "tokens",
        description="how `eval` asks: `tokens` sends token ids and gets them back with log-probs, `chat` "
        "sends and gets text, as any server can, and measures no collapse",
    )
    push_folder: str = Field(
        "", description="folder that it can read, for new weights; left out, one of this machine's"
    )
    concurrency: int = Field(16, ge=1, description="requests under way at the same time")
    batch: int = Field(16, ge=1, description="prompts in one scoring request")
    timeout: float = Field(
        120.0, gt=0.0, description="seconds that an answer may take, then it is asked for again"
    )
    retries: int = Field(6, ge=0, description="tries after the first, for a request that failed")
    backoff: float = Field(
        0.5,
        ge=0.0,
        description="seconds before the first retry; each later one waits twice as long",
    )
    longest_wait: float = Field(
        120.0, gt=0.0, description="seconds to wait before a retry at most, also if the server asks"
    )
    input_price: float = Field(
        0.0, ge=0.0, description="price per million prompt tokens, for the total at the end"
    )
    output_price: float = Field(
        0.0, ge=0.0, description="price per million written tokens, for the total at the end"
    )
    api_key_env: str = Field(
        "OPENAI_API_KEY", description="environment variable that holds the key, if there is one"
    )
