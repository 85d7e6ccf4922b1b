"""MkDocs hooks: pages from outside docs/, notebooks with outputs, links to source files, Markdown twins, llms.txt.

The pages in docs/ are written for a Git host: their links lead to files of the repository. On the site, a link to a
file outside docs/ leads to a generated page with its text, so the site needs no Git host and no network.
"""

from __future__ import annotations

import base64
import json
import os
import posixpath
import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[2]
PACKAGE = "streamhouse_spark"
OUTSIDE = {
    "ARCHITECTURE.md": "internals/architecture.md",
    "benchmarks/README.md": "benchmarks/index.md",
    "benchmarks/results/README.md": "benchmarks/results.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Markdown file outside docs/ → its page on the site."""
NOTEBOOKS = "examples/notebooks"
"""Each notebook here becomes a page in notebooks/, with the outputs that it was committed with."""
QUICKSTART = "get-started/local.md"
"""The page that shows the quickstart of README.md, and to which links to README.md lead."""

NOT_SEARCHED = {"benchmarks/results.md", "changelog.md"}

_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_FACT = re.compile(r"<!-- /?fact\b.*?-->")
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^()\s]+)(\))")
_API = re.compile(r"^::: ([\w.]+)(?:\n {4}.*)*", re.MULTILINE)
_LANGUAGES = {".py": "python", ".sql": "sql", ".yml": "yaml", ".yaml": "yaml", ".json": "json", ".toml": "toml"}

