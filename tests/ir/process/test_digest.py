"""Digests without OpenSSL: the same as hashlib's."""

from __future__ import annotations

import hashlib
import subprocess
import sys

from kernmill.ir import blake2b


def test_it_is_the_one_of_hashlib() -> None:
    assert blake2b(b"a node", digest_size=16).digest() == hashlib.blake2b(b"a node", digest_size=16).digest()


def test_openssl_is_not_loaded() -> None:
    script = "import sys, kernmill; sys.exit('_hashlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
