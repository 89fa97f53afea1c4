"""Chainer: the neutral workloads as links, and one file for each checkpoint mechanism."""
