# The words of daily work. CI calls the same ones.

# an editable install with every tool
setup:
    python -m pip install -e '.[dev]'

# the daily run; `just test tests/ir -k rewrite` for some of it
test *args:
    pytest -n auto {{args}}

# both type checkers
types:
    mypy && pyright

# style, import order, dead code, generated pages
lint:
    ruff check . && ruff format --check . && python tools/docgen.py --check

# write the golden files anew; look at the diff before you commit
golden *args:
    pytest --update-golden {{args}}

# the benchmarks: one JSON line each
bench *args:
    python -m bench {{args}}

# the pages made from tables
docs:
    python tools/docgen.py

# the static site, in site/ (extra docs)
site: docs
    sphinx-build -W docs site

# all that a merge needs, in a fresh environment; `just ci wheel` for one part
ci *parts:
    bash .ci/run {{parts}}