_origins: dict[str, str] = {}
"""Page of the site → file of the repository."""
_pages: dict[str, str] = {}
"""File of the repository → page of the site."""
_twins: dict[str, str] = {}
"""Page of the site → its Markdown."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Use the heading anchors of Git hosts, and the addresses that the environment names."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    config.site_url = os.environ.get("SITE_URL") or config.site_url
    config.repo_url = os.environ.get("REPO_URL") or config.repo_url
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/, the files that pages link to, and the two colors of the picture."""
    for state in (_origins, _pages, _twins):
        state.clear()
    for file in files.documentation_pages():
        _origins[file.src_uri] = f"docs/{file.src_uri}"
    for source, uri in OUTSIDE.items():
        _origins[uri] = source
        files.append(File.generated(config, uri, content=(ROOT / source).read_text("utf-8")))
    for notebook in sorted((ROOT / NOTEBOOKS).glob("*.ipynb")):
        _add_notebook(files, config, notebook)
    _pages.update({source: uri for uri, source in _origins.items()})
    _pages["README.md"] = QUICKSTART
    for file in files.documentation_pages():
        for path in _linked_paths(_origins[file.src_uri], file.content_string):
            _add_source(files, config, path)
    picture = (ROOT / "docs/overview.svg").read_text("utf-8")
    media = re.compile(r"@media \(prefers-color-scheme: dark\) \{\n(.*?)\n    \}\n", re.DOTALL)
    for color, style in (("light", ""), ("dark", r"\1\n")):
        files.append(File.generated(config, f"overview-{color}.svg", content=media.sub(style, picture)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Rewrite links for the site, and keep the result as the page's twin."""
    uri = page.file.src_uri
    if uri == "index.md":
        page.meta["hide"] = ["navigation"]
    if uri not in _origins or uri in NOT_SEARCHED:
        page.meta["search"] = {"exclude": True}
    elif uri.startswith("internals/"):
        page.meta["search"] = {"boost": 0.5}
    if uri not in _origins:  # a generated page with the text of a source file
        return markdown
    if uri == QUICKSTART:
        readme = (ROOT / "README.md").read_text("utf-8")
        quickstart = re.search(r"^## Quickstart$.*?^```python$.*?^```$", readme, re.DOTALL | re.MULTILINE)
        assert quickstart, "README.md has no quickstart"
        markdown = markdown.replace("<!-- quickstart -->", quickstart[0])
    parts = _FENCE.split(markdown)
    parts[::2] = [_for_site(text, uri) for text in parts[::2]]
    markdown = "".join(parts)
    _twins[uri] = _API.sub(lambda match: describe(match[1]), markdown)
    return re.sub(r"(!\[[^\]]*\]\([^)]*overview)\.svg\)", r"\1-light.svg#only-light)\1-dark.svg#only-dark)", markdown)


def on_env(env: Any, **_: Any) -> Any:
    """Let templates name the Markdown twin of a page."""
    env.globals["twins"] = _twins
    return env


def on_nav(nav: Navigation, *, config: MkDocsConfig, **_: Any) -> Navigation:
    """Keep the navigation for llms.txt."""
    config.extra["llms_nav"] = nav
    return nav


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write the Markdown twins next to their pages, and llms.txt, which lists them."""
    site = Path(config.site_dir)
    for uri, markdown in _twins.items():
        path = site / uri
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(markdown, "utf-8")
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    lines += ["Every page of this site is also Markdown: replace `.html` by `.md` in its address.", ""]
    for item in config.extra["llms_nav"].items:
        if isinstance(item, Section):
            lines += [f"## {item.title}", "", *_llms_lines(item, config.site_url or ""), ""]
    (site / "llms.txt").write_text("\n".join(lines), "utf-8")


def _llms_lines(section: Section, site_url: str) -> list[str]:
    lines = []
    for item in section.children:
        if isinstance(item, Section):
            lines += _llms_lines(item, site_url)
        elif isinstance(item, Page):
            lines.append(f"- [{item.title}]({site_url}{item.file.src_uri}){_summary(_twins[item.file.src_uri])}")
    return lines


def _summary(markdown: str) -> str:
    """Return the first sentence of a page, as a suffix of its link."""
    for block in _FENCE.sub("", markdown).split("\n\n"):
        text = " ".join(block.split())
        if text and not re.match(r"[#|!<>:]|[-*] |\d+\. ", text):
            plain = _LINK.sub(lambda link: link[1].strip("![]("), text)
            return ": " + re.split(r"(?<=[.:])\s", plain)[0].rstrip(".:")
    return ""


def describe(name: str) -> str:
    """Return the signature and docstring of a public object, and those of its public methods, as Markdown."""
    item = _load_package()[name.removeprefix(f"{PACKAGE}.")]
    blocks = [_describe_one(item)]
    if item.is_class:
        methods = [member for member in item.members.values() if member.is_function and not member.name.startswith("_")]
        blocks += [_describe_one(method, f"{item.name}.") for method in methods]
    return "\n\n".join(blocks)


@cache
def _load_package() -> Any:
    return griffe.load(PACKAGE, search_paths=[str(ROOT / "src")], resolve_aliases=True)


def _describe_one(item: Any, prefix: str = "") -> str:
    signature = item.signature(return_type=item.is_function) if item.is_function or item.is_class else item.name
    text = item.docstring.value if item.docstring else ""
    return f"```python\n{prefix}{signature or item.name}\n```\n\n{text}".rstrip()


def _for_site(text: str, uri: str) -> str:
    """Rewrite the links of a page's text, and drop its comments: a comment before a table hides the table."""
    origin = _origins[uri]

    def rewrite(link: re.Match[str]) -> str:
        path, _, anchor = link[2].partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link[0]
        target = _pages.get(posixpath.normpath(posixpath.join(posixpath.dirname(origin), path)))
        if target is None:
            return link[0]
        return f"{link[1]}{posixpath.relpath(target, posixpath.dirname(uri))}{'#' + anchor if anchor else ''}{link[3]}"

    return _LINK.sub(rewrite, _COMMENT.sub("", _FACT.sub("", text)))


def _linked_paths(origin: str, text: str) -> list[str]:
    """Return the files and folders of the repository that a page links to and that are not pages yet."""
    paths = []
    for _, target, _ in _LINK.findall(_FENCE.sub("", text)):
        path = target.partition("#")[0]
        if path and not re.match(r"[a-z]+:", path):
            paths.append(posixpath.normpath(posixpath.join(posixpath.dirname(origin), path)))
    return [path for path in paths if path not in _pages and not (ROOT / path).is_relative_to(ROOT / "docs")]


def _add_source(files: Files, config: MkDocsConfig, path: str) -> None:
    """Add a page with the text of a file, or of the files in a folder. A picture is added as it is."""
    source = ROOT / path
    if path in _pages or not source.exists():
        return
    if source.suffix in {".png", ".svg"}:
        _pages[path] = path
        files.append(File.generated(config, path, abs_src_path=str(source)))
        return
    sources = [source] if source.is_file() else sorted(p for p in source.rglob("*") if _is_text(p))
    blocks = [f"# {path}"]
    for file in sources:
        if len(sources) > 1:
            blocks.append(f"## {file.relative_to(source).as_posix()}")
        blocks.append(f"````{_LANGUAGES.get(file.suffix, 'text')}\n{file.read_text('utf-8').rstrip()}\n````")
    uri = f"source/{path}{'' if path.endswith('.md') else '.md'}"
    _pages[path] = uri
    files.append(File.generated(config, uri, content="\n\n".join(blocks)))


def _add_notebook(files: Files, config: MkDocsConfig, path: Path) -> None:
    """Add a page with the text, code and outputs of a notebook, and its pictures."""
    uri = f"notebooks/{path.stem}.md"
    parts = []
    for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```py\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{path.stem}-{number}.png"
                image = base64.b64decode("".join(data["image/png"]))
                files.append(File.generated(config, f"notebooks/{picture}", content=image))
                parts.append(f"![Output of the cell]({picture})")
            elif text := "".join(output.get("text") or data.get("text/plain", "")):
                parts.append(f'```text title="Output"\n{text.rstrip()}\n```')
    _origins[uri] = path.relative_to(ROOT).as_posix()
    files.append(File.generated(config, uri, content="\n\n".join(parts)))


def _is_text(path: Path) -> bool:
    return path.is_file() and path.suffix in {*_LANGUAGES, ".md", ".txt"} and "__pycache__" not in path.parts
