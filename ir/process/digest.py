"""BLAKE2 digests from the interpreter's own module: hashlib would load OpenSSL, which takes 3 ms of every start."""

try:
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

__all__ = ["blake2b"]
