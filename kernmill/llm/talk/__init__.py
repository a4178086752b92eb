"""Conversations with a model: prompts from messages, and replies with reasoning and tool calls."""

from .call_formats import ToolCall
from .llm import LLM
from .pieces import Feed, Item, listen
from .replies import ReplyFormat, ReplyPart
from .reply import Prompt, Reply, TextOptions

__all__ = [
    "LLM", "Feed", "Item", "Prompt", "Reply", "ReplyFormat", "ReplyPart", "TextOptions", "ToolCall", "listen",
]  # fmt: skip
