# A signpost for type checkers and editors: kernmill.compiler is the folder ../compiler (docs/layout.md).
from compiler import *
