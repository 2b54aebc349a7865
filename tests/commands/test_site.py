"""The site's pages are what classes, schemas and result files say, and each has its place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import serving_gym
from serving_gym.baselines.registry import POLICIES
from serving_gym.calibration.lookup import load_attribute
from serving_gym.envs.registration import ENVS
from serving_gym.runners.__main__ import commands
from serving_gym.runners.documentation import traces
from serving_gym.runners.documentation.code_blocks import fenced, sides
from serving_gym.runners.documentation.environments import SECTIONS, environment_pages, manual_of
from serving_gym.runners.documentation.families import family_of, family_pages
from serving_gym.runners.documentation.front_page import section, verdict, winners_table
from serving_gym.runners.documentation.pages import written_pages
from serving_gym.runners.documentation.papers import claims_text, paper_pages, with_generated
from serving_gym.runners.documentation.policy_files import policy_files
from serving_gym.runners.documentation.reading import reads_of
from serving_gym.runners.documentation.results import COLUMNS, Results, stale
from serving_gym.runners.documentation.schema_tables import Schemas
from serving_gym.runners.documentation.schemas import arguments_of
from serving_gym.runners.documentation.tree import (
    address,
    clashes,
    expanded,
    linked_files,
    shown_files,
    with_readmes,
)
from serving_gym.runners.documentation.units import unit_of
from serving_gym.runners.reproduction.config import PAPERS
from tests.tiers import full_except

ROOT = Path(__file__).parents[2]
# A policy of each environment that is cheap to run again.
CHEAP = {
    "sharing": "first_fit",
    "dp_tp": "static_4x2",
    "routing": "jsq",
    "deployment": "vllm_static",
    "autoscaling": "fixed_instances",
}
SLOW = {"autoscaling", "deployment"}
OWN = [name for name, entry in ENVS.items() if entry.package]  # other tests register further ones


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    return written_pages()


def test_pages_of_environments_are_as_their_classes_say() -> None:
    pages = dict(environment_pages())
    assert set(pages) == {f"docs/{name}.md" for name in OWN}
    old = [path for path, content in pages.items() if (ROOT / path).read_text() != content]
    assert not old, "write them again: python -m runners.documentation"


def test_pages_of_papers_are_as_kept_claims_say() -> None:
    old = [path for path, content in paper_pages() if (ROOT / path).read_text() != content]
    assert not old, "write them again: python -m runners.documentation"


@pytest.mark.parametrize("paper", PAPERS)
def test_steps_of_papers_name_what_there_is(paper: str) -> None:
    page = (ROOT / f"docs/papers/{paper}.md").read_text().partition("<!-- generated")[0]
    steps = re.findall(r"`([\w/]+\.py)`((?: `\w+`)*)", page)
    assert len(steps) > 10
    for path, names in steps:
        source = (ROOT / path).read_text()
        missing = [name for name in re.findall(r"\w+", names) if not re.search(rf"\b{name}\b", source)]
        assert not missing, path


def test_claims_that_are_not_kept_have_their_command(tmp_path: Path) -> None:
    assert "    python -m runners.reproduce paper=oserve save=true" in claims_text("oserve", tmp_path)


def test_claims_stand_beside_the_figures_of_the_paper(tmp_path: Path) -> None:
    def claim(name: str, ours: float | None, verdict: str, kind: str = "result") -> dict[str, Any]:
        values = {"paper_value": 1.5, "ours": ours, "ours_low": None, "ours_high": None, "unit": "x"}
        return {"claim": name, "section": "6", "verdict": verdict, "kind": kind, **values}

    claims = [
        claim("one", 1.23456, "holds"),
        claim("two", None, "contradicted"),
        claim("three", 2.0, "cannot be tested"),
        claim("four", 2.0, "holds", "input"),
    ]
    part = {"command": "python -m runners.reproduce paper=oserve save=true", "claims": claims}
    (tmp_path / "oserve.json").write_text(json.dumps({"serving": part}))
    text = claims_text("oserve", tmp_path)
    assert "| `serving` | 1 | 0 | 1 | 1 |" in text
    assert "| one | 6 | 1.5 | 1.23 x | holds |" in text
    assert "| two | 6 | 1.5 | ∞ x | contradicted |" in text
    assert "three" not in text
    assert "four" not in text


def test_a_page_of_a_paper_needs_its_marks() -> None:
    with pytest.raises(ValueError, match="one mark each of policies, claims; got"):
        with_generated("# OServe\n\n<!-- generated: claims -->\n<!-- end -->\n", "oserve")


def test_the_page_of_trace_formats_is_as_the_readers_say() -> None:
    assert (ROOT / traces.PATH).read_text() == traces.traces_page(), (
        "write it: python -m runners.documentation"
    )


def test_every_trace_format_is_told_by_its_content() -> None:
    said = {one.title: traces.understood("any.txt", one.content) for one in traces.TRACE_FORMATS}
    assert len(said) >= 14
    assert said["Azure 2023"].startswith("Azure (CSV); 2 requests over 4.315 s")
    assert all("2 requests" in line for line in said.values())


def test_a_file_that_is_read_is_no_example_of_a_refused_one() -> None:
    with pytest.raises(ValueError, match=r"good\.csv is to be refused, and was read"):
        list(traces.refusals([("good.csv", "arrival_s,input_tokens,output_tokens\n0,5,5\n")]))


def test_units_are_those_that_names_carry() -> None:
    names = (
        "ttft_s",
        "seconds",
        "split_tokens_per_gpu",
        "refill_tokens_per_s",
        "crashes_per_hour",
        "policies",
    )
    assert [unit_of(name) for name in names] == ["s", "s", "tokens a GPU", "tokens/s", "1/h", ""]


def test_every_config_group_is_explained() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    groups = {path.name for path in (ROOT / "configs").iterdir() if path.is_dir()}
    assert [name for name in sorted(groups) if f"| `{name}` |" not in page] == []


def test_files_of_policies_name_their_policy() -> None:
    files = {file.name: file for file in policy_files()}
    assert files["sageserve_lt_u"].policy == "sageserve"
    assert files["oserve_literal"].purpose.startswith("OServe with each type profiled alone")
    assert not files["oserve_literal"].is_tuned
    assert files["preserve_sharegpt"].tuned_on == "sharegpt_poisson"
    assert files["dynamo_kv_tuned"].tuned_on.startswith("routing_uniform/chat, routing_uniform/code and ")


def test_results_are_of_the_present_versions() -> None:
    assert stale() == []


@pytest.mark.parametrize(
    "name",
    [
        *full_except(sorted(CHEAP.keys() - SLOW), "sharing"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in sorted(SLOW)),
    ],
)
def test_results_come_again(name: str) -> None:
    kept, policy = Results.of(name), CHEAP[name]
    again = serving_gym.compare(name, [policy], seeds=kept.seeds)["policies"][policy]["metrics"]
    for metric in COLUMNS:
        assert again[metric]["iqm"] == pytest.approx(kept.policies[policy][metric]["iqm"], rel=1e-4), metric


def test_every_page_has_its_place_and_its_own_address(written: dict[str, str]) -> None:
    paths = [*shown_files(), *written]
    assert clashes(paths) == []
    pages = {path for path in paths if path.endswith(".md")}
    nav = list(in_nav(expanded(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"], pages)))
    assert len(nav) == len(set(nav))
    assert pages - set(nav) == set(), "give them a place in the navigation of mkdocs.yml"
    assert set(nav) - pages == set(), "the navigation of mkdocs.yml names pages that there are not"


def test_patterns_of_the_navigation_match_something() -> None:
    assert expanded([{"A": "b/*"}, "c.md"], ["b/2.md", "c.md", "b/1.md"]) == [
        {"A": ["b/1.md", "b/2.md"]},
        "c.md",
    ]
    with pytest.raises(ValueError, match=r"nav: d/\* of mkdocs.yml matches no file"):
        expanded(["d/*"], ["c.md"])


def test_the_front_page_answers_with_kept_figures(written: dict[str, str]) -> None:
    page, result = written["index.md"], Results.of("routing")
    assert result.command in page
    assert result.as_table() in page
    assert verdict(result) in page
    questions = [
        "What is it?",
        "What can I do with it?",
        "Does it win?",
        "How do I start?",
        "Can I trust it?",
    ]
    assert re.findall(r"(?m)^## (.+)$", page) == questions
    assert winners_table() in page
    assert len(page.split()) < 1200
    assert all(f"](docs/{name}.md)" in page for name in OWN)


def test_a_verdict_says_when_there_is_no_difference() -> None:
    values: dict[str, Any] = json.loads((ROOT / "docs/results/routing.json").read_text())
    values["gains"]["linear_score_tuned"] = {"iqm": 0.05, "ci95": [-0.01, 0.11]}
    assert "+5.0 % [-1.0, 11.0] over the best tuned heuristic" in verdict(Results(**values))
    assert "no difference at 95 %" in verdict(Results(**values))
    values["gains"]["linear_score_tuned"] = {"iqm": 0.05, "ci95": [0.01, 0.11]}
    assert ": a difference at 95 %" in verdict(Results(**values))


def test_references_name_every_command_policy_and_environment_argument(written: dict[str, str]) -> None:
    shown = {path: text for path, text in written.items() if path.startswith("reference/commands/")}
    assert set(shown) == {f"reference/commands/{name}.md" for name in commands()}
    assert all(f"python -m runners.{Path(path).stem} " in text for path, text in shown.items())
    assert (
        "| `seeds=10` | episodes of each policy; the same episodes for all |"
        in shown["reference/commands/compare.md"]
    )
    policies = "\n".join(text for path, text in written.items() if path.startswith("reference/policies/"))
    assert "## `flying_serving`" in policies
    assert "# Layout policies\n" in policies
    assert "| `window_s` | `float` | `180.0` | s | 5 to 600, logarithmic |" in policies
    assert "| [`hpa_rate`](#hpa_rate) |" in policies
    assert "| `hpa_rate_tuned` | each 15 s |" in policies
    assert all(f"\n## `{name}`\n" in policies for name in POLICIES)
    assert "docs/papers/flying_serving.md" in policies
    assert "`saturation_tokens`" in policies
    parts = written["reference/configuration/environments.md"]
    assert "`ttft_s` | `float` |  | s | Longest time to the first token, s." in parts


def test_what_policies_read_is_what_their_code_names() -> None:
    def reads(name: str) -> list[str]:
        return reads_of(load_attribute(POLICIES[name].policy))

    assert reads("static_dp") == ["now_s"]
    assert {"in_flight", "first_token_s", "predicted_tokens"} <= set(reads("jsq"))
    assert "hash_ids" not in reads("jsq")
    assert {"kv_used_blocks", "kv_capacity_blocks"} <= set(reads("least_kv"))
    assert reads("linear_score") == ["observation"]


def test_a_policy_that_is_registered_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "jsq_again", POLICIES["jsq"])
    assert family_of("jsq_again") == "routing"
    assert "\n## `jsq_again`\n" in family_pages(Schemas())["policies/routing.md"]


def test_modules_are_written_as_one_imports_them(written: dict[str, str]) -> None:
    for path, text in {**written, **dict(environment_pages())}.items():
        assert not re.search(r"`(envs|baselines|runners)\.[a-z]", text), path


def test_code_gets_its_language_and_sides() -> None:
    text = "Do:\n\nCommand line:\n\n    python -m runners.bench\n\nPython:\n\n    import a\n\n    a.b()\n\nEnd.\n"
    once = fenced(text)
    assert "```bash\npython -m runners.bench\n```" in once
    assert "```python\nimport a\n\na.b()\n```" in once
    assert sides(once).count("<div") == 3
    assert sides(once).count("</div>") == 3
    assert sides(once).endswith("\nEnd.\n")


def test_code_of_lists_and_fences_stays() -> None:
    text = "* an item\n\n    its code\n\n```yaml\na:\n\n    b: 1\n```\n"
    assert fenced(text) == text


def test_addresses_follow_from_paths() -> None:
    assert address("docs/routing.md") == "routing/index.html"
    assert address("tests/vllm/README.md") == "tests/vllm/index.html"
    assert address("README.md") == "readme/index.html"
    assert address("docs/images/routing.png") == "docs/images/routing.png"


def test_links_to_folders_lead_to_their_readme(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here/README.md").write_text("# Here\n")
    (tmp_path / "bare").mkdir()
    page = tmp_path / "page.md"
    page.write_text("[a](here) [b](here/) [c](bare) [d](https://x.org/here) ![e](here/README.md)")
    readme = tmp_path / "here/README.md"
    assert list(linked_files(page)) == [readme] * 3
    shown = with_readmes(page.read_text(), tmp_path)
    assert (
        shown
        == "[a](here/README.md) [b](here/README.md) [c](bare) [d](https://x.org/here) ![e](here/README.md)"
    )


def test_a_manual_needs_every_section() -> None:
    class Env:
        """Does something.

        ## Action space

        None.
        """

    with pytest.raises(ValueError, match="Env must have the sections Action space, Observation space"):
        manual_of(Env)
    assert SECTIONS[0] == "Action space"


def test_fields_must_be_described() -> None:
    @dataclass(frozen=True)
    class Settings:
        """Of something.

        Attributes:
            known, other_s: Of both.
        """

        known: int = 1
        other_s: float | None = None
        new: bool = False

    with pytest.raises(ValueError, match="Settings does not say what new are"):
        arguments_of(Settings)
    Settings.__doc__ = f"{Settings.__doc__}    new: Whether.\n"
    known, other, new = arguments_of(Settings)
    assert (known.meaning, known.default, known.kind) == ("Of both.", "1", "int")
    assert (other.meaning, other.default, other.kind) == ("Of both.", "null", "float or null")
    assert (new.meaning, new.default) == ("Whether.", "false")


def test_the_front_page_needs_its_section_of_the_readme() -> None:
    assert section("# a\n\n## One\n\ntext\n\n## Two\n", "One") == "text"
    with pytest.raises(ValueError, match="must have a section 'Three'"):
        section("# a\n", "Three")


def in_nav(entry: Any) -> Iterator[str]:
    """Pages of a navigation."""
    if isinstance(entry, str):
        yield entry
    for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from in_nav(inner)
