"""The layers of a model over several devices: ranges of layers, each with its weights and its part of the cache.

`SplitOptions` has llama.cpp's options (-ngl, -ts, -sm, -mg, -ot, --cpu-moe, -nkvo). Without them, the split that fits
and has the least predicted time of a token is chosen. That time is reading each layer's weights at its device's rate,
and a copy of the residual at each border. Embedding rows stay on the host: the last CPU of the list, which is in order
of preference, or the last device where it names none. Tests: tests/kernmill/llm/test_split.py.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kernmill.ir import DeviceTable, OutOfMemoryError, SettingError
from kernmill.runtime import device_list, get_device, later, room

__all__ = ["ModelTooLargeError", "Split", "SplitOptions", "choose_split", "stages"]

_LAYER = re.compile(r"blk\.(\d+)\.")
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # what --cpu-moe keeps on the host
_RESERVED = 16  # a sixteenth of a device's free memory is for intermediates


class ModelTooLargeError(OutOfMemoryError):
    """A model that no split over these devices or ranks has room for."""


class SplitOptions(NamedTuple):
    """The wishes of a user about a split, by llama.cpp's options."""

    gpu_layers: int | None = None  # -ngl: the last n of layers and output go to devices; negative: all
    shares: tuple[float, ...] = ()  # -ts
    mode: str = "layer"  # -sm: layer or none; over ranks: layer or tensor
    main: int = 0  # -mg: the device of -sm none
    overrides: tuple[tuple[str, str], ...] = ()  # -ot: regular expression of tensor names, device
    host_experts: int | None = None  # -ncmoe: of the first n layers; -1: --cpu-moe
    cache_on_host: bool = False  # -nkvo
    over_ranks: bool = False  # of an MPI job, instead of devices


@dataclass(frozen=True, slots=True)
class Split:
    """Devices by name."""

    layers: tuple[str, ...]
    host: str
    output: str
    overrides: tuple[tuple[re.Pattern[str], str], ...] = ()
    cache_on_host: bool = False

    def device_of(self, tensor: str) -> str:
        """The device of a weight."""
        for pattern, device in self.overrides:
            if pattern.search(tensor):
                return device
        layer = _LAYER.match(tensor)
        if layer is not None and int(layer[1]) < len(self.layers):
            return self.layers[int(layer[1])]
        return self.output if tensor.startswith("output") else self.host

    @property
    def caches(self) -> tuple[str, ...]:
        """The device of each layer's keys and values."""
        return (self.host,) * len(self.layers) if self.cache_on_host else self.layers

    def ranges(self) -> list[tuple[str, int, int]]:
        """Adjacent layers of one device: its name, the first and the last of them."""
        found: list[tuple[str, int, int]] = []
        for device, group in itertools.groupby(range(len(self.layers)), key=self.layers.__getitem__):
            numbers = [*group]
            found.append((device, numbers[0], numbers[-1]))
        return found

    def text(self) -> str:
        """`layers 0-6 HTP, 7-12 HTP:1, output HTP:1, embedding LLVM`."""
        shown = [f"{a}-{b} {device}" if b > a else f"{a} {device}" for device, a, b in self.ranges()]
        return f"layers {', '.join(shown)}, output {self.output}, embedding {self.host}"


