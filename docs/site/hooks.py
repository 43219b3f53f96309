"""What the site is made of beside its pages: notebooks, the changelog, equations, pictures, the address.

MkDocs calls these while it builds. Nothing that a page shows may come from another host: equations become
MathML, pictures are inlined so that they take the page's colours, and `on_post_page` refuses the rest.
"""

from __future__ import annotations

import base64
import html
import json
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(
    (ROOT / "notebooks").glob("*.ipynb"), key=lambda path: (path.stem != "quickstart", path.stem)
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ADDRESS = PROJECT["urls"]["Repository"]
ELSEWHERE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "depcap_jax/tiny/tiny-dream/README.md",
    "depcap_jax/tiny/tiny-llada/README.md",
    "tests/golden/README.md",
)
"""Pages that live beside what they tell of."""


def on_config(config: Any) -> Any:
    """The project's address from pyproject.toml, and the notebooks that there are."""
    # Not as `repo_url`: the theme would ask GitHub for the number of its stars.
    config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "link": ADDRESS, "name": "Source"}]
    pages = [f"notebooks/{path.stem}.md" for path in NOTEBOOKS]
    config.nav = [
        {name: pages if page == "NOTEBOOKS" else page} for part in config.nav for name, page in part.items()
    ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Pages that live elsewhere in the repository."""
    for path in NOTEBOOKS:
        text, assets = notebook_page(json.loads(path.read_text(encoding="utf-8")), path.stem)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, data in assets.items():
            files.append(File.generated(config, f"notebooks/{name}", content=data))
    for path in sorted((ROOT / "notebooks").glob("*.png")):
        files.append(File.generated(config, f"notebooks/{path.name}", content=path.read_bytes()))
    for name in ELSEWHERE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links as they are in the repository become the site's: `docs` is its root, and notebooks are pages."""
    here = page.file.src_uri
    folder = posixpath.dirname(here if here in ELSEWHERE or here.startswith("notebooks/") else f"docs/{here}")

    def on_site(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[1]))
        target = re.sub(r"\.ipynb$", ".md", target.removeprefix("docs/"))
        return f"]({posixpath.relpath(target, posixpath.dirname(here) or '.')}"

    return re.sub(r"\]\((?!\w+:)([^)#\s]+)", on_site, markdown)


def notebook_page(notebook: Any, stem: str) -> tuple[str, dict[str, bytes]]:
    """A notebook with its stored outputs as Markdown, and its images and frames by name."""
    parts, assets = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(_colab(source, stem))
        elif "install" not in cell["metadata"].get("tags", []):
            parts.append(f"````python\n{source}\n````")
        printed = ""
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{stem}-{len(assets) + 1}.png"
                assets[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![What the cell above draws]({name})")
            elif "text/html" in data:
                name = f"{stem}-{len(assets) + 1}.html"
                assets[name] = _framed("".join(data["text/html"]))
                parts.append(
                    f'<iframe src="{name}" title="What the cell above shows" loading="lazy"></iframe>'
                )
            else:
                printed += "".join(output.get("text") or data["text/plain"])
        if printed:
            parts.append(f"````{{.text .output}}\n{printed.rstrip()}\n````")
    return "\n\n".join(parts), assets


def _framed(output: str) -> bytes:
    """What a notebook shows as HTML, as a page for a frame: the one inside its own frame, if it has one."""
    inner = re.search(r'<iframe srcdoc="(.*?)"', output, re.DOTALL)
    return (html.unescape(inner[1]) if inner else output).encode()


def _colab(source: str, stem: str) -> str:
    """The badge, an image of another host, as a button behind the title."""
    place = ADDRESS.removeprefix("https://github.com/")
    link = f"https://colab.research.google.com/github/{place}/blob/main/notebooks/{stem}.ipynb"
    badge = re.compile(r"\s*<a href=\"https://colab[^>]*>.*?</a>\s*(# .*)", re.DOTALL)
    return badge.sub(rf"\1\n\n[Open in Colab]({link}){{.md-button}}", source)


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Equations as MathML; SVG pictures inline."""
    equation = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
    content = equation.sub(_mathml, content)
    return re.sub(r'<img alt="([^"]*)" src="([^":]*pictures/[\w-]+\.svg)"\s*/?>', _picture, content)


def _mathml(found: re.Match[str]) -> str:
    source = html.unescape(found[2]).strip()
    is_inline = found[1] == "span"
    equation = convert(source, display="inline" if is_inline else "block")
    if unknown := re.findall(r"\\\w+", equation):
        raise PluginError(f"no MathML for {unknown[0]} in {source}")
    return equation if is_inline else f'<div class="equation">{equation}</div>'


def _picture(found: re.Match[str]) -> str:
    """The drawing itself, without the colours that it brings for readers of the file alone."""
    drawing = (ROOT / "docs/pictures" / Path(found[2]).name).read_text(encoding="utf-8")
    drawing = re.sub(r"<\?xml.*?\?>|<style>.*?</style>", "", drawing, flags=re.DOTALL).strip()
    return drawing.replace("<svg ", f'<svg role="img" aria-label="{found[1]}" ', 1)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuses a page that would ask another host for something, or that shows an equation's source."""
    asks = re.findall(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//[^"]*"', output)
    asks += re.findall(r'<link\b(?=[^>]*stylesheet|[^>]*preconnect)[^>]*href="(?:https?:)?//[^"]*"', output)
    asks += re.findall(r'class="arithmatex"[^<]*', output)
    if asks:
        raise PluginError(f"{page.file.src_uri} needs what is not in the site: {asks[0]}")
    return output
