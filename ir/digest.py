"""Digests: what a node, a text or an entry of a cache is found again by.

BLAKE2 from where the interpreter has it itself: hashlib would load OpenSSL, 3 ms of every start.
"""

try:
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

__all__ = ["blake2b"]
