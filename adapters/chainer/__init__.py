"""Chainer: the neutral workloads as links, and one module per checkpoint mechanism."""
