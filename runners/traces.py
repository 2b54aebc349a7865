"""Lists, describes, checks, fetches, converts and fits workloads.

    python -m runners.traces list
    python -m runners.traces describe name=azure_conv
    python -m runners.traces describe path=my_trace.csv out=figures.json
    python -m runners.traces validate my_trace.jsonl.gz [out=problems.json]
    python -m runners.traces fetch name=azure_conv [base_url=URL]
    python -m runners.traces convert path=BurstGPT_1.csv out=burstgpt.parquet
    python -m runners.traces convert path=sharegpt.json [tokenizer=FOLDER] [predictor=FOLDER] out=sharegpt.parquet
    python -m runners.traces fit path=my_trace.csv out=my_trace_fitted.json

``describe`` of a file also says what the reader understood: format, times, lengths, prefix reuse, sessions, and what
looks wrong. ``validate`` reads a file to its end and lists all that is wrong with it, row and column, up to 20 entries
of each kind; its exit status is 1 where something is refused, and 0 where there are warnings at most. Both, and
``convert`` and ``fit``, take what a file should not be guessed from: ``time_unit`` (s, ms, us, ns), ``rebase``
(true, false), ``columns`` (``columns={input_tokens: prompt_len}``) and ``max_gap_s``.

``describe``, ``convert`` and ``fit`` take the keys of the ``workload`` config group (``name``, ``path``,
``num_requests``, ``rate_scale``, ``rate_rps``, ``split``, ``priority_share``, ``long_share``,
``long_input_tokens``) and ``seed``; here the default split is "all". To use a fitted generator, give
``name=file path=my_trace_fitted.json``.

``convert`` also converts conversations in ShareGPT's form (a JSON list) to a workload: one request per conversation,
in order, with Poisson arrivals at 1 request/s. It then takes ``num_requests``, ``rate_scale``, ``rate_rps``,
``tokenizer`` (folder of the served LLM's tokenizer, which counts lengths; default: words and punctuation marks) and
``predictor`` (run directory of ``runners.train_predictor``; adds the column ``predicted_tokens``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.workload.conversations import (
    TokenCounter,
    conversation_workload,
    holds_conversations,
    load_conversations,
)
from serving_gym.envs.workload.fetch import fetch_trace
from serving_gym.envs.workload.fitting import fit
from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.generators import fitted_names, load_fitted
from serving_gym.envs.workload.outside import workload_entry_points
from serving_gym.envs.workload.reading.context import SHOWN_OF_EACH_KIND
from serving_gym.envs.workload.reading.load import check_trace
from serving_gym.envs.workload.reading.options import ReadOptions
from serving_gym.envs.workload.reading.report import TraceReport
from serving_gym.envs.workload.registry import (
    FILE,
    FUNCTIONS,
    MIXTURE,
    SEQUENCE,
    SHAREGPT,
    TIERS,
    TYPE_MIX,
    WEEK,
    WorkloadSource,
    WorkloadSpec,
    check_spec,
    make_workload,
    workload_names,
)
from serving_gym.envs.workload.schema import Workload
from serving_gym.envs.workload.traces import TRACES, find_trace
from serving_gym.runners.command_line.words import Reader, Words, names, parse_words, truth
from serving_gym.runners.reporting.trace_lines import trace_lines

_FILE_WORDS: dict[str, Reader] = {
    "time_unit": str,
    "rebase": truth,
    "columns": names,
    "max_gap_s": float,
}
_SPEC_WORDS: dict[str, Reader] = {
    "name": str,
    "path": str,
    **_FILE_WORDS,
    "num_requests": int,
    "rate_scale": float,
    "rate_rps": float,
    "split": str,
    "priority_share": float,
    "long_share": float,
    "long_input_tokens": int,
}
_WORKLOAD_WORDS: dict[str, Reader] = {**_SPEC_WORDS, "seed": int, "out": str}
_TEXT_WORDS: dict[str, Reader] = {"tokenizer": str, "predictor": str}
_CONVERSATION_WORDS = ("path", "out", "num_requests", "rate_scale", "rate_rps", *_TEXT_WORDS)


def list_workloads(words: Words, console: Console) -> None:
    """Lists every workload by name, with the location of its data."""
    table = Table(title="Workloads")
    for heading in ("name", "kind", "requests", "licence", "where", "what"):
        table.add_column(heading, overflow="fold")
    for name in workload_names():
        table.add_row(*(escape(each) for each in (name, *_row(name))))
    console.print(table)


def describe(words: Words, console: Console) -> None:
    """Prints statistics of one workload as a table and, with ``out``, writes them as JSON."""
    workload, report = _workload(words), _report(words)
    figures = workload.summary()
    table = Table("figure", "value", title=escape(figures["name"]))
    for key, value in figures.items():
        if isinstance(value, dict):
            value = "  ".join(f"{name} {_shown(entry)}" for name, entry in value.items())
        table.add_row(escape(key), escape(_shown(value)))
    if words.get("name") in fitted_names():
        fitted = load_fitted(words["name"])
        for key, value in {**fitted.provenance, **fitted.fit}.items():
            table.add_row(escape(key), escape(_shown(value)))
    if report is not None:
        _add_report(table, report)
        figures["report"] = report.to_json()
    console.print(table)
    for warning in () if report is None else report.warnings:
        console.print(f"warning: {warning}", soft_wrap=True, markup=False, highlight=False)
    if "out" in words:
        _written(Path(words["out"])).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def validate(words: Words, console: Console) -> int:
    """Lists all that is wrong with a trace file; returns the exit status."""
    path = _needed(words, "path", "validate")
    checked = check_trace(path, ReadOptions(**{word: words[word] for word in _FILE_WORDS if word in words}))
    for problem in checked.problems:
        console.print(f"error: {problem}", soft_wrap=True, markup=False, highlight=False)
    for (column, why), count in checked.refused.items():
        if count > SHOWN_OF_EACH_KIND:
            rest = f"error: column {column!r}: {count - SHOWN_OF_EACH_KIND:,} more: {why}"
            console.print(rest, soft_wrap=True, markup=False, highlight=False)
    if checked.fatal is not None:
        console.print(f"error: {path}: {checked.fatal}", soft_wrap=True, markup=False, highlight=False)
    for line in () if checked.report is None else trace_lines(checked.report):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    if "out" in words:
        found = {
            "path": path,
            "good": checked.good,
            "errors": [asdict(problem) for problem in checked.problems],
            "counts": [{"column": c, "why": w, "entries": n} for (c, w), n in checked.refused.items()],
            "fatal": checked.fatal,
            "report": None if checked.report is None else checked.report.to_json(),
        }
        _written(Path(words["out"])).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if checked.good else 1


def fetch(words: Words, console: Console) -> None:
    """Downloads one published trace into the cache."""
    name = _needed(words, "name", "fetch")
    check_choice("trace", name, TRACES)
    path = fetch_trace(TRACES[name], base_url=words.get("base_url"))
    console.print(f"{name}: {TRACES[name].published_rows} requests in {path}", soft_wrap=True, markup=False)


def convert(words: Words, console: Console) -> None:
    """Writes a workload in the repository's trace format."""
    out = _needed(words, "out", "convert")
    conversations = holds_conversations(words.get("path", ""))
    workload = _of_conversations(words) if conversations else _workload(words)
    if not conversations:
        _say_report(words)
    console.print(f"{len(workload)} requests in {write_trace(workload, out)}", soft_wrap=True, markup=False)


