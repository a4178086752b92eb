"""The command line: `kernmill profile | explain | run | serve | bench | quantize | tune | info | cache | demo | ..`."""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TextIO

import kernmill
from kernmill.ir import SETTINGS, Context, KernmillError, SettingError, check_environment, setting
from kernmill.runtime import (
    canonical_devices,
    compile_cache,
    default_device,
    device_indices,
    device_list,
    device_names,
    devices_of_rank,
    get_device,
    host,
)

from . import model_parsers, options

__all__ = ["main"]

_RUN = "write text with a language model from a GGUF file"
_SERVE = "serve language models over HTTP, as OpenAI's interface and as a page"
_QUANTIZE = "write a GGUF file with its weights in fewer bits"
_QUANTIZED: dict[str, dict[str, Any]] = {
    "source": {"metavar": "IN", "help": "a GGUF file, or the first part of a split one"},
    "target": {"metavar": "OUT", "help": "output file, not IN"},
    "mix": {"metavar": "MIX", "help": "such as Q4_K_M, Q8_0 or Q4_0"},
    "threads": {
        "metavar": "THREADS", "nargs": "?", "type": options.whole_number("number of threads", 1),
        "help": "default: the setting THREADS",
    },
}  # fmt: skip
_COUNT = options.whole_number("integer", 1)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # the folder kernmill/
_RANK_0_S = 1.0  # that its message may take
_ROOT = os.path.dirname(_PACKAGE)  # of a checkout


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 1 for a finding, 2 for a mistake, 130 for Ctrl-C."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # `kernmill run .. >&-`: closed, like an empty file
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    status, said = _ended(sys.argv[1:] if arguments is None else arguments)
    try:
        print(said, end="\n" if said else "", file=sys.stderr, flush=True)
    except OSError:  # it is full or closed: the error does not matter
        _drop(sys.stderr)
    if status:
        _end_the_job(status)
    return status


def _end_the_job(status: int) -> None:
    """End the other ranks of a job: they may wait for this one for ever. A script's `sys.exit` is not seen by them."""
    from ..dist import end

    end(status)


def _drop(stream: TextIO) -> None:
    """Drop the buffered output of a stream: Python would try to write it at exit, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _ended(arguments: Sequence[str]) -> tuple[int, str]:
    """Return the exit status of a command, and a message about its end."""
    try:
        status = _run(_given(arguments))
        sys.stdout.flush()
        return status, ""
    except KernmillError as error:
        if _is_debugging():
            raise
        return 2, f"kernmill: {_speaker()}{error}"
    except KeyboardInterrupt:
        return 130, "\nkernmill: stopped."
    except OSError as error:
        if not _is_of_output(error):
            raise
        _drop(sys.stdout)
        if error.errno == errno.EPIPE:  # `kernmill info | head`
            return 141, ""
        return 2, f"kernmill: the output cannot be written: {error.strerror}. Redirect it."


def _is_of_output(error: OSError) -> bool:
    """True if the error is that stdout cannot be written."""
    if error.errno == errno.EBADF:  # `kernmill info 1</dev/null`, or a fault of ours
        try:
            os.write(sys.stdout.fileno(), b"")
        except OSError:
            return True
    return error.errno in (errno.EPIPE, errno.ENOSPC)


def _run(given: argparse.Namespace) -> int:
    """The command, on its device."""
    check_environment()
    command: Callable[[argparse.Namespace], int] = given.command
    device = getattr(given, "device", None)
    if device is None:
        return command(given)
    with Context(DEVICE=canonical_devices(devices_of_rank(device))):
        get_device()
        return command(given)


def _given(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the command and its arguments; options shared with llama.cpp are parsed by their tables."""
    rest = list(arguments[1:])
    if "--list-devices" in rest and arguments[0] in ("run", "serve", "bench"):
        return argparse.Namespace(command=list_devices)
    if arguments[:1] == ["run"]:
        return argparse.Namespace(command=run_model, **vars(options.read("run", rest, description=_RUN)))
    if arguments[:1] == ["serve"]:
        paths = {"paths": {"nargs": "*", "metavar": "MODEL", "help": "GGUF files"}}
        return argparse.Namespace(command=run_serve, **vars(options.parse("serve", rest, paths, description=_SERVE)))
    if arguments[:1] == ["quantize"]:
        return argparse.Namespace(
            command=run_quantize, **vars(options.parse("quantize", rest, _QUANTIZED, description=_QUANTIZE))
        )
    if arguments[:1] == ["bench"]:
        return argparse.Namespace(command=run_bench, rest=rest)
    return model_parsers.parsed(_parser(), arguments)


