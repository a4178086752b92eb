"""Benchmarks: kernmill against the peers installed beside it. `python -m bench --help`; bench/README.md says how."""
