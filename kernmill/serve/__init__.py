"""A server of language models: OpenAI's interface over HTTP, and a page to chat. Imported by `kernmill serve`."""
