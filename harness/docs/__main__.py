"""`python -m harness.docs`: renew every generated region and every figure of the pages."""

from __future__ import annotations

from harness.docs import figures, pages
from harness.docs.regions import written


def main() -> None:
    """Write the pages whose text changes, and all figures."""
    for page in pages.all_pages():
        before = page.read_text(encoding="utf-8")
        after = pages.renewed(before, written)
        if after != before:
            page.write_text(after, encoding="utf-8")
    for name in figures.names():
        figures.write(name)


if __name__ == "__main__":
    main()
