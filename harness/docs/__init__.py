"""The tables and figures of README.md and docs/, written from reference runs and declarations.

A page marks a region that a program writes:

    <!-- generated: methods -->
    <!-- end -->

`python -m harness.docs` writes all of them anew, and draws the figures. Words after the region's
name are arguments: `<!-- generated: cost pytorch -->`.
"""
