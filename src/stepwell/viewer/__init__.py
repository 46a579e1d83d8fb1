"""Looking at stores in a browser: `stepwell view PATH` and `stepwell.view(store)`.

guard                        who may talk to the viewer
shelf                        the stores that are shown, each under a number
listing episodes cells       their runs, one run, their rows; by `Store` alone
drawings tracks              how fields are drawn, and what a browser gets of them
data server                  all of it by HTTP
pages/ static/               what people see
browser                      where it is seen: a browser, a notebook's cell
"""

from stepwell.viewer.browser import View, view

__all__ = ["View", "view"]
