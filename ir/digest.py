"""BLAKE2, which digests are made with, as the interpreter has it: hashlib would load OpenSSL, 3 ms of every start."""

try:
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

__all__ = ["blake2b"]
