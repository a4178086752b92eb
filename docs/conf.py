"""The static site: `sphinx-build -W docs site` (extra `docs`). The pages are the Markdown files beside this one."""

project = "kernmill"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "kernmill"
source_suffix = {".md": "markdown"}
exclude_patterns = ["reference/examples.txt"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # links to files outside docs/; tests/test_docs.py checks that they exist
