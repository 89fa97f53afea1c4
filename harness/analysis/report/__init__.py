"""One self-contained page that says what stored runs found."""
