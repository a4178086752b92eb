"""The command line, and the subcommands that are nothing else.

Arrows point down: commands import everything, and only `kernmill/__main__.py` imports them (tests/test_layers.py).
What programs call as well stands outside: `kernmill.quantize`, and `run` and `bench` in `kernmill.llm`.
"""
