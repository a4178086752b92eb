"""`kernmill explain "softmax(x @ w)" --shapes x=4x8,w=8x8`: an expression after every pass, with the reason of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kernmill.compiler import Draft, fusion_lines
from kernmill.ir import Kernel, SettingError, debug, print_uops
from kernmill.runtime import KernelPage, collecting_drafts, get_device, kernel_page

from ..methods.random import manual_seed
from ..profiling import Profile, profile
from ..profiling.report import write_report
from ..tensor import Tensor

__all__ = ["computed", "explain", "run", "tensors_of"]

_WORD = re.compile(r"([A-Za-z_]\w*)=(\d+(?:x\d+)*)")
_MOST_ELEMENTS = 1 << 24
_MOST_LINES = 60  # of one text, with DEBUG=0


class _Names(dict[str, object]):
    """The tensors, and every method of Tensor as a function of its first argument."""

    def __missing__(self, name: str) -> object:
        method = getattr(Tensor, name, None)
        if name.startswith("_") or not callable(method):
            raise SettingError(f"explain: {name!r} is neither a tensor of --shapes nor a method of Tensor.")
        return method


def run(text: str, shapes: str, page: str = "") -> int:
    """Print the expression's graph, its kernels, and the UOps of each after every pass; write the page if it is named.

    Raises:
        SettingError: a shape or the expression cannot be read; whatever the expression raises.
    """
    graph, found, drafts = computed(text, shapes)
    print(f"{text}\n\n1. The expression, as a graph of tensor operations: nothing is computed yet.\n")
    print(_first_lines(graph))
    kernels = list(_kernels(found))
    many = "s" if len(kernels) > 1 else ""
    print(f"2. The planner fuses it into {len(kernels)} kernel{many}. Why each ends where it does, and what it holds:")
    borders = [kernel for draft in drafts for kernel in fusion_lines(draft)]
    for name, lines in borders:
        print("\n" + "\n".join([name, *(f"    {line}" for line in lines)]))
    for number, (device, kernel) in enumerate(kernels, 1):
        print(f"\n== kernel {number}: {kernel.name} on {device}\n")
        print("\n".join(_lines(kernel_page(get_device(device), kernel))))
    if page:
        write_report(page, found, text, borders=borders)
        print(f"\n{page}: the same as a page; open it in a browser")
    return 0


def explain(text: str, shapes: str) -> tuple[str, list[KernelPage]]:
    """Return what `run` prints: the graph of the expression, and all that there is to see of each kernel.

    Raises:
        SettingError: a shape or the expression cannot be read; whatever the expression raises.
    """
    graph, found, _ = computed(text, shapes)
    return graph, [kernel_page(get_device(device), kernel) for device, kernel in _kernels(found)]


def computed(text: str, shapes: str) -> tuple[str, Profile, list[Draft]]:
    """Compute the expression. Return its graph, a profile with its kernels, and how it was planned.

    Raises:
        SettingError: a shape or the expression cannot be read; whatever the expression raises.
    """
    tensors = tensors_of(shapes)
    Tensor.realize(*tensors.values())
    with profile() as found, collecting_drafts() as drafts:
        result = _tensor_of(text, tensors)
        graph = print_uops(result.uop)
        result.realize()
    return graph, found, drafts


def tensors_of(shapes: str) -> dict[str, Tensor]:
    """Return random tensors by name, from `x=4x8,w=8x8`.

    Raises:
        SettingError: the text is not a list of names and sizes; a size is 0 or too large.
    """
    manual_seed(0)
    found: dict[str, Tensor] = {}
    for word in shapes.split(","):
        match = _WORD.fullmatch(word.strip())
        if match is None:
            raise SettingError(f"explain: --shapes {word!r} is not NAME=SIZExSIZE. Write it as x=4x8,w=8x8.")
        sizes = tuple(int(size) for size in match[2].split("x"))
        count = 1
        for size in sizes:
            count *= size
        if not 0 < count <= _MOST_ELEMENTS:
            raise SettingError(f"explain: --shapes {word}: {count:,} elements. Give 1 to {_MOST_ELEMENTS:,}.")
        found[match[1]] = Tensor.rand(*sizes)
    return found


def _tensor_of(text: str, tensors: Mapping[str, Tensor]) -> Tensor:
    """The tensor that the expression is."""
    try:
        code = compile(text, "<expression>", "eval")
    except (SyntaxError, ValueError) as error:
        raise SettingError(f"explain: {text!r} is not an expression of Python: {error}.") from None
    try:
        value = eval(code, {"__builtins__": {}}, _Names(tensors))  # what the user typed for this
    except (TypeError, AttributeError, NameError) as error:
        raise SettingError(f"explain: {text!r} cannot be computed: {error}") from None
    if not isinstance(value, Tensor):
        raise SettingError(f"explain: {text!r} is a {type(value).__name__}. Write an expression that is a Tensor.")
    return value


def _kernels(found: Profile) -> Iterator[tuple[str, Kernel]]:
    for ran in found.recorder.ran.values():
        for kernel in ran.kernels:
            yield ran.device, kernel


def _lines(page: KernelPage) -> Iterator[str]:
    """The passes of one kernel, then its texts."""
    for number, step in enumerate(page.passes):
        if step.name == "optimize":
            yield f"schedule: {'; '.join(page.schedule.split(chr(10))) or 'none: the loops are unchanged'}"
            yield f"estimate, one thread: {page.cost['why']}\n"
        yield f"-- {number + 1}. {step.name}: {step.why}\n\n{_first_lines(step.uops)}"
    yield f"-- {page.language}: what the device's compiler is given\n\n{_first_lines(page.code)}"
    if page.assembly:
        yield f"-- assembly: {page.assembly.count(chr(10))} lines; --html page.html shows them next to the UOps"


def _first_lines(text: str) -> str:
    """A text without source lines: there is one. Of a long one the first lines, unless DEBUG asks for all."""
    lines = re.sub(r"  # .*$", "", text.rstrip("\n"), flags=re.MULTILINE).split("\n")
    if len(lines) > _MOST_LINES and not debug():
        lines = [*lines[:_MOST_LINES], f"... and {len(lines) - _MOST_LINES} more lines; DEBUG=1 shows them"]
    return "\n".join(lines) + "\n"
