# A signpost for type checkers and editors: kernmill.ir is the folder ../ir (docs/layout.md).
from ir import *
