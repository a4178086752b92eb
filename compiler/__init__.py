"""compiler."""

if __name__ != "kernmill.compiler":
    raise ImportError("import kernmill.compiler, not compiler: the bare name would load a second copy")