def _speaker() -> str:
    """Return the rank that has an error. If rank 0 has the same one, its end is the end of all before this returns."""
    from ..dist.mpi import job_rank

    if not (rank := job_rank()):
        return ""
    time.sleep(_RANK_0_S)
    return f"rank {rank}: "


def _is_debugging() -> bool:
    """True if the traceback is shown, with DEBUG=1 and more; DEBUG itself may be the invalid setting."""
    try:
        return int(setting("DEBUG")) >= 1
    except KernmillError:
        return False


class _Parser(argparse.ArgumentParser):
    """Of commands: each option has one name."""

    def __init__(self, **texts: Any) -> None:
        super().__init__(allow_abbrev=False, **texts)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="kernmill", description="A tensor compiler.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(required=True, metavar="command")
    info = commands.add_parser("info", help="version, devices, CPU features, cache, settings")
    info.add_argument("--measure", action="store_true", help="measure this CPU for the estimate of times, and use that")
    info.add_argument("--forget", action="store_true", help="use the row of this CPU's family again")
    info.add_argument("--links", action="store_true", help="what placement knows of DEVICE: measured rates and links")
    info.set_defaults(command=show_info)
    demo = commands.add_parser(
        "demo", help="train a tiny language model, generate stories, and show the time per kernel"
    )
    demo.add_argument("--steps", type=_COUNT, default=240, help="training steps (default %(default)s)")
    demo.add_argument(
        "--seed", type=int, default=1, help="random seed of weights, batches and text (default %(default)s)"
    )
    demo.add_argument("--device", help="such as LLVM or PYTHON; default: the setting DEVICE")
    demo.set_defaults(command=run_demo)
    commands.add_parser("run", help=_RUN, add_help=False)
    model_parsers.add_parsers(commands.add_parser, run_on_model)
    commands.add_parser("serve", help=_SERVE, add_help=False)
    commands.add_parser("quantize", help=_QUANTIZE, add_help=False)
    cache = commands.add_parser("cache", help="the kernels and plans on disk")
    cache.add_argument("action", choices=("info", "verify", "clear"))
    cache.set_defaults(command=run_cache)
    _add_program_commands(commands.add_parser)
    _add_onnx(commands.add_parser("onnx", help="show an ONNX model, or time it next to onnxruntime"))
    commands.add_parser(
        "bench",
        help="measure tokens per second of a model; without a model, run the comparison benchmarks of a checkout",
        add_help=False,
    )
    conformance = commands.add_parser("conformance", help="run every op on a device and compare with the evaluator")
    conformance.add_argument("--device", help="device name, such as LLVM (default: the setting DEVICE)")
    conformance.add_argument("--failures", type=int, default=20, metavar="N", help="show up to N failures (default 20)")
    conformance.set_defaults(command=run_conformance)
    return parser


def _add_onnx(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="an .onnx file")
    parser.add_argument("--bench", action="store_true", help="time it on random inputs")
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help="size of a named axis (default 1); may be repeated",
    )
    parser.add_argument("--runs", type=_COUNT, default=20, help="calls that are timed (default %(default)s)")
    parser.add_argument("--random-weights", type=int, metavar="SEED", help="draw weights that are one constant")
    parser.add_argument("--threads", type=_COUNT, help="default: the setting THREADS")
    parser.add_argument("--device", help="such as LLVM; default: the setting DEVICE")
    parser.set_defaults(command=run_onnx)


class _Version(argparse.Action):
    """--version: the version is read only when requested."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Say it, and exit."""
        print(f"kernmill {kernmill.__version__}")
        parser.exit()


