"""Units of configuration fields, which their names carry."""

from __future__ import annotations

_UNITS = {
    "_bytes_per_s": "bytes/s",
    "_tokens_per_s": "tokens/s",
    "_tokens_per_gpu_s": "tokens/s a GPU",
    "_tokens_per_gpu": "tokens a GPU",
    "_requests_per_gpu": "requests a GPU",
    "_waiting_per_gpu": "requests a GPU",
    "_per_hour": "1/h",
    "_per_s": "1/s",
    "_rps": "requests/s",
    "_tps": "tokens/s",
    "_s": "s",
    "_ms": "ms",
    "_us": "µs",
    "_h": "h",
    "_minutes": "min",
    "_seconds": "s",
    "_tokens": "tokens",
    "_blocks": "blocks",
    "_bytes": "bytes",
    "_gib": "GiB",
    "_gb": "GB",
    "_usd": "USD",
    "_ratio": "ratio",
    "_share": "share",
    "_percent": "%",
    "_iterations": "iterations",
}


def unit_of(name: str) -> str:
    """The unit of a field by the end of its name, the longest that fits; "": it has none.

    Args:
        name: Of the field.
    """
    ends = [end for end in _UNITS if f"_{name}".endswith(end)]
    return _UNITS[max(ends, key=len)] if ends else ""
