"""The rules that lessons and pages keep, and the pages that are made from them."""