# --- info ------------------------------------------------------------------------------------------------------------
def show_info(given: argparse.Namespace) -> int:
    """Print devices, CPU features, cache and settings; or measure this CPU."""
    if given.measure or given.forget:
        from .machine_row import run

        return run(is_forgotten=given.forget)
    if given.links:
        from . import links

        return links.run()
    print(f"kernmill {kernmill.__version__}, Python {sys.version.split()[0]}, {_PACKAGE}")
    print("\ndevices")
    default = default_device()
    get_device(default)  # an unknown DEVICE is a mistake, not a line of the table
    for name in device_names():
        for line in _device_lines(name, default):
            print(f"  {line}")
    cpu = host.this_host()
    threads = f"{cpu.threads()} thread{'s' if cpu.threads() > 1 else ''}"
    print(f"\nCPU {cpu.cpu} ({cpu.arch}), {threads}; caches {cpu.l1 >> 10} KiB, {cpu.l2 >> 10} KiB, {cpu.l3 >> 10} KiB")
    used = [feature[1:] for feature in cpu.features if feature.startswith("+")]
    print(_wrapped("features used: ", used))
    print(f"machine of the estimate: {get_device('LLVM').target.machine.name}")
    print("\ncache")
    _show_cache()
    changed = {name: setting(name) for name, row in SETTINGS.items() if setting(name) != row.default}
    print("\nsettings that differ from the default")
    for name, value in changed.items() or {"none": ""}.items():
        print(f"  {name}={value}" if value != "" else f"  {name}")
    return 0


def list_devices(given: argparse.Namespace) -> int:
    """--list-devices: a line for each device that can be opened."""
    for name in device_names():
        print("\n".join(_device_lines(name, default_device())))
    return 0


def _device_lines(base: str, default: str) -> list[str]:
    """Return the devices of a kind: description, target, memory and details; or why it cannot be used."""
    try:
        indices = device_indices(base)
    except Exception as error:  # a kind that cannot be listed must not hide the others
        return [f"{base:10} cannot be used: {error}"]
    lines: list[str] = []
    for index in indices:
        name = f"{base}:{index}" if index else base
        try:
            device = get_device(name)
            props, target = device.props(), device.target
        except Exception as error:  # nor a device that cannot be opened
            lines.append(f"{name:10} cannot be used: {error}")
            continue
        unit, size = ("GiB", 2**30) if props.total_bytes >= 2**30 else ("MiB", 2**20)
        memory = f"{props.total_bytes / size:.1f} {unit}" if props.total_bytes else "host memory"
        memory = f"{props.free_bytes / size:.1f} of {memory} free" if props.free_bytes else memory
        mark = "  (default)" if name == default else ""
        lines.append(f"{name:10} {device.kind:6} {device.description}; {target.name}; {memory}{mark}")
        for detail in device.details():
            lines += [f"{'':10} {part}" for part in _wrapped("", detail.split()).splitlines()]
    return lines


def _wrapped(head: str, words: Sequence[str], width: int = 100) -> str:
    lines = [head]
    for word in words:
        if len(lines[-1]) + len(word) > width:
            lines.append("  ")
        lines[-1] += f"{word} "
    return "\n".join(line.rstrip() for line in lines)


# --- demo, run, quantize, cache, tune, bench, conformance ------------------------------------------------------------
def run_demo(given: argparse.Namespace) -> int:
    """Train a tiny language model."""
    from .demo import run

    run(given.steps, given.seed)
    return 0


def run_quantize(given: argparse.Namespace) -> int:
    """Write a GGUF file in fewer bits."""
    from .quantizing import write_quantized

    with _unwound(), Context(THREADS=given.threads or setting("THREADS")):
        return write_quantized(given)


