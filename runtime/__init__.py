"""runtime."""

if __name__ != "kernmill.runtime":
    raise ImportError("import kernmill.runtime, not runtime: the bare name would load a second copy")
