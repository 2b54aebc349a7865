"""One frame of the monitor: tables of engines and of policies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from serving_gym.runners.monitoring.pages import ENGINE, POLICY, Watched, number_in

_BAR = 10  # characters
_LEVELS = "▁▂▃▄▅▆▇█"
_STALE, _FULL = "bold yellow", "bold magenta"
_ALMOST_FULL = 0.9


def frame(
    watched: Sequence[Watched], now_s: float, stale_after_s: float, title: str, gains: Sequence[str] = ()
) -> RenderableType:
    """All that is watched, as it was last read.

    Args:
        watched: The addresses.
        now_s: Monotonic seconds.
        stale_after_s: Age from which a reading is stale, seconds.
        title: First line.
        gains: Sentences on what the policy has gained, if there is a log.
    """
    parts: list[RenderableType] = [Text(title, style="bold")]
    engines = [each for each in watched if each.kind == ENGINE]
    policies = [each for each in watched if each.kind == POLICY]
    silent = [each for each in watched if not each.kind]
    if engines:
        parts.append(_engines(engines, now_s, stale_after_s))
    if policies:
        parts.append(_policies(policies, now_s, stale_after_s))
    parts += [Text(sentence) for sentence in gains]
    parts += [Text(f"{each.url}: {each.problem or 'not read yet'}", style=_STALE) for each in silent]
    return Group(*parts)


def _engines(engines: Sequence[Watched], now_s: float, stale_after_s: float) -> Table:
    table = Table(title="Engines", title_justify="left")
    table.add_column("server", overflow="fold")
    for name in ("batch", "queue"):
        table.add_column(name, justify="right")
    table.add_column("KV in use")
    for name in ("prompt\ntokens/s", "generated\ntokens/s", "preempted"):
        table.add_column(name, justify="right")
    table.add_column("requests so far")
    table.add_column("last reading", overflow="fold")
    for each in engines:
        gauges = each.gauges
        assert gauges is not None, "an engine has been read"
        table.add_row(
            each.url.partition("://")[2],
            _count(gauges.num_running),
            _count(gauges.num_waiting),
            _bar(gauges.kv_usage_ratio),
            *map(_count, each.rates),
            _count(gauges.preemptions),
            sparkline(each.history),
            _age(each, now_s, stale_after_s),
        )
    if len(engines) > 1:
        table.add_section()
        table.add_row(*_sums(engines))
    return table


def _sums(engines: Sequence[Watched]) -> list[str | Text]:
    """The last row: all engines together."""
    gauges = [each.gauges for each in engines if each.gauges is not None]
    shares = [each.kv_usage_ratio for each in gauges if each.kv_usage_ratio is not None]
    return [
        "together",
        _sum(each.num_running for each in gauges),
        _sum(each.num_waiting for each in gauges),
        _bar(sum(shares) / len(shares) if shares else None),
        *(_sum(each.rates[part] for each in engines) for part in (0, 1)),
        _sum(each.preemptions for each in gauges),
        "",
        "",
    ]


def _sum(values: Iterable[float | None]) -> str:
    """Sum of what is known."""
    known = [value for value in values if value is not None]
    return _count(sum(known) if known else None)


def _policies(policies: Sequence[Watched], now_s: float, stale_after_s: float) -> Table:
    table = Table(title="Policies (runners.serve)", title_justify="left")
    table.add_column("process", overflow="fold")
    table.add_column("policy", overflow="fold")
    table.add_column("mode")
    for name in (
        "decisions",
        "applied",
        "P50 ms",
        "P99 ms",
        "overridden",
        "errors",
        "other than\nfallback",
        "other than\nfront end",
    ):
        table.add_column(name, justify="right")
    table.add_column("last reading", overflow="fold")
    for each in policies:
        status = each.status
        decisions = number_in(status, "decisions")
        table.add_row(
            each.url.partition("://")[2],
            str(status.get("policy", "")),
            mode_of(each),
            _count(decisions),
            _count(number_in(status, "applied")),
            _ms(number_in(status, "us_p50")),
            _ms(number_in(status, "us_p99")),
            _count(number_in(status, "overrides")),
            _count(number_in(status, "errors")),
            _share(disagreement(each)),
            _share(disagreement(each, fallback=False)),
            _age(each, now_s, stale_after_s),
        )
    return table


def mode_of(watched: Watched) -> str:
    """Mode of a serving process, with the share of requests in canary mode, and whether its policy answers."""
    mode, share = str(watched.status.get("mode", "")), number_in(watched.status, "share")
    said = f"{mode} {share:.0%}" if mode == "canary" and share is not None else mode
    return said if watched.status.get("ready", True) else f"{said}, not ready"


def disagreement(watched: Watched, fallback: bool = True) -> float | None:
    """Share of the compared decisions in which the policy chose otherwise; None: nothing was compared.

    Args:
        watched: A serving process.
        fallback: Whether otherwise than the fallback rule, or than the front end.
    """
    status = watched.status
    if fallback:
        compared, differed = (number_in(status, f"fallback_{name}") for name in ("compared", "disagreed"))
    else:
        compared, agreed = (number_in(status, name) for name in ("compared", "agreed"))
        differed = None if compared is None or agreed is None else compared - agreed
    return None if not compared or differed is None else differed / compared


def sparkline(values: Iterable[int]) -> str:
    """Values as bars of one line, from 0 to the highest."""
    row = list(values)
    highest = max([*row, 1])
    return "".join(_LEVELS[min(int(value / highest * len(_LEVELS)), len(_LEVELS) - 1)] for value in row[-20:])


def _bar(share: float | None) -> Text:
    if share is None:
        return Text("-")
    filled = round(min(max(share, 0.0), 1.0) * _BAR)
    return Text(
        f"{'█' * filled}{'·' * (_BAR - filled)} {share:4.0%}", style=_FULL if share >= _ALMOST_FULL else ""
    )


def _age(watched: Watched, now_s: float, stale_after_s: float) -> Text:
    age_s = watched.age_s(now_s)
    said = "never" if age_s is None else f"{age_s:.1f} s ago"
    if not watched.is_stale(now_s, stale_after_s):
        return Text(said)
    return Text(f"STALE, {said}" + (f": {watched.problem}" if watched.problem else ""), style=_STALE)


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _ms(microseconds: float | None) -> str:
    return "-" if microseconds is None else f"{microseconds / 1e3:.3g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