@contextmanager
def _unwound() -> Generator[None]:
    """Make SIGTERM and a closed terminal leave the block as Ctrl-C does: half-written files are removed on the way."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # not those that `nohup` ignores
    taken = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in taken:
            signal.signal(number, leave)
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _show_cache() -> dict[str, object]:
    facts = compile_cache.default_cache().info()
    if facts["folder"] is None:
        print("  off (CACHE=0)")
        return facts
    state = "" if facts["usable"] else "; cannot be used" if not facts["read_only"] else "; read only, empty"
    print(f"  {facts['folder']}{state}")
    print(f"  {facts['entries']} entries (kernels, plans, schedules), {int(str(facts['size_bytes'])) / 2**20:.1f} of "
          f"{int(str(facts['max_bytes'])) >> 20} MiB")  # fmt: skip
    return facts


def run_cache(given: argparse.Namespace) -> int:
    """Show, check or empty the kernel cache; 1 when entries were damaged."""
    from ..llm import kept_weights

    cache = compile_cache.default_cache()
    if given.action == "info":
        _show_cache()
        print(f"  {kept_weights.kept_bytes() / 2**20:.1f} MiB of kept weights (KEEP_WEIGHTS_MB)")
        return 0
    if given.action == "clear":
        print(f"{cache.clear()} entries deleted from {cache.folder or 'no folder (CACHE=0)'}")
        if count := kept_weights.clear():
            print(f"{count} files of kept weights deleted")
        return 0
    whole, older, damaged = cache.verify()
    if older:
        print(f"{older} entries of an older version are deleted")
    print(f"{whole} entries are valid, {damaged} are damaged{' and are deleted' if damaged else ''}")
    return 1 if damaged else 0


def run_tune(given: argparse.Namespace) -> int:
    """Search for schedules; 1 when the program failed, or one gave wrong results."""
    from .tuning import run

    options.check_path("tune", given.program, "Give a script, or the name of a module.")
    return run(given.program, given.arguments, given.seconds, given.beam)


def _add_program_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands that look at a program: tune, explain, profile, report."""
    tuning = add("tune", help="search for faster schedules of a program's kernels and store them")
    tuning.add_argument(
        "--seconds", type=_COUNT, default=60, help="seconds for all kernels together (default %(default)s)"
    )
    tuning.add_argument(
        "--beam", type=_COUNT, default=4, help="beam width: candidate schedules per step (default %(default)s)"
    )
    tuning.add_argument("--device", help="such as LLVM; default: the setting DEVICE")
    tuning.add_argument("program", help="a script or a module name; it is run once to collect its kernels")
    tuning.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    tuning.set_defaults(command=run_tune)
    explaining = add(
        "explain", help="show how a program's graphs are placed on several devices, or the passes of an expression"
    )
    _add_expression(explaining)
    explaining.add_argument(
        "--graphs", type=_COUNT, default=5, help="show up to this many, slowest first (default %(default)s)"
    )
    explaining.add_argument("--device", help="devices in order of preference, such as CL,LLVM; default: DEVICE")
    explaining.add_argument("program", help="a script, the name of a module, or with --shapes an expression")
    explaining.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    explaining.set_defaults(command=run_explain)
    profiling = add("profile", help="run a program, and show which of its lines took the time")
    profiling.add_argument("--top", type=_COUNT, default=20, help="rows of the table (default %(default)s)")
    profiling.add_argument("--device", help="such as LLVM or CL; default: the setting DEVICE")
    profiling.add_argument("--html", metavar="FILE", default="", help="write a report that a browser opens from disk")
    profiling.add_argument("--trace", metavar="FILE", default="", help="write a trace for Perfetto or Chrome")
    profiling.add_argument("program", help="a script, or the name of a module")
    profiling.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    profiling.set_defaults(command=run_profile)
    reporting = add("report", help="write a DUMP folder as one HTML file")
    reporting.add_argument("folder", help="the folder of DUMP=folder python program.py")
    reporting.add_argument("--output", metavar="FILE", default="report.html", help="default %(default)s")
    reporting.set_defaults(command=run_report)


def _add_expression(parser: argparse.ArgumentParser) -> None:
    """Add the options of an expression; they may follow it."""
    parser.add_argument("--shapes", help="of the tensors of an expression, such as x=4x8,w=8x8: show its passes")
    parser.add_argument("--html", metavar="FILE", default="", help="write the passes of an expression as a page")


