"""One folder per framework, plus what they share: the contract (`base`) and direct file I/O (`directio`)."""