def choose_split(
    sizes: Mapping[str, int], layers: int, cache_bytes: int, width: int, wanted: SplitOptions | None = None
) -> Split:
    """Choose the devices of a model's parts among those of the setting DEVICE.

    `sizes`: bytes of each tensor. `cache_bytes`: of one layer. `width`: values of the residual.

    Raises:
        SettingError: an option names no device of the list, or matches no tensor.
        OutOfMemoryError: no split fits in the devices' memory.
    """
    wanted = wanted or SplitOptions()
    names = device_list()
    host = ([name for name in names if get_device(name).kind == "cpu"] or names)[-1]
    overrides = _overrides(wanted, names, host, sizes, layers)
    plain = Split((host,) * layers, host, host, overrides, wanted.cache_on_host)
    of_layer, of_output = _bytes(sizes, layers, plain)
    in_cache = 0 if wanted.cache_on_host else cache_bytes
    if wanted.mode == "none" or wanted.gpu_layers is not None or wanted.shares:
        homes = _as_requested(wanted, names, host, layers)
    else:
        table = later.device_rates.device_table((), ())
        free = {spec.name: spec.limit_bytes - spec.limit_bytes // _RESERVED for spec in table.specs}
        chosen = {host: sum(of_layer) + of_output + in_cache * layers}  # what `plain` has there, and need not stay
        for name, size in _held(plain, sizes, cache_bytes).items():
            free[name] -= size - chosen.get(name, 0)
        units = [*(size + in_cache for size in of_layer), of_output]
        fastest = _fastest(units, [*of_layer, of_output], host, table, free, 4 * width)
        if fastest is None:
            raise ModelTooLargeError(_too_large(units, free))
        homes = fastest
    split = replace(plain, layers=tuple(homes[:layers]), output=homes[layers])
    _refuse_large(_held(split, sizes, cache_bytes))
    return split


def _held(split: Split, sizes: Mapping[str, int], cache_bytes: int) -> dict[str, int]:
    """Bytes of weights and caches on each device."""
    found = dict.fromkeys(device_list(), 0)
    for tensor, size in sizes.items():
        found[split.device_of(tensor)] += size
    for name in split.caches:
        found[name] += cache_bytes
    return found


def _refuse_large(held: Mapping[str, int]) -> None:
    """Raise ModelTooLargeError, with a line for each device, if one of them has no room for its part. Weights in memory
    of the host may be those of the file."""
    free = {name: room(get_device(name)) for name, size in held.items() if size}
    if all(get_device(name).limits.wraps_host_memory or held[name] <= size for name, size in free.items()):
        return
    lines = ["this split does not fit: weights and cache need more memory than there is."]
    for name, size in free.items():
        lines.append(f"{name:10} {held[name] / 2**20:12.2f} MiB needed {size / 2**20:12.2f} MiB free")
    lines.append("Choose other shares (-ts), fewer layers (-ngl), a cache on the host (-nkvo) or a smaller one (-c).")
    raise ModelTooLargeError("\n".join(lines))


def _overrides(
    wanted: SplitOptions, names: Sequence[str], host: str, sizes: Mapping[str, int], layers: int
) -> tuple[tuple[re.Pattern[str], str], ...]:
    """The patterns of -ot, then those of --cpu-moe."""
    found: list[tuple[re.Pattern[str], str]] = []
    for text, device in wanted.overrides:
        home = host if device.upper() == "CPU" else device.upper()
        if home not in names:
            raise SettingError(f"-ot {text}={device}: {device} is not a device of DEVICE={','.join(names)}.")
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise SettingError(f"-ot {text}={device}: {text!r} is not a regular expression ({error}).") from None
        if not any(map(pattern.search, sizes)):
            raise SettingError(f"-ot {text}={device}: {text!r} matches no tensor. `blk.0.ffn_up.weight` is a name.")
        found.append((pattern, home))
    if wanted.host_experts is not None:
        count = layers if wanted.host_experts < 0 else wanted.host_experts
        found += [(re.compile(rf"^blk\.{n}{_EXPERTS}"), host) for n in range(min(count, layers))]
    return tuple(found)


def _bytes(sizes: Mapping[str, int], layers: int, plain: Split) -> tuple[list[int], int]:
    """Bytes of each layer and of the output, without tensors of overrides."""
    of_layer, of_output = [0] * layers, 0
    for name, size in sizes.items():
        if any(pattern.search(name) for pattern, _ in plain.overrides):
            continue
        layer = _LAYER.match(name)
        if layer is not None and int(layer[1]) < layers:
            of_layer[int(layer[1])] += size
        elif name.startswith("output"):
            of_output += size
    return of_layer, of_output


def _as_requested(wanted: SplitOptions, names: Sequence[str], host: str, layers: int) -> list[str]:
    """Layers and output by -ngl, -ts, -sm and -mg, in llama.cpp's way."""
    devices = [name for name in names if name != host or get_device(host).kind != "cpu"] or [host]
    if not 0 <= wanted.main < len(devices):
        raise SettingError(f"-mg {wanted.main}: must be 0 to {len(devices) - 1}, a position in {','.join(devices)}.")
    if wanted.mode == "none":
        devices = [devices[wanted.main]]
    units = layers + 1
    count = units if wanted.gpu_layers is None or wanted.gpu_layers < 0 else min(wanted.gpu_layers, units)
    shares = wanted.shares or (1.0,) * len(devices)
    if len(shares) > len(devices) or min(shares) < 0 or not sum(shares):
        given = ",".join(f"{share:g}" for share in shares)
        raise SettingError(
            f"-ts {given}: must be up to {len(devices)} shares >= 0, one for each of {','.join(devices)}."
        )
    whole, ends = sum(shares), list(itertools.accumulate(shares))
    homes = [host] * (units - count)
    for n in range(count):
        homes.append(devices[next(d for d, end in enumerate(ends) if end / whole > n / count)])
    return homes


def _fastest(
    units: Sequence[int],
    read: Sequence[int],
    host: str,
    table: DeviceTable,
    room: Mapping[str, int],
    residual: int,
) -> list[str] | None:
    """The device of each unit: ranges in the order of the list or another one, with the least time of a token."""
    best: tuple[float, list[str]] | None = None
    for order in itertools.permutations(spec.name for spec in table.specs):
        found = _ranges(units, read, (host, *order), table, room, residual)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return best[1] if best else None


def _ranges(
    units: Sequence[int],
    read: Sequence[int],
    order: Sequence[str],
    table: DeviceTable,
    room: Mapping[str, int],
    residual: int,
) -> tuple[float, list[str]] | None:
    """The best ranges for devices in this order, by dynamic programming over units and devices; some may be empty. The
    first name is the device of the embedding, where the residual comes from."""
    count, (home, *order) = len(units), order
    held, bytes_read = [0, *itertools.accumulate(units)], [0, *itertools.accumulate(read)]
    # of the first n units: the least time, where the last range begins, and on which device it is
    least: list[tuple[float, list[str]]] = [(0.0, []), *[(math.inf, list[str]()) for _ in range(count)]]
    for name in order:
        spec = table.spec(name)
        after = list(least)
        for end in range(1, count + 1):
            for begin in range(end):
                if held[end] - held[begin] > room[name] or least[begin][0] == math.inf:
                    continue
                before = least[begin][1]
                border = table.copy_ns(before[-1] if before else home, name, residual)
                time = least[begin][0] + border + spec.memory_ns(bytes_read[end] - bytes_read[begin])
                if time < after[end][0]:
                    after[end] = time, [*before, *[name] * (end - begin)]
        least = after
    return least[count] if least[count][0] < math.inf else None


def stages(
    layers: Sequence[int], output: int, cache_bytes: int, table: DeviceTable, shares: Sequence[float] = (),
    kept: int = 0, read: Sequence[int] = (),
) -> tuple[list[int] | None, float]:  # fmt: skip
    """Divide layers over the ranks in `table`, in order: the slowest rank should be fast, then the token.

    `layers`: bytes of each, `output`: of what the last rank also reads. `cache_bytes`: of a layer. `kept`: bytes that
    rank 0 also has, the embedding. `read`: bytes of each layer that a token reads, fewer than it has with experts.
    Returns the first layer of each rank and the number of layers, and the predicted time of a token without links, in
    ns; None where nothing fits. A token reads all weights of a rank once: at the rate of a cache where that has room
    for them, else of memory.
    """
    specs, count = table.specs, len(layers)
    whole, used = ([0, *itertools.accumulate(sizes)] for sizes in (layers, read or layers))
    least: dict[int, tuple[float, float, list[int]]] = {0: (0.0, 0.0, [0])}  # by layers: slowest, sum, bounds
    for n, spec in enumerate(specs):
        is_last, after = n == len(specs) - 1, dict[int, tuple[float, float, list[int]]]()
        wanted = _by_share(shares, n, count) if shares else None
        for begin, (slowest, before, bounds) in least.items():
            for end in [count] if is_last else range(begin, count + 1):
                held = whole[end] - whole[begin] + output * is_last + cache_bytes * (end - begin) + kept * (n == 0)
                if held > spec.limit_bytes - spec.limit_bytes // _RESERVED or (wanted is not None and end != wanted):
                    continue
                time = spec.memory_ns(used[end] - used[begin] + output * is_last)
                found = max(slowest, time), before + time, [*bounds, end]
                after[end] = min(found, after.get(end, found))
        least = after
    return (least[count][2], least[count][1]) if count in least else (None, math.inf)


def _by_share(shares: Sequence[float], rank: int, count: int) -> int:
    """The layer after the last one of a rank, by -ts."""
    return round(count * sum(shares[: rank + 1]) / sum(shares))


def _too_large(units: Sequence[int], room: Mapping[str, int]) -> str:
    lines = [f"this model does not fit: its layers, output and cache take {sum(units) / 2**20:.1f} MiB."]
    lines += [f"{name:10} {max(0, size) / 2**20:12.1f} MiB free for it" for name, size in room.items()]
    lines.append("Name another device in --device, or choose a smaller context (-c) or a smaller cache type (-ctk).")
    return "\n".join(lines)
