"""The course as a site that needs no network: lessons as they ran, exercises, pages, and the
library's reference.
"""
