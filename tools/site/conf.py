"""Sphinx's settings: MyST-NB shows the notebooks as they ran, and nothing comes from a network."""

from __future__ import annotations

from pathlib import Path

import helpers

project = html_title = "How hardware makes deep learning fast"
author = "the authors of this course"
copyright = f"{author}. Code: BSD-3-Clause; text and figures: CC BY 4.0"
version = release = helpers.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "tools.site.excerpts"]
exclude_patterns = [".doctrees", "_own"]
suppress_warnings = ["mystnb.mime_priority"]

nb_execution_mode = "off"
# widgets need a kernel; the pages hold what they left
nb_ipywidgets_js: dict[str, dict[str, str]] = {}
nb_merge_streams = True
nb_code_prompt_show = nb_code_prompt_hide = "The code"
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 4
mathjax_path = "mathjax.js"

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 90
toc_object_entries = False

templates_path = ["templates"]
html_theme = "sphinx_book_theme"
html_context = {"default_mode": "auto"}
html_css_files = ["drawings.css", "site.css"]
html_js_files = ["numbers.js", "questions.js", "sidebar.js"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_show_sphinx = False
html_theme_options = {"show_navbar_depth": 1, "show_toc_level": 2, "use_fullscreen_button": False}
