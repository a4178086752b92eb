"""Conversations with a model: prompts from messages, and replies with reasoning and tool calls."""

from .call_formats import ToolCall
from .llm import LLM
from .pieces import Feed, PieceQueue
from .replies import ReplyFormat, ReplyPart
from .reply import Prompt, Reply, TextOptions

__all__ = ["LLM", "Feed", "PieceQueue", "Prompt", "Reply", "ReplyFormat", "ReplyPart", "TextOptions", "ToolCall"]
