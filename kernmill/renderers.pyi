# A signpost for type checkers and editors: kernmill.renderers is the folder ../renderers (docs/layout.md).
from renderers import *