def fit_generator(words: Words, console: Console) -> None:
    """Fits a generator to a workload and prints the error of the fit."""
    out = Path(_needed(words, "out", "fit"))
    if out.suffix != ".json":
        raise ValueError(f"out must end in .json, got {out}")
    workload = _workload(words)
    _say_report(words)
    fitted = fit(workload, out.stem, _provenance(words))
    fitted.save(_written(out))
    table = Table(
        "distance or figure", "value", title=escape(f"{out.stem}, fitted to {len(workload)} requests")
    )
    for key, value in fitted.fit.items():
        table.add_row(escape(key), escape(_shown(value)))
    console.print(table)


_VERBS: dict[str, tuple[Callable[[Words, Console], int | None], dict[str, Reader]]] = {
    "list": (list_workloads, {}),
    "describe": (describe, _WORKLOAD_WORDS),
    "validate": (validate, {"path": str, "out": str, **_FILE_WORDS}),
    "fetch": (fetch, {"name": str, "base_url": str}),
    "convert": (convert, _WORKLOAD_WORDS | _TEXT_WORDS),
    "fit": (fit_generator, _WORKLOAD_WORDS),
}


def main(arguments: list[str] | None = None) -> int:
    """Runs one verb; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] in ("-h", "--help", "help"):
        print(__doc__)
        return 0 if given else 2
    try:
        verb, *rest = given
        check_choice("verb", verb, _VERBS)
        command, allowed = _VERBS[verb]
        if verb == "validate":
            rest = [word if "=" in word else f"path={word}" for word in rest]
        return command(parse_words(rest, allowed), Console()) or 0
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _of_conversations(words: Words) -> Workload:
    """The workload of a file of conversations, with predicted lengths if there is a predictor."""
    for word in words:
        check_choice("word for conversations", word, _CONVERSATION_WORDS)
    check_spec(WorkloadSpec(name=FILE, **{word: words[word] for word in words if word in _SPEC_WORDS}))
    conversations = load_conversations(words["path"], words.get("num_requests"))
    predicted = None
    if "predictor" in words:
        from serving_gym.baselines.length_prediction.registry import load_predictor  # with it comes torch

        predicted = load_predictor(words["predictor"]).predict(conversations.prompts)
    workload = conversation_workload(conversations, TokenCounter(words.get("tokenizer")), predicted)
    if "rate_rps" in words:
        return workload.with_rate_scale(words["rate_rps"] / workload.rate_rps)
    return workload.with_rate_scale(words.get("rate_scale", 1.0))


def _report(words: Words) -> TraceReport | None:
    """What the reader says of a trace file, None of anything else."""
    if words.get("name", FILE) != FILE or "path" not in words:
        return None
    spec = {word: words[word] for word in ("path", *_FILE_WORDS) if word in words}
    return WorkloadSource(WorkloadSpec(name=FILE, **spec)).report


def _say_report(words: Words) -> None:
    """Says on stderr what the reader understood of a trace file."""
    report = _report(words)
    for line in () if report is None else trace_lines(report):
        print(line, file=sys.stderr)


def _add_report(table: Table, report: TraceReport) -> None:
    """Adds rows that say how a file was understood."""
    base = "counted from the first arrival" if report.rebased else "kept"
    rows = {
        "format": report.format,
        "times": f"in {report.time_unit}, the first at {report.time_base}, {base}",
        "requests with prefix ids": f"{report.rows_with_ids:,}",
        "models": ", ".join(report.models[:10]) or "any",
        "columns not used": ", ".join(report.unused_columns) or "none",
        "done": "; ".join(report.notes) or "nothing",
    }
    for key, value in rows.items():
        table.add_row(key, escape(value))


def _workload(words: Words) -> Workload:
    for word in _TEXT_WORDS:
        if word in words:
            raise ValueError(
                f"{word} is for conversations in ShareGPT's form, a .json file that holds a list"
            )
    spec = {key: value for key, value in words.items() if key in _SPEC_WORDS}
    if "name" not in spec:
        if "path" not in spec:
            raise ValueError(
                "give name=WORKLOAD or path=FILE ('python -m runners.traces list' shows the names)"
            )
        spec["name"] = FILE
    return make_workload(WorkloadSpec(**{"split": "all", **spec}), words.get("seed", 0))


def _provenance(words: Words) -> dict[str, Any]:
    """Provenance of the trace behind a fit, for the JSON."""
    split = {"split": words.get("split", "all")}
    info = TRACES.get(words.get("name", ""))
    if info is None:
        return split
    return {
        "trace": info.name,
        "publisher": info.publisher,
        "licence": info.licence,
        "citation": info.citation,
        "source": f"{info.base_url}/{info.source_path}",
        "published_rows": info.published_rows,
        "starts_at": info.starts_at,
        **split,
    }


_WHAT = {
    MIXTURE: "each episode of one of several workloads",
    SEQUENCE: "several workloads, one after another",
    TIERS: "tiers of Microsoft 365's services, after SageServe",
    SHAREGPT: "lengths of conversations, Poisson arrivals",
    TYPE_MIX: "drifting mixes of short and long prompts and answers",
    WEEK: "days and weeks of several models in several regions",
    **dict.fromkeys(FUNCTIONS, "many models, invoked like serverless functions"),
}


def _row(name: str) -> tuple[str, str, str, str, str]:
    """Kind, requests, licence, location and description of a workload."""
    if name in TRACES:
        info, path = TRACES[name], find_trace(name)
        where = f"fetch name={name}" if path is None else str(path)
        return "trace", f"{info.published_rows:,}", info.licence, where, info.title
    if name in fitted_names():
        fitted = load_fitted(name)
        what = f"drawn from a model fitted to {fitted.provenance['trace']}"
        return "fitted", "any", fitted.provenance["licence"], "built in", what
    if name in workload_entry_points():
        return "package", "any", "", workload_entry_points()[name].value, "of an installed package"
    if name == FILE:
        return "file", "", "", "path=FILE", "a trace file or a fitted generator of your own"
    return "synthetic", "any", "", "built in", _WHAT.get(name, "Flying Serving's synthetic load")


def _needed(words: Words, key: str, verb: str) -> str:
    if key not in words:
        raise ValueError(f"{verb} needs {key}=...")
    return str(words[key])


def _written(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