def run_explain(given: argparse.Namespace) -> int:
    """Placements of a program's graphs, 1 when the program failed; or the passes of an expression."""
    if given.shapes or any(
        word.startswith("--shapes") for word in given.arguments if not os.path.exists(given.program)
    ):
        from .expression import run as run_expression

        after = argparse.ArgumentParser(prog="kernmill explain", add_help=False)
        _add_expression(after)
        after.parse_args(given.arguments, namespace=given)
        return run_expression(given.program, given.shapes, given.html)
    from .explain import run

    options.check_path("explain", given.program, "Give a script, or the name of a module.")
    return run(given.program, given.arguments, most=given.graphs)


def run_onnx(given: argparse.Namespace) -> int:
    """An ONNX model: its inputs, or its time."""
    options.check_path("onnx", given.model, "Give an .onnx file.")
    from .onnx_model import run

    return run(
        given.model, bench=given.bench, sizes=given.size, runs=given.runs, threads=given.threads,
        seed=given.random_weights,
    )  # fmt: skip


def run_profile(given: argparse.Namespace) -> int:
    """A program's lines and kernels, ranked; 1 when the program failed."""
    from .profile import run

    options.check_path("profile", given.program, "Give a script, or the name of a module.")
    return run(given.program, given.arguments, most=given.top, page=given.html, trace=given.trace)


def run_report(given: argparse.Namespace) -> int:
    """A DUMP folder as a page."""
    from .profile import report

    report(given.folder, given.output)
    return 0


def _split_options(given: argparse.Namespace, command: str) -> Any:
    """Return a SplitOptions with the options for several devices, or None; on one device they mean nothing."""
    from .. import dist
    from ..llm.split import SplitOptions

    if dist.size() > 1 and given.split_mode != "none":
        by_layers = given.split_mode == "layer"
        if dist.rank() == 0:
            why = "-ts divides layers over ranks" if by_layers else "--split tensor divides each layer equally"
            options.ignored_splits(command, given, why, but="-ts" if by_layers else "")
        return SplitOptions(shares=given.tensor_split, mode=given.split_mode, over_ranks=True)
    if given.split_mode == "tensor":
        raise SettingError(f"{command}: --split tensor divides layers over ranks: start it with mpirun -n 2.")
    if len(device_list()) == 1:
        options.ignored_splits(command, given, "a model runs as a whole on one device")
        return None
    return SplitOptions(
        given.gpu_layers, given.tensor_split, given.split_mode, given.main_gpu, tuple(given.override_tensor or ()),
        -1 if given.cpu_moe else given.n_cpu_moe, given.no_kv_offload,
    )  # fmt: skip


def _followed(wanted: Any) -> bool:
    """Of a model over ranks, follow rank 0 to its end; False: this is rank 0, or there are no ranks."""
    from ..dist import rank
    from ..llm.follow import follow

    is_follower = wanted is not None and wanted.over_ranks and rank() > 0
    if is_follower:
        follow()
    return is_follower


def _led(wanted: Any, status: int) -> int:
    """Return the status of a command; of a model over ranks, its end is theirs."""
    from ..dist import communicator

    if wanted is not None and wanted.over_ranks:
        communicator().announce(("end",))
    return status


def _settings_of(given: argparse.Namespace) -> AbstractContextManager[None]:
    """Return the settings that options of `run` and `serve` change."""
    kept = setting("KEEP_WEIGHTS_MB") if given.keep_weights is None else given.keep_weights
    return Context(THREADS=given.threads or setting("THREADS"), KEEP_WEIGHTS_MB=kept)


