"""runtime."""

if __name__ != "kernmill.runtime":
    raise ImportError("import kernmill.runtime, not runtime: the bare name would load a second copy")

from .buffer import Buffer as Buffer
from .execute import download as download
from .execute import realize as realize
from .execute import upload as upload
