"""The command line, and the subcommands that have no Python function.

Commands import everything, and only `kernmill/__main__.py` imports them (tests/test_layers.py).
Functions that programs call too are elsewhere: `kernmill.quantize`, and `run` and `bench` in `kernmill.llm`.
"""
