"""Code of the documents, as the site shows it: with its language, and the two ways to do a thing side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator

COMMAND_LINE, PYTHON = "Command line:", "Python:"  # what announces the two ways in a document
_INDENT = "    "
_SHELL = re.compile(
    r"(python -m|pip |serving-gym |git |export |docker |curl |vllm |mkdocs |\.ci/|[A-Z_]+=\S+ )"
)
_CODE = re.compile(r"(import |from |def |class |@|\w+ = [\w.]+\()")
_TOML = re.compile(r"\[[\w.\"-]+\]$")
_YAML = re.compile(r"\w+:( |$)")
_ITEM = re.compile(r"\s*([*+-]|\d+\.) ")


def fenced(markdown: str) -> str:
    """The document with indented code between fences that name its language.

    Code that belongs to an item of a list stays as it is.

    Args:
        markdown: A document, whose code is indented by four blanks, or fenced already.
    """
    return "\n".join(_with_fences(markdown.splitlines())) + "\n"


def _with_fences(lines: list[str]) -> Iterator[str]:
    inside, in_list, number = False, False, 0
    while number < len(lines):
        line = lines[number]
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside and line and not line.startswith(" "):
            in_list = bool(_ITEM.match(line))
        if inside or in_list or not line.startswith(_INDENT) or (number and lines[number - 1].strip()):
            yield line
            number += 1
            continue
        code = list(_block(lines[number:]))
        yield f"```{language(code)}"
        yield from code
        yield "```"
        number += len(code)


def _block(lines: list[str]) -> list[str]:
    """The indented lines at the beginning, without their indent; blank ones at their end are left out."""
    code: list[str] = []
    for line in lines:
        if line.strip() and not line.startswith(_INDENT):
            break
        code.append(line.removeprefix(_INDENT))
    while not code[-1].strip():
        code.pop()
    return code


def language(code: list[str]) -> str:
    """The language of code by its first line, or the first behind a comment and what is blank.

    Args:
        code: Its lines.
    """
    said = next((line for line in code[1:] if line.strip()), "") if code[0].startswith("# ") else code[0]
    for name, pattern in (("bash", _SHELL), ("python", _CODE), ("toml", _TOML), ("yaml", _YAML)):
        if pattern.match(said):
            return name
    return "text"


def sides(markdown: str) -> str:
    """The document with code after `Command line:` and `Python:` side by side.

    Args:
        markdown: A document with fences.
    """
    block = r"```\w+\n.*?\n```"
    both = re.compile(rf"(?ms)^{re.escape(COMMAND_LINE)}\n\n({block})\n\n{re.escape(PYTHON)}\n\n({block})$")
    column = '<div markdown="1">\n\n{title}\n\n{code}\n\n</div>'
    return both.sub(
        lambda found: "\n\n".join(
            [
                '<div class="sides" markdown="1">',
                column.format(title=COMMAND_LINE, code=found[1]),
                column.format(title=PYTHON, code=found[2]),
                "</div>",
            ]
        ),
        markdown,
    )
