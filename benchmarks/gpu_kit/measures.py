"""The parts by name. A part's libraries are imported when it is run: no part needs those of another."""

from collections.abc import Callable

from benchmarks.gpu_kit.record import Record


def _parity(device: str, record: Record) -> None:
    from benchmarks.gpu_kit.parity import measure

    measure(device, record)


def _logits(device: str, record: Record) -> None:
    from benchmarks.gpu_kit.logits import measure

    measure(device, record)


def _compiled(device: str, record: Record) -> None:
    from benchmarks.gpu_kit.logits import measure_compiled

    measure_compiled(device, record)


def _update(device: str, record: Record) -> None:
    from benchmarks.gpu_kit.update import measure

    measure(device, record)


def _embedded(device: str, record: Record) -> None:
    from benchmarks.gpu_kit.embedded import measure

    measure(device, record)


MEASURES: dict[str, Callable[[str, Record], None]] = {
    "parity": _parity,
    "logits": _logits,
    "compiled": _compiled,
    "update": _update,
    "embedded": _embedded,
}
