"""Numbered pages over a sequence."""

from pager.pages import Page, PageNotFound, Pager
from pager.window import window

__all__ = ["Page", "PageNotFound", "Pager", "window"]
