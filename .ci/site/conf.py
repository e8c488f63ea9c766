"""How Sphinx makes the site out of the documents; `.ci/build_site.py` calls it.

The pages are plain Markdown, with the anchors that a code host gives to headings, since they are
read there as well. Nothing is fetched from elsewhere when the site is read.
"""

project = "kvkeep"
html_title = "kvkeep"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
suppress_warnings = [
    "myst.header",  # decision records begin with their number
    "misc.highlighting_failure",  # a log line in a fence is no code
    "myst.strikethrough",
]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
highlight_language = "text"
html_theme_options = {"top_of_page_buttons": []}