def run_model(given: argparse.Namespace) -> int:
    """Text from a language model."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's: nothing here uses them, and they spin as they start
    from ..llm.run import Options, run
    from . import generation

    wanted = _split_options(given, "run")
    if _followed(wanted):
        return 0
    prompt = options.written_prompt(given)
    if prompt is None and not given.chat:
        raise SettingError("run: no prompt. Give one with -p TEXT, or start a conversation with --chat.")
    if given.system_prompt_file is not None:
        if given.system:
            raise SettingError("run: --system and --system-prompt-file are both a system message. Give one.")
        given.system = generation.file_text("run", given.system_prompt_file, "--system-prompt-file")
    if not given.chat and (given.system or given.single_turn):
        name, what = ("--system", "its first message") if given.system else ("--single-turn", "its length")
        raise SettingError(f"run: {name} is for a conversation: {what}. Add --chat.")
    asked = Options(
        prompt, given.chat, options.typed_text(given.system, given), given.n_predict, given.ctx_size,
        options.cache_types(given), not given.no_display_prompt, given.single_turn, given.ignore_eos, given.batch_size,
        generation.stops(given), wanted,
        generation.grammar("run", given), generation.adapters("run", given), generation.template("run", given),
        generation.template_values(given), given.prompt_cache, given.prompt_cache_all, not given.prompt_cache_ro,
        generation.draft("run", given), generation.kept("run", given), given.quantize,
    )  # fmt: skip
    with _settings_of(given):
        return _led(wanted, run(given.model, asked, generation.sampling("run", given).sampler()))


def run_on_model(given: argparse.Namespace) -> int:
    """Embed, rerank, tokenize, show, split, measure the perplexity, or compute an importance matrix."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in run_model
    if given.name in ("perplexity", "imatrix"):
        from . import evaluation

        return evaluation.show_perplexity(given) if given.name == "perplexity" else evaluation.write_imatrix(given)
    if given.name == "split":
        from .quantizing import split_file

        with _unwound():
            return split_file(given)
    from .models import run_command

    return run_command(given)


def run_serve(given: argparse.Namespace) -> int:
    """Answers of language models over HTTP."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in run_model
    from ..llm.packages import check_package

    for package in ("starlette", "uvicorn", "msgspec"):
        check_package(package, "the server", "serve")
    from .serving import run

    with _settings_of(given):
        wanted = _split_options(given, "serve")
        return 0 if _followed(wanted) else _led(wanted, run(given, wanted))


def run_bench(given: argparse.Namespace) -> int:
    """Measure a model's tokens per second, or, in a checkout and without a model, run its benchmarks."""
    for word in given.rest:
        options.check_path("bench", word, "Give a GGUF file: kernmill bench model.gguf.")
    if not any(_is_of_model(word) for word in given.rest) and os.path.isfile(
        os.path.join(_ROOT, "bench", "__main__.py")
    ):
        return _run_own_bench(given)
    from ..dist.mpi import job_size
    from ..llm.bench import Wanted, run

    asked = options.read(
        "bench", given.rest, description="Tokens per second of a model.",
        epilog="Without a model it runs the benchmarks of a checkout: python -m bench --help.",
    )  # fmt: skip
    if job_size() > 1:
        raise SettingError(
            "bench: a model is not divided over ranks here, and each would measure all of it. Start it without mpirun; "
            "kernmill run shows the time of a token over ranks."
        )
    wanted = Wanted(
        asked.n_prompt, asked.n_gen, asked.threads or [int(setting("THREADS"))], asked.repetitions, asked.batch_size,
        options.cache_types(asked), asked.n_depth, asked.pg or (),
    )  # fmt: skip
    with Context(
        DEVICE=setting("DEVICE") if asked.device is None else canonical_devices(devices_of_rank(asked.device))
    ):
        get_device()
        run(asked.model, wanted, asked.output)
    return 0


def _is_of_model(word: str) -> bool:
    """True if a word after `bench` is for a model: a short option, its file, or a request for help."""
    return (
        re.match("-[^-]|--help$|--model$", word) is not None or word.lower().endswith(".gguf") or os.path.isfile(word)
    )


def _run_own_bench(given: argparse.Namespace) -> int:
    """Run the benchmarks of a checkout: they are not part of the installed package."""
    import subprocess  # nothing else here needs it

    try:
        return subprocess.run([sys.executable, "-m", "bench", *given.rest], cwd=_ROOT, check=False).returncode
    except OSError as error:
        print(f"kernmill bench: {error}", file=sys.stderr)
        return 2


def run_conformance(given: argparse.Namespace) -> int:
    """The op table on each device of the list; 1 when something differs."""
    from .conformance import run

    with Context(DEVICE=given.device) if given.device else nullcontext():
        names = device_list()
    return 0 if False not in [run(name, given.failures) for name in names] else 1
