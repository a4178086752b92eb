# A signpost for type checkers and editors: kernmill.runtime is the folder ../runtime (docs/layout.md).
from runtime import *
